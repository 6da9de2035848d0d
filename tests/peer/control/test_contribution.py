"""What a peer has given to its run, by the records: all of it, today's part, its rank, and how long without a gap."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

from peer.control.history import MOST_NEW, RunHistory
from protocol.chain.credit import Credit
from protocol.chain.replica import Replica
from protocol.events.status import ContributionStatus
from tests.protocol.chains import FIVE, a_replica, a_run, credits_in, grow

ANN, BOB, CAT = FIVE[:3]
RUN = a_run(ANN)


class Bob:
    """Counts what Bob gave, on a day that a test sets."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.day = folder, date(2026, 11, 27)
        self.replica = a_replica(RUN, folder)
        self.begin()

    def begin(self) -> None:
        self.count = RunHistory(RUN, self.folder, BOB.peer_id, lambda: self.day)
        while not self.count.count():
            pass

    def grow(self, *members: list[object], day: int = 27) -> ContributionStatus:
        """One round after the other, each seen at once."""
        self.day = date(2026, 11, day)
        for each in members:
            grow(self.replica, 1, each)  # type: ignore[arg-type]
            self.count.count()
        return self.count.contribution()


def tokens(replica: Replica, peer: object = BOB) -> int:
    commits = [replica.history.commit_at(round) for round in range(replica.history.length)]
    return credits_in(commits).get(peer.peer_id, Credit()).tokens  # type: ignore[attr-defined]


def test_rounds_in_a_row_tokens_and_rank_are_those_of_the_ledger(tmp_path: Path) -> None:
    bob = Bob(tmp_path)
    assert bob.count.contribution() == ContributionStatus()
    told = bob.grow([ANN, BOB], [ANN, BOB], [ANN], [ANN, BOB])
    assert told == ContributionStatus(
        rounds=3,
        tokens=tokens(bob.replica),
        tokens_today=tokens(bob.replica),
        rank=2,
        contributors=2,
        streak=1,
        days=1,
    )
    assert bob.grow([ANN]).streak == 0
    assert bob.grow([BOB], [BOB], [BOB]) == replace(
        told,
        rounds=6,
        tokens=tokens(bob.replica),
        tokens_today=tokens(bob.replica),
        rank=1,
        streak=3,
    )
    bob.replica.state.close()


def test_a_rank_is_the_place_in_the_ledger_where_trained_tokens_come_first(tmp_path: Path) -> None:
    history = RunHistory(RUN, tmp_path, BOB.peer_id)
    history.ledger.credits = {
        ANN.peer_id: Credit(1, 100),
        BOB.peer_id: Credit(0, 0, 2, 500),
        CAT.peer_id: Credit(0, 0, 1, 400),
    }
    told = history.contribution()
    assert (told.tokens, told.rank, told.contributors) == (500, 2, 3)


def test_days_in_a_row_end_with_a_day_without_a_round(tmp_path: Path) -> None:
    bob = Bob(tmp_path)
    assert [bob.grow([BOB], day=day).days for day in (24, 24, 25, 26)] == [1, 1, 2, 3]
    first = tokens(bob.replica)
    told = bob.grow([ANN], day=27)
    assert (told.days, told.tokens_today) == (3, 0), "yesterday's still count"
    assert bob.grow([ANN], day=28).days == 0
    told = bob.grow([BOB], day=29)
    assert (told.days, told.tokens_today) == (1, tokens(bob.replica) - first)
    bob.replica.state.close()


def test_the_next_process_goes_on_and_what_it_finds_is_of_no_day(tmp_path: Path) -> None:
    bob = Bob(tmp_path)
    before = bob.grow([ANN, BOB], [ANN, BOB])
    bob.count.save()
    grow(bob.replica, 1, [ANN, BOB])
    bob.begin()
    assert bob.count.contribution() == replace(before, rounds=3, tokens=tokens(bob.replica), streak=3)
    grow(bob.replica, MOST_NEW + 1, [ANN, BOB])
    bob.count.count()
    told = bob.count.contribution()
    assert (told.rounds, told.tokens_today) == (MOST_NEW + 4, before.tokens_today), "fetched after a while away"
    bob.replica.state.close()


def test_replaced_records_are_counted_anew(tmp_path: Path) -> None:
    bob = Bob(tmp_path)
    before = bob.grow([BOB], [BOB], [BOB])
    bob.replica.state.close()
    bob.replica.store.records.set_aside_from(1)
    bob.replica = a_replica(RUN, tmp_path)
    grow(bob.replica, 1, [ANN, BOB], salt=7)
    bob.count.count()
    told = bob.count.contribution()
    assert (told.rounds, told.streak, told.tokens) == (2, 2, tokens(bob.replica)) and told.days == before.days
    assert told.tokens_today == told.tokens < before.tokens_today, "what was given up counts for no day"
    bob.replica.state.close()
