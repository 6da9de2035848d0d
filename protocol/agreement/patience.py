"""Which peers have stalled rounds lately, and how much of our patience they have left."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from protocol.chain.base import Base
from protocol.wire.identity import PeerId

MAX_STALLED = 1024
FIRST_ROUNDS, MAX_ROUNDS = 4, 64
"""Rounds that the first stall costs, and the most that one costs."""
WINDOW = 16
"""Rounds for which it counts that a peer's parts were missing somewhere, or late."""
FOR_PARTS = 0.5
"""Of `stall_s`: how late parts may be in `WINDOW` rounds, beyond the fair time, those of a member or all that an owner waits
for.  Averages may be late for all of it: half of that is for the parts that an honest owner waits for."""
HURRIED = 0.2
"""Of the time that others get, for a peer on probation."""
STRANGERS = PeerId("strangers")
"""The name under which all peers but the electors are remembered together: keys cost nothing, and a stall of each of them
would be one too many.  They are out for `FIRST_ROUNDS` at the most: honest newcomers have to come in."""


@dataclass
class Conduct:
    """What one peer has done.  out_until: the first round in which it counts again.  rounds: what its next stall costs.

    good: rounds in which it counted and did its part since its last stall.
    """

    out_until: int
    rounds: int
    good: int = 0


class Stalls:
    """The first stall puts a peer on probation: it gets `HURRIED` of the time that others get, until it has done its part
    in so many rounds as the stall costs.  A further one puts it out for so many rounds, on probation after them, and costs
    twice as many as the last.  `MAX_ROUNDS` good rounds in a row, and all is forgotten: so nobody can stall often.

    lenient: False, where the first stall puts it out, too.
    """

    def __init__(self, *, lenient: bool = True) -> None:
        self._lenient = lenient
        self._conduct: dict[PeerId, Conduct] = {}

    def lost_with(self, peer: PeerId, round: int) -> None:
        """This peer stalled this round."""
        known = self._conduct.pop(peer, None)
        if len(self._conduct) >= MAX_STALLED:
            self._conduct.pop(next(iter(self._conduct)))
        if known is None:
            known = Conduct(round + 1 + (0 if self._lenient else FIRST_ROUNDS), FIRST_ROUNDS)
        elif known.out_until <= round:  # else this round was judged, or it did not count
            out = FIRST_ROUNDS if peer == STRANGERS else known.rounds
            known = Conduct(round + 1 + out, min(2 * known.rounds, MAX_ROUNDS))
        self._conduct[peer] = known

    def suspect(self, peer: PeerId, round: int) -> None:
        """Others say that this peer stalls.  That is no more than a reason for probation, from now on: were it one to put a
        peer out, those that do not wait for it could blame it in turns for ever."""
        if peer in self._conduct:
            self._conduct[peer].good = 0
        else:
            self.lost_with(peer, round)

    def delivered(self, peer: PeerId, round: int) -> None:
        """This peer did its part of this round.  That is to its credit only in a round in which it counts: nobody stalls the
        next round because it was quick while nobody waited for it."""
        known = self._conduct.get(peer)
        if known is not None and known.out_until <= round:
            known.good += 1
            if known.good >= MAX_ROUNDS:
                del self._conduct[peer]

    @property
    def is_blank(self) -> bool:
        """Whether nobody is remembered, so that all get the whole of our patience."""
        return not self._conduct

    def share(self, peer: PeerId, round: int) -> float:
        """The part of our patience that this peer has in this round: 1, `HURRIED`, or 0 while it does not count."""
        known = self._conduct.get(peer)
        if known is None:
            return 1.0
        if known.out_until > round:
            return 0.0
        return HURRIED if known.good < known.rounds else 1.0


class Missed:
    """In whose averages a peer's parts were missing in the last `WINDOW` rounds."""

    def __init__(self) -> None:
        self._missed: dict[PeerId, dict[PeerId, int]] = {}

    def note(self, missed: Mapping[PeerId, Collection[PeerId]], round: int) -> None:
        """Averages of these signers lack this peer's parts in this round."""
        for peer, signers in missed.items():
            self._missed[peer] = self._missed.pop(peer, {}) | dict.fromkeys(signers, round)
        while len(self._missed) > MAX_STALLED:
            self._missed.pop(next(iter(self._missed)))

    def by_more_than(self, liars: int, round: int) -> list[PeerId]:
        """The peers that more signers missed than may be liars: each missed it for itself."""
        lately = round - WINDOW
        return [peer for peer, by in self._missed.items() if sum(last > lately for last in by.values()) > liars]


