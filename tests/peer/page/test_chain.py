"""The reader of the chain counts each record once, and again if the peer has replaced it; curves keep their ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.page import chain as page_chain
from peer.page.chain import TALLY_NAME, ChainReader, Round, curve
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


def counted(reader: ChainReader) -> tuple[object, ...]:
    reader.read()
    return reader.rounds, reader.ledger.credits, reader.ledger.to_fields(), reader.progress


def test_the_next_process_goes_on_where_the_last_one_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_chain, "SAVE_EVERY", 3)
    replica = a_replica(RUN, tmp_path)
    grow(replica, 4, [ANN, BOB])
    ChainReader(RUN, tmp_path).read()
    grow(replica, 1, [ANN, BOB])
    again = ChainReader(RUN, tmp_path)
    assert len(again.rounds) == 4
    found = counted(again)
    (tmp_path / TALLY_NAME).unlink()
    assert found == counted(ChainReader(RUN, tmp_path))
    replica.state.close()


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"form":2}',
        b'{"form":1}',
        b'{"form":1,"rounds":[]}',
        b'{"form":1,"rounds":[[1,2,3.0,null,null]]}',
        b'{"form":1,"rounds":[[1,2,3.0,{},null]],"progress":[1,2],"total":1,"ledger":{},"tip":""}',
        b'{"form":1,"rounds":[[1,2,3.0,{},null]],"progress":[1,2,3],"total":1,"ledger":{"credits":{},"young":[]},"tip":"ab"}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_tally_is_not_used(tmp_path: Path, damage: bytes) -> None:
    replica = a_replica(RUN, tmp_path)
    grow(replica, 2, [ANN, BOB])
    replica.state.close()
    found = counted(ChainReader(RUN, tmp_path))
    (tmp_path / TALLY_NAME).write_bytes(damage)
    assert found == counted(ChainReader(RUN, tmp_path)) and len(ChainReader(RUN, tmp_path).rounds) < 2


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
