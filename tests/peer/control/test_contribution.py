"""What a peer has given to its run, by the records: all of it, today's part, its rank, and how long without a gap."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import trio
import trio.testing

from peer.control import contribution
from peer.control.contribution import FILE, LOOK_S, MOST_NEW, ContributionCount, ContributionMonitor
from peer.control.ledger import ledger
from protocol.chain.records import genesis_tip
from protocol.chain.replica import Replica
from protocol.events.status import ContributionStatus
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from tests.protocol.chains import FIVE, a_replica, a_run, grow

ANN, BOB, CAT = FIVE[:3]
RUN = a_run(ANN)


def kept(length: float, credits: Mapping[PeerId, list[int]]) -> str:
    """A file of so many rounds with these credits."""
    ledger = {"credits": dict(credits), "young": []}
    day = {"day": "2026-11-27", "tokens_today": 0, "last_day": None, "days": 0}
    tip = genesis_tip(RUN.run).hex()
    return json.dumps({"form": 1, "tip": tip, "length": length, "streak": 0, "ledger": ledger, **day})


class Bob:
    """Counts what Bob gave, on a day that a test sets."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.day = folder, date(2026, 11, 27)
        self.replica = a_replica(RUN, folder)
        self.begin()

    def begin(self) -> None:
        self.count = ContributionCount(RUN.run, BOB.peer_id, self.folder, lambda: self.day)
        while not self.count.read():
            pass

    def grow(self, *members: list[object], day: int = 27) -> ContributionStatus:
        """One round after the other, each seen at once."""
        self.day = date(2026, 11, day)
        for each in members:
            grow(self.replica, 1, each)  # type: ignore[arg-type]
            self.count.read()
        return self.count.status()


def tokens(replica: Replica, peer: object = BOB) -> int:
    found = ledger(replica.store)["members"]
    return next((each["tokens"] for each in found if each["peer"] == peer.peer_id), 0)  # type: ignore[attr-defined]


def test_rounds_in_a_row_tokens_and_rank_are_those_of_the_ledger(tmp_path: Path) -> None:
    bob = Bob(tmp_path)
    assert bob.count.status() == ContributionStatus()
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


def test_a_peer_without_credit_has_no_rank(tmp_path: Path) -> None:
    bob = Bob(tmp_path)
    assert bob.grow([ANN, CAT]) == ContributionStatus(contributors=2)
    bob.replica.state.close()


def test_a_rank_is_the_place_in_the_ledger_where_trained_tokens_come_first(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(
        kept(0, {ANN.peer_id: [1, 100, 0, 0], BOB.peer_id: [0, 0, 2, 500], CAT.peer_id: [0, 0, 1, 400]})
    )
    told = ContributionCount(RUN.run, BOB.peer_id, tmp_path).status()
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
    bob.count.keep()
    grow(bob.replica, 1, [ANN, BOB])
    bob.begin()
    assert bob.count.status() == replace(before, rounds=3, tokens=tokens(bob.replica), streak=3)
    grow(bob.replica, MOST_NEW + 1, [ANN, BOB])
    bob.count.read()
    told = bob.count.status()
    assert (told.rounds, told.tokens_today) == (MOST_NEW + 4, before.tokens_today), "fetched after a while away"
    bob.replica.state.close()


def test_a_long_chain_is_counted_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contribution, "AT_ONCE", 2)
    replica = a_replica(RUN, tmp_path)
    grow(replica, 5, [BOB])
    count = ContributionCount(RUN.run, BOB.peer_id, tmp_path)
    assert [count.read() for _ in range(4)] == [False, False, True, True]
    assert (count.status().rounds, count.status().tokens_today) == (5, 0)
    replica.state.close()


def test_replaced_records_are_counted_anew(tmp_path: Path) -> None:
    bob = Bob(tmp_path)
    before = bob.grow([BOB], [BOB], [BOB])
    bob.replica.state.close()
    bob.replica.store.records.truncate(1)
    bob.replica = a_replica(RUN, tmp_path)
    grow(bob.replica, 1, [ANN, BOB], salt=7)
    bob.count.read()
    told = bob.count.status()
    assert (told.rounds, told.streak, told.tokens) == (2, 2, tokens(bob.replica)) and told.days == before.days
    assert told.tokens_today == told.tokens < before.tokens_today, "what was given up counts for no day"
    bob.replica.state.close()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"form":2}', '{"form":1}', '{"form":1,"ledger":{"credits":3}}', kept(-1, {}), kept(1e999, {})],
)
def test_a_damaged_file_is_counted_anew(tmp_path: Path, text: str) -> None:
    bob = Bob(tmp_path)
    bob.grow([BOB], [BOB])
    (tmp_path / FILE).write_text(text)
    bob.begin()
    assert bob.count.status().rounds == 2
    bob.replica.state.close()


def test_a_count_is_current_while_it_runs_and_kept(tmp_path: Path) -> None:
    bob = Bob(tmp_path)
    monitor = ContributionMonitor(bob.count, lambda: bob.replica.history.tip)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(monitor.run)
            for rounds in (1, 2, 3):
                grow(bob.replica, 1, [BOB])
                while monitor.status is None or monitor.status.rounds < rounds:
                    await trio.sleep(LOOK_S)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(rate=100))
    assert json.loads((tmp_path / FILE).read_text())["length"] == 3
    bob.replica.state.close()


def test_a_running_peer_tells_the_ledger_of_the_newest_record(tmp_path: Path) -> None:
    bob = Bob(tmp_path)
    monitor = ContributionMonitor(bob.count, lambda: bob.replica.history.tip)
    grow(bob.replica, 3, [ANN, BOB])
    assert trio.run(monitor.ledger, 9) == ledger(bob.replica.store, 9)
    assert trio.run(monitor.ledger, 1)["untold"] == 1
    bob.replica.state.close()


def test_a_node_that_does_not_run_has_what_is_on_disk(tmp_path: Path) -> None:
    bob = Bob(tmp_path)
    bob.grow([BOB])
    tips: list[Hash | None] = []
    monitor = ContributionMonitor(ContributionCount(RUN.run, BOB.peer_id, tmp_path), lambda: tips.append(None))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(monitor.run)
            while not tips:
                await trio.sleep(0.1)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(rate=100))
    assert monitor.status is not None and monitor.status.rounds == 1
    bob.replica.state.close()
