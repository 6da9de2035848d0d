"""Memory of the peers that stalled rounds lately, and the patience that is left for each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from protocol.allreduce.machine import ExchangeLimits, Observed
from protocol.chain.base import Base
from protocol.chain.electorate import tolerated
from protocol.wire.identity import PeerId

MAX_STALLED = 1024
FIRST_ROUNDS, MAX_ROUNDS = 4, 64
"""Rounds that the first stall costs, and the most rounds that one stall costs."""
WINDOW = 16
"""Rounds for which a peer's missing or late parts are remembered."""
FOR_PARTS = 0.5
"""Fraction of `stall_s` by which parts may be late in `WINDOW` rounds, beyond the fair time.

It limits the parts of one member, and all parts that one owner waits for.  Averages may be late by the whole of `stall_s`:
an honest owner waits half of it for parts.
"""
HURRIED = 0.2
"""Fraction of the time of other peers that a peer on probation gets."""
STRANGERS = PeerId("strangers")
"""Name under which all peers but the electors are remembered together.

Keys cost nothing, so one stall of each key would be too many.  Strangers are out for `FIRST_ROUNDS` at most, because honest
newcomers must be able to come in.
"""


@dataclass
class Conduct:
    """Record of one peer's stalls.

    out_until: the first round in which the peer counts again.  rounds: the rounds that its next stall costs.  good: rounds
    since its last stall in which it counted and did its part.
    """

    out_until: int
    rounds: int
    good: int = 0


class Stalls:
    """Register of stalls, with penalties that grow.

    * The first stall puts a peer on probation: it gets `HURRIED` of the time of others until it has done its part in as many
      rounds as the stall costs.
    * A further stall puts the peer out for that many rounds, then on probation, and doubles the cost of the next one.
    * After `MAX_ROUNDS` good rounds in a row everything is forgotten.  So nobody can stall often.

    lenient: False if the first stall already puts a peer out.
    """

    def __init__(self, *, lenient: bool = True) -> None:
        self._lenient = lenient
        self._conduct: dict[PeerId, Conduct] = {}

    def lost_with(self, peer: PeerId, round: int) -> None:
        """Record that this peer stalled this round."""
        known = self._conduct.pop(peer, None)
        if len(self._conduct) >= MAX_STALLED:
            self._conduct.pop(next(iter(self._conduct)))
        if known is None:
            known = Conduct(round + 1 + (0 if self._lenient else FIRST_ROUNDS), FIRST_ROUNDS)
        elif known.out_until <= round:  # else this round was judged before, or the peer did not count
            out = FIRST_ROUNDS if peer == STRANGERS else known.rounds
            known = Conduct(round + 1 + out, min(2 * known.rounds, MAX_ROUNDS))
        self._conduct[peer] = known

    def suspect(self, peer: PeerId, round: int) -> None:
        """Put a peer on probation from now on, because others say that it stalls.

        Their word never puts a peer out: else peers that do not wait for it could take turns in blaming it for ever.
        """
        if peer in self._conduct:
            self._conduct[peer].good = 0
        else:
            self.lost_with(peer, round)

    def delivered(self, peer: PeerId, round: int) -> None:
        """Credit this peer with its part of this round.

        Only a round in which the peer counts is credited: else it could earn its next stall by being quick while nobody
        waits for it.
        """
        known = self._conduct.get(peer)
        if known is not None and known.out_until <= round:
            known.good += 1
            if known.good >= MAX_ROUNDS:
                del self._conduct[peer]

    @property
    def is_blank(self) -> bool:
        """True if no peer is remembered, so that all get the whole of our patience."""
        return not self._conduct

    def share(self, peer: PeerId, round: int) -> float:
        """Return this peer's fraction of our patience in this round: 1, `HURRIED`, or 0 while it does not count."""
        known = self._conduct.get(peer)
        if known is None:
            return 1.0
        if known.out_until > round:
            return 0.0
        return HURRIED if known.good < known.rounds else 1.0


class Missed:
    """Register of the signers whose averages lacked a peer's parts in the last `WINDOW` rounds."""

    def __init__(self) -> None:
        self._missed: dict[PeerId, dict[PeerId, int]] = {}

    def note(self, missed: Mapping[PeerId, Collection[PeerId]], round: int) -> None:
        """Record that averages of these signers lack these peers' parts in this round."""
        for peer, signers in missed.items():
            self._missed[peer] = self._missed.pop(peer, {}) | dict.fromkeys(signers, round)
        while len(self._missed) > MAX_STALLED:
            self._missed.pop(next(iter(self._missed)))

    def by_more_than(self, liars: int, round: int) -> list[PeerId]:
        """Return the peers whose parts more signers missed than may be liars: each signer missed them for itself."""
        lately = round - WINDOW
        return [peer for peer, by in self._missed.items() if sum(last > lately for last in by.values()) > liars]


class Slowness:
    """Seconds for which peers that were never given up kept us waiting in the last `WINDOW` rounds.

    A peer that is a little less than `stall_s` late each time costs as much as one that stalls.  All peers but the electors
    count as one: else new keys could each be late once, without end.
    """

    def __init__(self) -> None:
        self._seconds: dict[PeerId, dict[int, float]] = {}

    def note(self, delays: Mapping[PeerId, float], base: Base, fair_s: float) -> None:
        """Record the seconds that members kept us waiting in the round on `base`; `fair_s` of them are nobody's fault."""
        for peer, seconds in delays.items():
            if seconds > fair_s:
                rounds = self._seconds.setdefault(_named(peer, base), {})
                rounds[base.round] = max(rounds.get(base.round, 0.0), seconds - fair_s)
        self._seconds = {name: kept for name, rounds in self._seconds.items() if (kept := _lately(rounds, base.round))}

    def left(self, peer: PeerId, base: Base, most_s: float) -> float:
        """Return the rest of `most_s` that this peer has in the round on `base`; negative if it has taken more."""
        return most_s - sum(_lately(self._seconds.get(_named(peer, base), {}), base.round).values())

    def forget(self, peers: Collection[PeerId]) -> None:
        """Forget these peers, whose stall is remembered elsewhere."""
        for peer in peers:
            self._seconds.pop(peer, None)

    def take_beyond(self, most_s: float) -> list[PeerId]:
        """Remove and return the peers that kept us waiting for longer than this in all: that counts as one stall."""
        late = [name for name, rounds in self._seconds.items() if sum(rounds.values()) > most_s]
        for name in late:
            del self._seconds[name]
        return late


