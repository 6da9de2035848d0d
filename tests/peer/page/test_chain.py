"""The reader of the chain counts each record once, and again if the peer has replaced it; curves keep their ends."""

from __future__ import annotations

from pathlib import Path

from peer.page.chain import ChainReader, Round, curve
from protocol.chain.credit import ledger
from tests.protocol.chains import FIVE, a_replica, a_run, grow

ANN, BOB = FIVE[:2]
RUN = a_run(ANN)


def test_records_are_counted_once_and_the_credits_are_those_of_the_ledger(tmp_path: Path) -> None:
    replica, reader = a_replica(RUN, tmp_path), ChainReader(RUN, tmp_path)
    reader.read()
    assert reader.rounds == []
    for length in (3, 5):
        grow(replica, length - replica.history.length, [ANN, BOB])
        reader.read()
        reader.read()
        commits = [replica.history.commit_at(round) for round in range(length)]
        assert [each.rounds for each in reader.rounds] == list(range(1, length + 1))
        assert [each.loss for each in reader.rounds] == [commit.record.loss for commit in commits]
        assert reader.ledger.credits == ledger(commits)
        assert reader.rounds[-1].tokens == sum(each.tokens for each in reader.ledger.credits.values())
    replica.state.close()


def test_replaced_records_are_counted_anew(tmp_path: Path) -> None:
    replica, reader = a_replica(RUN, tmp_path), ChainReader(RUN, tmp_path)
    grow(replica, 3, [ANN])
    reader.read()
    replica.state.close()
    replica.store.records.truncate(1)
    again = a_replica(RUN, tmp_path)
    grow(again, 1, [ANN, BOB], salt=7)
    again.state.close()
    reader.read()
    assert len(reader.rounds) == 2
    assert reader.ledger.credits == ledger([again.history.commit_at(round) for round in range(2)])


def rounds_of(*losses: float) -> list[Round]:
    return [Round(number, 100 * number, 2, loss, {}, None) for number, loss in enumerate(losses, 1)]


def test_a_curve_has_the_mean_and_the_extremes_of_some_rounds_and_ends_with_the_last() -> None:
    points = curve(rounds_of(4.0, 2.0, 3.0, 1.0, 5.0), lambda each: each.loss, 3)
    assert [(each.rounds, each.tokens, each.value, each.low, each.high) for each in points] == [
        (2, 200, 3.0, 2.0, 4.0),
        (4, 400, 2.0, 1.0, 3.0),
        (5, 500, 5.0, 5.0, 5.0),
    ]


def test_rounds_without_a_finite_value_are_left_out() -> None:
    points = curve(rounds_of(float("nan"), float("inf"), 3.0), lambda each: each.loss, 3)
    assert [each.rounds for each in points] == [3]
    assert curve(rounds_of(1.0), lambda each: each.reward, 3) == []