class Slowness:
    """For how long peers that were never given up kept us waiting in the last `WINDOW` rounds.

    Whoever comes a little less than `stall_s` late each time costs as much as who stalls.  All but the electors count as
    one: else ever new keys could each be late once.
    """

    def __init__(self) -> None:
        self._seconds: dict[PeerId, dict[int, float]] = {}

    def note(self, delays: Mapping[PeerId, float], base: Base, fair_s: float) -> None:
        """Members kept us waiting for so many seconds in the round on `base`; `fair_s` of them are nobody's fault."""
        for peer, seconds in delays.items():
            if seconds > fair_s:
                rounds = self._seconds.setdefault(_named(peer, base), {})
                rounds[base.round] = max(rounds.get(base.round, 0.0), seconds - fair_s)
        self._seconds = {name: kept for name, rounds in self._seconds.items() if (kept := _lately(rounds, base.round))}

    def left(self, peer: PeerId, base: Base, most_s: float) -> float:
        """What is left to this peer of `most_s` in the round on `base`; below 0, where it took more."""
        return most_s - sum(_lately(self._seconds.get(_named(peer, base), {}), base.round).values())

    def forget(self, peers: Collection[PeerId]) -> None:
        """These have stalled, and that is remembered elsewhere."""
        for peer in peers:
            self._seconds.pop(peer, None)

    def take_beyond(self, most_s: float) -> list[PeerId]:
        """Those that kept us waiting for longer than this in all: that is a stall, and counts as one once."""
        late = [name for name, rounds in self._seconds.items() if sum(rounds.values()) > most_s]
        for name in late:
            del self._seconds[name]
        return late


def _lately(rounds: Mapping[int, float], round: int) -> dict[int, float]:
    return {each: seconds for each, seconds in rounds.items() if each > round - WINDOW}


def _named(peer: PeerId, base: Base) -> PeerId:
    return peer if peer in base.electors else STRANGERS


@dataclass(frozen=True)
class Allowed:
    """For one exchange, in seconds: how long our averages may wait for late parts, and how late those of others may be."""

    wait_s: float
    owner_s: Mapping[PeerId, float]


@dataclass(frozen=True)
class Seen:
    """Of the exchanges of a round, in seconds: how late the parts (`delays`) and averages (`lateness`) of members were that
    were not given up, and how long our averages waited for parts.  left_out: members for which they did not wait longer.
    stalled: members that were given up."""

    delays: Mapping[PeerId, float]
    lateness: Mapping[PeerId, float]
    waited_s: float
    left_out: Collection[PeerId]
    stalled: Collection[PeerId]


class Patience:
    """What one peer remembers from round to round.  trainers: that kept a round from being closed; proposers: under whom
    nothing moved; members: that owed something in an exchange.  Who is late as one of them may be in time as another.

    slowness: of parts.  owners: of averages.  waits: for how long our own averages waited for late parts; used: of that, for
    whose, which is not forgotten with a stall.
    """

    def __init__(self) -> None:
        self.trainers, self.proposers, self.members = Stalls(), Stalls(lenient=False), Stalls()
        self.missed, self.slowness = Missed(), Slowness()
        self.owners, self.waits, self.used = Slowness(), Slowness(), Slowness()

    def allow(self, me: PeerId, others: Collection[PeerId], base: Base, stall_s: float, fair_s: float) -> Allowed:
        """How long we and others may be late in an exchange of the round on `base`.  fair_s: that is nobody's fault."""
        return Allowed(
            fair_s + self.waits.left(me, base, FOR_PARTS * stall_s),
            {peer: fair_s + self.owners.left(peer, base, stall_s) for peer in others},
        )

    def judge_late(self, me: PeerId, seen: Seen, base: Base, stall_s: float, fair_s: float) -> set[PeerId]:
        """Who has stalled the exchange of the round on `base`, with those that were late in too many, and those that we did
        not wait for any longer because half of our waiting, or more, had been for them."""
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
    """Whether this peer is judged for itself: electors and contributors to the last record are."""
    return peer in base.electors or peer in base.contributors


def share_of(stalls: Stalls, base: Base, peer: PeerId) -> float:
    """The part of our patience that this peer has in the round on `base`; but for electors no more than all together."""
    if stalls.is_blank:
        return 1.0
    own = stalls.share(peer, base.round)
    return own if peer in base.electors else min(own, stalls.share(STRANGERS, base.round))


def judge(stalls: Stalls, base: Base, late: Collection[PeerId], good: Collection[PeerId], *, each: bool = False) -> None:
    """Remember who kept the round on `base` waiting, and who did its part.

    A stall of anybody but an elector counts against all strangers: else ever new keys could come in to stall once.
    each: whether strangers are remembered by name, too; they are few.
    """
    outsiders = {peer for peer in {*late, *good} if peer not in base.electors}
    named = {peer for peer in {*late, *good} if each or is_tenured(base, peer)}
    stalled = (named & {*late}) | ({STRANGERS} if outsiders & {*late} else set())
    for peer in sorted(stalled):
        stalls.lost_with(peer, base.round)
    for peer in sorted((named | ({STRANGERS} if outsiders else set())) - stalled):
        stalls.delivered(peer, base.round)