def _lately(rounds: Mapping[int, float], round: int) -> dict[int, float]:
    return {each: seconds for each, seconds in rounds.items() if each > round - WINDOW}


def _named(peer: PeerId, base: Base) -> PeerId:
    return peer if peer in base.electors else STRANGERS


class Patience:
    """Memory of one peer from round to round.

    trainers: peers that kept a round from being closed.  proposers: peers under which nothing moved.  members: peers that
    owed something in an exchange.  A peer that is late in one of these roles may be in time in another.

    slowness: delays of parts.  owners: delays of averages.  waits: waits of our own averages for late parts.  used: how much
    of these waits each member took, which a stall does not erase.
    """

    def __init__(self) -> None:
        self.trainers, self.proposers, self.members = Stalls(), Stalls(lenient=False), Stalls()
        self.missed, self.slowness = Missed(), Slowness()
        self.owners, self.waits, self.used = Slowness(), Slowness(), Slowness()

    def limits(self, me: PeerId, members: Collection[PeerId], base: Base, stall_s: float, fair_s: float) -> ExchangeLimits:
        """Return our limits in an exchange of these members.  fair_s: seconds that are nobody's fault."""
        electors = [peer for peer in members if peer in base.electors]
        return ExchangeLimits(
            stall_s=stall_s,
            wait_s=fair_s + self.waits.left(me, base, FOR_PARTS * stall_s),
            owner_s={peer: fair_s + self.owners.left(peer, base, stall_s) for peer in members if peer != me},
            jury=electors if tolerated(len(electors)) else [],  # keys of strangers cost nothing
            shares={peer: share_of(self.members, base, peer) for peer in members},
        )

    def judge_exchange(
        self, me: PeerId, members: Collection[PeerId], base: Base, seen: Observed, stall_s: float, fair_s: float
    ) -> None:
        """Remember which members of a record stalled its exchange; the others did well."""
        named = {*members}
        seen = replace(seen, left_out=named & {*seen.left_out}, stalled=named & {*seen.stalled})
        judge(self.members, base, self.judge_late(me, seen, base, stall_s, fair_s), members, each=True)

    def judge_missed(self, missed: Mapping[PeerId, Collection[PeerId]], base: Base) -> None:
        """Put peers on probation whose parts are missing in averages of several electors.

        Otherwise a peer could stall one elector after the other.  A few liars cannot take a peer's good name by leaving it
        out of their averages.  missed: by peer, the signers of the averages that lack its parts.
        """
        self.missed.note(missed, base.round)
        for peer in self.missed.by_more_than(tolerated(len(base.electors)), base.round):
            self.members.suspect(_named(peer, base), base.round)

    def judge_late(self, me: PeerId, seen: Observed, base: Base, stall_s: float, fair_s: float) -> set[PeerId]:
        """Return the peers that stalled the exchange of the round on `base`.

        They are members that were given up, members that were late for too long in `WINDOW` rounds, and members that we
        waited no longer for because at least half of our waiting time had been spent on them.
        """
        parts_s = FOR_PARTS * stall_s
        self.waits.note({me: seen.waited_s}, base, fair_s)
        for slowness, seconds in ((self.used, seen.delays), (self.slowness, seen.delays), (self.owners, seen.lateness)):
            slowness.note(seconds, base, fair_s)
        late = {*seen.stalled, *(peer for peer in seen.left_out if self.used.left(peer, base, parts_s / 2) <= 0)}
        for slowness, most_s in ((self.slowness, parts_s), (self.owners, stall_s)):
            slowness.forget(late)
            late |= {*slowness.take_beyond(most_s)}
        self.slowness.forget(late)
        return late


def is_tenured(base: Base, peer: PeerId) -> bool:
    """Return True if this peer is judged by itself, as an elector or a contributor to the last record."""
    return peer in base.electors or peer in base.contributors


def share_of(stalls: Stalls, base: Base, peer: PeerId) -> float:
    """Return the fraction of our patience that this peer has in the round on `base`.

    A peer that is no elector has no more than all strangers together.
    """
    if stalls.is_blank:
        return 1.0
    own = stalls.share(peer, base.round)
    return own if peer in base.electors else min(own, stalls.share(STRANGERS, base.round))


def judge(stalls: Stalls, base: Base, late: Collection[PeerId], good: Collection[PeerId], *, each: bool = False) -> None:
    """Remember which peers kept the round on `base` waiting, and which did their part.

    each: True if strangers are remembered by name as well; they are few.  A stall of a peer that is no elector counts
    against all strangers: else new keys could come in to stall once each.
    """
    outsiders = {peer for peer in {*late, *good} if peer not in base.electors}
    named = {peer for peer in {*late, *good} if each or is_tenured(base, peer)}
    stalled = (named & {*late}) | ({STRANGERS} if outsiders & {*late} else set())
    for peer in sorted(stalled):
        stalls.lost_with(peer, base.round)
    for peer in sorted((named | ({STRANGERS} if outsiders else set())) - stalled):
        stalls.delivered(peer, base.round)
