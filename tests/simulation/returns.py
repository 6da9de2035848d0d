"""`python -m tests.simulation.returns`: rounds lost when peers were away and come back, as a table.

Two to eight peers train together.  Some of them are asleep, cut off, killed or without their disk for half a minute, ten
minutes or a night, and then return.  For each cell the table names the rounds that either part of the swarm lost, and the
seconds until a record has members of both parts again.  At the end all peers must have one tip and one state, and no record
that a peer called final may be missing.

The parts: those that stayed are the majority of the work, unless the others went on, too, because they were cut off.  Then
it is the part whose members have more than half of the tokens of the last common records, as the chain says.

    python -m tests.simulation.returns [--only WORDS ...] [--seed 1] [--json]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import groupby

import trio

from protocol.events.events import Event, RoundCommitted, RoundsConfirmed, StateApplied
from protocol.run.admission import bearer_token, make_proof
from protocol.run.manifest import Admission, SignedManifest, sign
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from tests.simulation.runs import simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World, seat_identity, simulated_run

PEERS = (2, 3, 4, 5, 8)
COMMON_RECORDS = 16
"""Last records that both parts have, whose tokens decide which part is the majority of the work."""
BEFORE_ROUNDS = COMMON_RECORDS + 2
"""Records of all peers before the absence: everybody is seasoned then, and equal numbers have equal shares of the work.  The
first two may have less work of peers that joined in the middle of a round."""
AFTER_ROUNDS = 3
"""Records that follow the first one with a returned peer, before the peers are compared."""
CONNECTED_S = 30.0
"""Seconds until the connections of a sleeping peer break."""
BACK_WITHIN_S, BACK_WITHIN_ROUNDS = 240.0, 8
"""Deadline for the next record with a returned peer: seconds, plus lengths of a round."""
LULL_AFTER_S, LULL_TICK_S, LULL_SLOWNESS = 120.0, 10.0, 48.0
"""Of a long absence, all but the first and the last seconds are a lull: peers sleep for at least so long, and an inner step
takes so many times longer, so that a night has about fifty rounds and few ticks."""
STANDSTILL_S = 600.0
"""Absence (s) from which on those that stayed must have made a round."""

ORGANISER, BEARER = (Identity.from_seed(bytes([number]) * 32) for number in (0x2A, 0x2B))
NEVER_EXPIRES_S = 1_000_000


class Absence(StrEnum):
    """Kind of an absence.  The clock of a suspended computer stands still; that of a sleeping one runs on."""

    ASLEEP = "asleep"
    SUSPENDED = "suspended"
    CUT_OFF = "cut off"
    KILLED = "killed"
    LOST_DISK = "lost its disk"


class Entry(StrEnum):
    """Kind of a run, by who may enter and begin it."""

    OPEN = "open"
    INVITE = "invite"
    ANYONE = "anyone"


LENGTHS = {30.0: "30 s", 600.0: "10 min", 28_800.0: "8 h"}
STEPS_S = {30.0: 0.25, 600.0: 1.0, 28_800.0: 1.0}
"""Seconds of an inner step by the absence (s)."""


def absentees(peers: int) -> dict[str, range]:
    """Return the sets of absent seats that make sense for so many peers.  The founder has seat 0."""
    chosen = {"the founder": range(1), "another": range(1, 2)}
    if peers >= 5:
        chosen["a minority"] = range((peers - 1) // 2)
    if peers >= 4 and peers % 2 == 0:
        chosen["exactly half"] = range(peers // 2)
    if peers >= 3:
        chosen["a majority"] = range(peers // 2 + 1)
        chosen["all but the founder"] = range(1, peers)
    return chosen


@dataclass(frozen=True)
class Cell:
    """One absence: `who` of so many peers, for `away_s` seconds."""

    entry: Entry
    peers: int
    who: str
    absence: Absence
    away_s: float

    @property
    def absent(self) -> range:
        """The seats that are away."""
        return absentees(self.peers)[self.who]

    def __str__(self) -> str:
        return f"{self.entry}, {self.peers} peers, {self.who} {self.absence} {LENGTHS[self.away_s]}"


def cells() -> Iterator[Cell]:
    """Yield all cells of the table.  All but the founder are never cut off: the cell of the founder is the same."""
    for entry in Entry:
        for peers in PEERS:
            for who in absentees(peers):
                for absence in Absence:
                    if (who, absence) != ("all but the founder", Absence.CUT_OFF):
                        yield from (Cell(entry, peers, who, absence, away_s) for away_s in LENGTHS)


@dataclass(frozen=True)
class Outcome:
    """Result of a cell.  Figures are None if the simulation ended before they were known.

    meanwhile: rounds that those that stayed made during the absence.  lost_by_most: rounds lost by the majority of the work,
    at most by any peer.  lost_by_rest: rounds lost by the others, beyond the running one.  back_s: from the return to the
    next record that stays and has members of both parts.  flaws: sentences; empty if all peers end on one tip with one
    state, and final records stayed.
    """

    cell: Cell
    meanwhile: int | None = None
    lost_by_most: int | None = None
    lost_by_rest: int | None = None
    back_s: float | None = None
    flaws: tuple[str, ...] = ()

    def missed(self) -> list[str]:
        """Return a sentence for each bar that the cell misses.

        In an open run whose founder was cut off, the founder decides.  Of two parts that went on, one loses its rounds.
        """
        cell, found = self.cell, list(self.flaws)
        parted = cell.absence is Absence.CUT_OFF
        if self.lost_by_most and not (parted and cell.entry is Entry.OPEN):
            found.append(f"the majority of the work lost {self.lost_by_most} rounds")
        if self.lost_by_rest and not parted:
            found.append(f"those that returned lost {self.lost_by_rest} rounds")
        if self.meanwhile == 0 and cell.away_s >= STANDSTILL_S:
            found.append("those that stayed made no round")
        return found


@lru_cache(maxsize=16)
def run_of(entry: Entry, seed: int) -> SignedManifest:
    """Return the run: founded by seat 0, or by anyone."""
    update: dict[str, object] = {"admission": Admission.INVITE if entry is Entry.INVITE else Admission.OPEN}
    if entry is not Entry.ANYONE:
        update["founders"] = [seat_identity(seed, 0).peer_id]
    return sign(ORGANISER, simulated_run().manifest.model_copy(update=update))


class ReturnRecorder:
    """Listener that notes records, and what peers call final.

    first: time and members of each record, by its hash.  flaws: sentences about final records.
    """

    def __init__(self, world: World) -> None:
        self.first: dict[str, tuple[float, frozenset[str]]] = {}
        self.flaws: dict[str, None] = {}
        self._world = world
        self._final: dict[int, Hash] = {}
        """Tip after so many final rounds, as the first peer said."""
        self._known = dict.fromkeys((seat.number for seat in world.seats), 0)
        """Rounds that a seat has called final."""
        world.listeners.append(self._listen)

    def forget(self, seat: Seat) -> None:
        """Expect nothing of a peer that lost its disk; what it called final binds the others still."""
        self._known[seat.number] = 0

    def check_final(self, chain: Sequence[Hash]) -> None:
        """Note a flaw for a final record that is not in the chain on which all peers end."""
        for rounds, tip in self._final.items():
            if rounds > len(chain) or chain[rounds - 1] != tip:
                self.flaws[f"round {rounds - 1} was final and is not in the common chain"] = None
                return

    def first_record_of(self, records: Collection[str], parts: Iterable[set[PeerId]], since: float) -> float | None:
        """Return the time of the first of these records after `since` with a member of each part; None without any."""
        sides = list(parts)
        times = (
            at
            for tip, (at, members) in self.first.items()
            if at > since and tip in records and all(members & side for side in sides)
        )
        return min(times, default=None)

    def _listen(self, seat: Seat, event: Event) -> None:
        if isinstance(event, RoundCommitted):
            self.first.setdefault(event.tip, (self._world.now(), frozenset(event.members)))
        if isinstance(event, RoundCommitted | StateApplied | RoundsConfirmed) and seat.node is not None:
            self._note_final(seat)

    def _note_final(self, seat: Seat) -> None:
        node, known = seat.node, self._known[seat.number]
        assert node is not None
        if known and (node.rounds < known or node.tip_at(known) != self._final[known]):
            self.flaws[f"peer {seat.number} gave up round {known - 1}, which it had called final"] = None
            return
        final = node.status().final_rounds
        for rounds in range(known + 1, final + 1):
            tip = node.tip_at(rounds)
            if self._final.setdefault(rounds, tip) != tip:
                self.flaws[f"round {rounds - 1} is final as two records"] = None
                return
        self._known[seat.number] = max(known, final)


def chain_of(seat: Seat) -> list[Hash]:
    """Return the hashes of all records of this peer."""
    assert seat.node is not None
    return [seat.node.tip_at(rounds) for rounds in range(1, seat.node.rounds + 1)]


def common_length(chains: Sequence[Sequence[Hash]]) -> int:
    """Return how many records all these chains share."""
    shortest = min(map(len, chains))
    return next((each for each in range(shortest) if len({chain[each] for chain in chains}) > 1), shortest)


class AbsenceScenario:
    """One cell, played in a world.  outcome: known at the end."""

    def __init__(self, cell: Cell, seed: int) -> None:
        self.cell, self.outcome = cell, Outcome(cell)
        self._seed = seed

    async def __call__(self, world: World) -> None:
        cell, recorder = self.cell, ReturnRecorder(world)
        self._prepare(world)
        away = [world.seats[number] for number in cell.absent]
        stayed = [seat for seat in world.seats if seat not in away]
        await self._begin(world)
        left = {seat.number: chain_of(seat) for seat in world.seats}
        await self._be_away(world, recorder, stayed, away)
        went_on = stayed if cell.absence is not Absence.CUT_OFF else world.seats
        held = left | {seat.number: chain_of(seat) for seat in went_on}
        meanwhile = max(len(held[seat.number]) - len(left[seat.number]) for seat in stayed)
        most = self._majority_of_the_work(stayed, away, held)
        self._come_back(world, away)
        returned_at = world.now()

        def back_s() -> float | None:
            common = {tip.hex() for tip in chain_of(stayed[0])}
            at = recorder.first_record_of(common, ({seat.peer for seat in part} for part in (stayed, away)), returned_at)
            return None if at is None else at - returned_at

        limit_s = BACK_WITHIN_S + BACK_WITHIN_ROUNDS * self._round_s
        flaws: list[str] = []
        if not await holds_within(limit_s, lambda: back_s() is not None):
            flaws.append(f"no record of both parts within {limit_s:.0f} s of the return")
        else:
            goal = max(world.rounds()) + AFTER_ROUNDS
            if not await holds_within(limit_s, lambda: are_equal(world) and min(world.rounds()) >= goal):
                flaws.append(f"no common tip and state within {limit_s:.0f} s of the first record of both parts")
        ends = [chain_of(seat) for seat in world.seats if seat.node is not None]
        common = ends[0][: common_length(ends)]
        if not flaws:
            recorder.check_final(common)
        lost = {number: len(chain) - common_length([chain, common]) for number, chain in held.items()}
        lost_by = [max(lost[seat.number] for seat in part) for part in (stayed, away)]
        if most is None:
            lost_by.sort()
        elif most is away:
            lost_by.reverse()
        self.outcome = Outcome(cell, meanwhile, lost_by[0], lost_by[1], back_s(), (*recorder.flaws, *flaws))

    @property
    def _round_s(self) -> float:
        return 1.4 * STEPS_S[self.cell.away_s] * simulated_run().manifest.rounds.inner_steps

    def _prepare(self, world: World) -> None:
        run = run_of(self.cell.entry, self._seed).run
        token = bearer_token(ORGANISER, run, BEARER, expires=NEVER_EXPIRES_S)
        for seat in world.seats:
            seat.step_s = STEPS_S[self.cell.away_s] * world.random.uniform(1.0, 1.3)
            if self.cell.entry is Entry.INVITE:
                seat.admission = make_proof(token, run, seat.peer, BEARER)
                seat.introduced = frozenset({world.seats[0].peer} - {seat.peer})

    async def _begin(self, world: World) -> None:
        """The founder makes a record; the others join; all are members of some records; then any moment of a round."""
        founder, *others = world.seats
        world.start(founder)
        await world.until_round(1, within_s=BACK_WITHIN_S + 4 * self._round_s)
        for seat in others:
            world.start(seat)
        everybody = {seat.peer for seat in world.seats}

        def have_trained_together() -> bool:
            node = founder.node
            if node is None or node.rounds < BEFORE_ROUNDS:
                return False
            last = [node.commit_at(round).record for round in range(node.rounds - BEFORE_ROUNDS, node.rounds)]
            return all({PeerId(member.peer) for member in record.members} == everybody for record in last)

        await world.until(
            "some records of everybody", have_trained_together, BACK_WITHIN_S + 4 * BEFORE_ROUNDS * self._round_s
        )
        await trio.sleep(world.random.uniform(0.0, self._round_s))

    async def _be_away(self, world: World, recorder: ReturnRecorder, stayed: list[Seat], away: list[Seat]) -> None:
        cell, faults = self.cell, world.faults
        connected_s = 0.0
        match cell.absence:
            case Absence.ASLEEP | Absence.SUSPENDED:
                for seat in away:
                    faults.freeze(seat)
                connected_s = min(CONNECTED_S, cell.away_s)
                await trio.sleep(connected_s)
                if cell.away_s > connected_s:
                    faults.partition(stayed, *([seat] for seat in away))
            case Absence.CUT_OFF:
                faults.partition(stayed, away)
            case Absence.KILLED:
                for seat in away:
                    faults.kill(seat)
            case Absence.LOST_DISK:
                for seat in away:
                    faults.lose_disk(seat)
                    recorder.forget(seat)
        await self._stay_away(stayed + away, cell.away_s - connected_s)

    async def _stay_away(self, seats: list[Seat], seconds: float) -> None:
        """Let the absence pass, with few ticks in the middle of a long one."""
        lull_s = seconds - 2 * LULL_AFTER_S
        if lull_s > LULL_AFTER_S * LULL_SLOWNESS:
            await trio.sleep(LULL_AFTER_S)
            set_pace(seats, LULL_TICK_S, LULL_SLOWNESS)
            await trio.sleep(lull_s)
            set_pace(seats, 0.0, 1 / LULL_SLOWNESS)
            seconds = LULL_AFTER_S
        await trio.sleep(seconds)

    def _come_back(self, world: World, away: list[Seat]) -> None:
        if self.cell.absence in (Absence.KILLED, Absence.LOST_DISK):
            for seat in away:
                world.start(seat)
            return
        world.faults.heal()
        for seat in away:
            world.faults.thaw(seat, self.cell.away_s if self.cell.absence is Absence.SUSPENDED else 0.0)

    def _majority_of_the_work(self, stayed: list[Seat], away: list[Seat], held: dict[int, list[Hash]]) -> list[Seat] | None:
        """Return the part that must lose nothing; None if both parts went on and have equal shares."""
        if self.cell.absence is not Absence.CUT_OFF:
            return stayed
        common, node = common_length([*held.values()]), stayed[0].node
        assert node is not None
        tokens = dict.fromkeys((seat.peer for seat in (*stayed, *away)), 0)
        for round in range(max(0, common - COMMON_RECORDS), common):
            for member in node.commit_at(round).record.members:
                tokens[PeerId(member.peer)] += member.tokens
        ours, theirs = (sum(tokens[seat.peer] for seat in part) for part in (stayed, away))
        return None if ours == theirs else stayed if ours > theirs else away


async def holds_within(limit_s: float, condition: Callable[[], bool]) -> bool:
    """Let virtual time pass until it holds, at most so long; return True if it does."""
    with trio.move_on_after(limit_s):
        while not condition():
            await trio.sleep(0.25)
        return True
    return False


def set_pace(seats: Sequence[Seat], least_sleep_s: float, slowness: float) -> None:
    """Let these peers sleep for at least so long, and their inner steps take so many times longer than now."""
    for seat in seats:
        seat.step_s *= slowness
        if seat.process is not None:
            seat.process.least_sleep_s = least_sleep_s
        if seat.trainer is not None:
            seat.trainer.step_s = seat.step_s


def are_equal(world: World) -> bool:
    """Return True if all peers have one tip and one state."""
    nodes = [seat.node for seat in world.seats]
    return len({(node.tip, node.state_mark) if node is not None else None for node in nodes}) == 1 and None not in nodes


def play(cell: Cell, seed: int = 1) -> Outcome:
    """Simulate one cell."""
    scenario = AbsenceScenario(cell, seed)
    run = simulate(cell.peers, scenario, seed, signed=run_of(cell.entry, seed))
    if run.failure is None:
        return scenario.outcome
    return Outcome(**{**vars(scenario.outcome), "flaws": (*scenario.outcome.flaws, run.failure)})


def _job(job: tuple[Cell, int]) -> Outcome:
    return play(*job)


def shown(outcome: Outcome) -> str:
    """Return a cell of the table: rounds lost by most / by the rest, of how many; seconds until both parts were together."""
    lost = " / ".join("-" if each is None else str(each) for each in (outcome.lost_by_most, outcome.lost_by_rest))
    made = "-" if outcome.meanwhile is None else outcome.meanwhile
    back = "never" if outcome.back_s is None else f"{outcome.back_s:.0f} s"
    return f"{'! ' if outcome.missed() else ''}{lost} of {made}, {back}"


def rows(outcomes: Iterator[Outcome]) -> Iterator[tuple[str, list[Outcome]]]:
    """Yield the rows of the table as they are known: one for all lengths of an absence."""
    for (entry, peers, who, absence), group in groupby(
        outcomes, lambda outcome: (outcome.cell.entry, outcome.cell.peers, outcome.cell.who, outcome.cell.absence)
    ):
        row = list(group)
        by_length = {outcome.cell.away_s: shown(outcome) for outcome in row}
        yield f"| {entry} | {peers} | {who} | {absence} | {' | '.join(by_length.get(each, '') for each in LENGTHS)} |", row


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.returns", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="WORDS", help="cells whose names contain each of these")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    arguments = parser.parse_args()
    chosen = [cell for cell in cells() if all(words in f"{cell}," for words in arguments.only)]
    if not chosen:
        parser.error("no cell has these words in its name")
    began, outcomes = time.perf_counter(), list[Outcome]()
    print("Rounds lost by the majority of the work / by the rest, of those made meanwhile; time to a record of both parts.")
    print(f"| run | peers | away | how | {' | '.join(LENGTHS.values())} |\n|{'---|' * (4 + len(LENGTHS))}", flush=True)
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for row, found in rows(pool.imap(_job, [(cell, arguments.seed) for cell in chosen])):
            print(row, flush=True)
            outcomes += found
    missed = {str(outcome.cell): outcome.missed() for outcome in outcomes if outcome.missed()}
    took_s = time.perf_counter() - began
    print(f"\n{len(outcomes)} cells in {took_s:.0f} s; {len(missed)} miss a bar")
    for name, sentences in missed.items():
        print(f"  {name}: {'; '.join(sentences)}")
    if arguments.json:
        fields = [{**asdict(outcome), "missed": outcome.missed()} for outcome in outcomes]
        print(json.dumps({"seconds": took_s, "seed": arguments.seed, "cells": fields, "missed": missed}))
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
