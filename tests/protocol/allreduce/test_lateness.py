"""Exchange after exchange: who is late without being given up, what it costs, and that nobody can be made to look late.

Seven members own a chunk each.  Parts and averages of honest ones take no time, or that of their lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product

import pytest

from protocol.allreduce.lateness import FOR_PARTS, WINDOW, ExchangeLimits, Patience
from protocol.allreduce.machine import (
    Ask,
    Asked,
    Averaged,
    ContributionReady,
    ExchangeEffect,
    ExchangeEvent,
    ExchangeMachine,
    ExchangeTick,
    Lost,
    PartArrived,
    Reduce,
    ResultArrived,
    SendPart,
    SendResult,
    SignedEarly,
)
from protocol.allreduce.runner import entry_of
from protocol.wire.hashes import chunk_hash
from protocol.wire.identity import Identity, PeerId
from tests.protocol.council import BASE
from tests.protocol.members import a_plan_of
from tests.tiers import first_fast

PEERS = sorted(Identity.from_seed(bytes([number]) * 32).peer_id for number in range(7))
LIARS, VICTIM = PEERS[:2], PEERS[2]
STALL_S, FAIR_S, TICK_S = 10.0, 1.0, 0.25
PLAN = a_plan_of(PEERS, range(7))

Delay = Callable[["Swarm", PeerId, PeerId], float]
"""How late a part, or an average, is that the one owes the other."""


def in_time(swarm: Swarm, sender: PeerId, to: PeerId) -> float:
    return 0.0


@dataclass
class Swarm:
    """All members' exchanges, round after round.  Liars' are honest, but for what they give how late.

    stalled: in each round, who stalled it in the eyes of whom.
    """

    part_s: Delay = in_time
    average_s: Delay = in_time
    round: int = 0
    patience: dict[PeerId, Patience] = field(default_factory=lambda: {peer: Patience() for peer in PEERS})
    limits: dict[PeerId, ExchangeLimits] = field(default_factory=dict)
    machines: dict[PeerId, ExchangeMachine] = field(default_factory=dict)
    stalled: list[dict[PeerId, set[PeerId]]] = field(default_factory=list)
    _signers: dict[tuple[int, bytes], PeerId] = field(default_factory=dict)
    _due: list[tuple[float, PeerId, ExchangeEvent]] = field(default_factory=list)

    def exchange(self) -> float:
        """One round; returns how long it took."""
        base = replace(BASE, round=self.round, electors=tuple(PEERS))
        self._due, now = [], 0.0
        self.limits = {peer: self.patience[peer].limits(peer, PEERS, base, STALL_S, FAIR_S) for peer in PEERS}
        self.machines = {
            peer: ExchangeMachine(peer, PLAN, replace(limits, shares={}), 0.0) for peer, limits in self.limits.items()
        }
        for peer in PEERS:
            self._handle(peer, ContributionReady(), 0.0)
        honest = [self.machines[peer] for peer in PEERS if peer not in LIARS]
        while any(len(machine.entries) < machine.chunks for machine in honest) and now < 100.0:
            ripe = [each for each in self._due if each[0] <= now]
            self._due = [each for each in self._due if each[0] > now]
            for _, to, event in ripe:
                self._handle(to, event, now)
            if not ripe:
                now += TICK_S
                for peer in PEERS:
                    self._handle(peer, ExchangeTick(), now)
        self.stalled.append({})
        for peer, machine in self.machines.items():
            self.stalled[-1][peer] = self.patience[peer].judge_late(peer, machine.observed(), base, STALL_S, FAIR_S)
        self.round += 1
        return now

    def _handle(self, peer: PeerId, event: ExchangeEvent, now: float) -> None:
        if isinstance(event, ResultArrived) and not self.machines[peer].failover.may_sign(event.signer, event.chunk):
            event = SignedEarly(event.signer, event.chunk)
        for effect in self.machines[peer].handle(event, now):
            self._perform(peer, effect, now)

    def _perform(self, peer: PeerId, effect: ExchangeEffect, now: float) -> None:
        if isinstance(effect, Reduce):
            entry = entry_of(chunk_hash(bytes(effect.members)), effect.members, 7)
            self._signers[effect.chunk, entry.hash] = peer
            self._handle(peer, Averaged(effect.chunk, entry), now)
        elif isinstance(effect, SendPart):
            self._due.append((now + self.part_s(self, peer, effect.to), effect.to, PartArrived(peer, effect.chunk)))
        elif isinstance(effect, SendResult):
            entry = self.machines[peer].entries[effect.chunk]
            result = ResultArrived(peer, effect.chunk, entry, self._signers[effect.chunk, entry.hash])
            self._due.append((now + self.average_s(self, peer, effect.to), effect.to, result))
        elif isinstance(effect, Ask):
            self._due.append((now, effect.peer, Asked(peer, effect.chunk)))

    def stalls_of(self, peer: PeerId, *, by: list[PeerId] | None = None) -> list[int]:
        """The rounds in which honest members took this one for one that stalled."""
        judges = [each for each in by or PEERS if each not in LIARS]
        return [round for round, judged in enumerate(self.stalled) if any(peer in judged[each] for each in judges)]


@pytest.mark.parametrize("late_s", [2.0, 2.5, 5.0, 9.0, 30.0])
def test_averages_that_are_late_each_time_are_a_stall_when_it_adds_up(late_s: float) -> None:
    swarm = Swarm(average_s=lambda swarm, sender, to: late_s if sender == LIARS[0] else 0.0)
    took = [swarm.exchange() for _ in range(2 * WINDOW)]
    rounds = swarm.stalls_of(LIARS[0])
    assert rounds and rounds[0] < WINDOW
    assert all(swarm.stalls_of(peer) == [] for peer in PEERS[1:])
    between = sum(took[: rounds[0] + 1])
    assert between <= STALL_S + (rounds[0] + 1) * (FAIR_S + 2 * TICK_S), "what it cost until then"


def withheld(give_s: float | None) -> Delay:
    """Liars give one honest owner its parts so late, or as late as it waits for them (None); all others get them."""

    def part_s(swarm: Swarm, sender: PeerId, to: PeerId) -> float:
        if sender not in LIARS or to != VICTIM:
            return 0.0
        return give_s if give_s is not None else max(0.0, swarm.limits[VICTIM].wait_s - TICK_S)

    return part_s


@pytest.mark.parametrize(
    ("give_s", "line_s"), first_fast(product([FAIR_S, 1000.0, None, FAIR_S + 0.5, 2.0, 5.0, 9.75], [0.0, 0.5]), 6)
)
def test_nobody_can_make_an_honest_owner_late_by_withholding_parts_from_it(give_s: float | None, line_s: float) -> None:
    """Not even where its averages take half a second longer than those of others each time."""
    swarm = Swarm(part_s=withheld(give_s), average_s=lambda swarm, sender, to: line_s if sender == VICTIM else 0.0)
    for _ in range(6 * WINDOW):
        if line_s and swarm.round % 2:
            swarm.average_s = in_time
        swarm.exchange()
    for peer in PEERS:
        if peer not in LIARS:
            assert swarm.stalls_of(peer) == []


def test_an_owner_does_not_wait_longer_than_it_may_for_many_that_take_turns() -> None:
    """Each of two withholds its part from each owner in turn: together they cost an owner no more than one does."""

    def part_s(swarm: Swarm, sender: PeerId, to: PeerId) -> float:
        return 1000.0 if sender in LIARS and to == PEERS[2 + (swarm.round + LIARS.index(sender)) % 5] else 0.0

    swarm = Swarm(part_s=part_s)
    waited = {peer: [0.0] for peer in PEERS[2:]}
    for _ in range(WINDOW):
        swarm.exchange()
        for peer in waited:
            waited[peer].append(max(0.0, swarm.machines[peer].delays.all_s - FAIR_S))
    assert all(sum(seconds) <= FOR_PARTS * STALL_S + TICK_S for seconds in waited.values())


def test_an_owner_is_lost_when_its_averages_are_later_than_it_may_be() -> None:
    swarm = Swarm(average_s=lambda swarm, sender, to: 1000.0 if sender == LIARS[0] else 0.0)
    took = swarm.exchange()
    assert STALL_S < took <= STALL_S + FAIR_S + 2 * TICK_S, "and not twice as long"
    assert all(LIARS[0] in swarm.machines[peer].lost for peer in PEERS[2:])


def test_an_owner_averages_without_those_that_it_waited_for_long_enough() -> None:
    machine = ExchangeMachine(VICTIM, PLAN, ExchangeLimits(STALL_S, wait_s=2.0), 0.0)
    assert machine.handle(ContributionReady(), 0.0)
    for peer in PEERS[3:]:
        machine.handle(PartArrived(peer, 2), 0.0)
    effects = {at / 4: machine.handle(ExchangeTick(), at / 4) for at in range(1, 12)}
    reduced = [(at, effect) for at, each in effects.items() for effect in each if isinstance(effect, Reduce)]
    assert reduced == [(2.5, Reduce(2, (2, 3, 4, 5, 6)))]
    assert not any(isinstance(effect, Lost) for each in effects.values() for effect in each), "they may give averages"
