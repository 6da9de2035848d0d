"""Rules about late peers: the longest wait of a round for a peer, and the shorter time for a peer that made others wait.

1. **Late.**  A member is late once it has needed `1 + SPREAD` times as long as most members.  This holds for the parts that
   it owes to us as an owner, and for the averages that it owes as an owner (`AverageDeadline`).  So neither the length of a
   round nor the speed of the lines has to be known.
2. **Slack.**  A member may be late by the fair time, for which its work is worth waiting (`fair_time`), and beyond that by a
   part of `stall_s`, which it gets back in `WINDOW` rounds (`Slack`).  Then we give up its averages.  For late parts we wait
   half as long, and then average without them.  So nobody makes an honest owner late by withholding parts from it.
3. **Silence.**  Before most members have delivered, nobody is late.  A member is then lost when it has been silent for
   `stall_s` and `1 + SPREAD` times the pace of the others; an owner, which may itself be waiting, after twice that time
   (`SilenceTracker`).
4. **Exclusion with exponential backoff.**  A peer that was given up or left out, or that used up its slack, has stalled the
   round (`ExclusionBackoff`).  After the first stall it is on probation.  After each further one nobody waits for it in
   `FIRST_ROUNDS` rounds, then in twice as many, up to `MAX_ROUNDS`.

The jury that sets the pace consists of the electors among the members, if there are enough to tolerate a liar; otherwise
it is all members.  Strangers are remembered under one common name, and each also under its own, because keys cost nothing.

Two timers are kept elsewhere, because they need no memory of peers: the timeout of an attempt's proposer, which doubles
after each attempt given up (`protocol.agreement.round_state`), and the time for trainers that are not ready
(`protocol.agreement.policy`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from protocol.chain.base import Base
from protocol.chain.electorate import tolerated
from protocol.wire.identity import PeerId

LATE = 0.75
"""Time after which one more trainer or member is late, as a fraction of the time that the others took, per member."""
SPREAD = 0.5
"""Fraction by which the other members may take longer than most members took since the exchange began.

No two lines are equally fast.  The wait costs almost nothing if exchanges are short compared with the work, and half an
exchange if they are long.  The fraction is clearly larger than the difference in bandwidth that the shares of chunks ignore
(`protocol.allreduce.assignment.ALIKE`).
"""
CHUNK_TIMES = 6.0
"""Multiple of `stall_s` for which bytes of one chunk count as a sign of life: a line may carry several chunks at once."""
LONGEST_S = 1.0
"""Longest time (s) counted between two ticks: if more time passed, we slept, and no other member is to blame."""
SLACK, SLACK_FOR_PARTS = 0.5, 0.25
"""Seconds by which an owner's averages may be late beyond the fair time, and for which it may wait for late parts: as
fractions of `stall_s`.  The rest is for the owner's own delays."""
WINDOW = 16
"""Number of rounds that give all slack back, and number of rounds of a probation."""
FIRST_ROUNDS, MAX_ROUNDS = 4, 64
"""Number of rounds of the first exclusion, and of the longest."""
MAX_STALLED = 1024
HURRIED = 0.2
"""Fraction of the usual time that a trainer on probation gets to become ready."""
STRANGERS = PeerId("strangers")
"""Name under which all peers except the electors are remembered together.

Keys cost nothing, so one stall for each key would be too many.  Strangers are excluded for at most `FIRST_ROUNDS`, because
honest newcomers must be able to join.
"""


def fair_time(took_s: float, members: int) -> float:
    """Return the time (s) after which one of `members` members is late: its work is worth that time.

    took_s: the time (s) that the other members took for their work.
    """
    return LATE * took_s / members


@dataclass(frozen=True)
class ExchangeLimits:
    """Limits on the time that we wait in one exchange.

    stall_s: seconds for which a member that owes us a part may be silent if lines are quick.  late_s: for each member, the
    seconds by which its averages may be late; for ourselves, the seconds for which our averages may wait for late parts.  A
    member without an entry is never too late.  jury: the members by which lateness is judged; empty for all members.
    ignored: members for which we do not wait; their chunks count if they arrive in time.
    """

    stall_s: float
    late_s: Mapping[PeerId, float] = field(default_factory=dict[PeerId, float])
    jury: Sequence[PeerId] = ()
    ignored: Collection[PeerId] = ()


@dataclass(frozen=True)
class Observed:
    """Observations of lateness in an exchange.

    late_s: seconds by which the averages of other members were late, and for ourselves, for which we waited for late parts.
    stalled: members that were given up or left out.
    """

    late_s: Mapping[PeerId, float]
    stalled: Collection[PeerId]

    @classmethod
    def of_round(cls, each: Iterable[Observed]) -> Observed:
        """Return the observations in all exchanges of a round: each member's lateness in the one in which it was latest.

        Slack is counted once in a round, because the limits of every exchange begin with the slack before the round.
        """
        late_s, stalled = dict[PeerId, float](), set[PeerId]()
        for seen in each:
            late_s |= {peer: max(seconds, late_s.get(peer, 0.0)) for peer, seconds in seen.late_s.items()}
            stalled |= {*seen.stalled}
        return cls(late_s, stalled)


# ------------------------------------------------------------------------------------------------------------------------
# Debts in an exchange: the members that owe us something, since when, and when we last heard of each.
#
# A chunk may take long on a line that carries several chunks at a time, so its bytes count as they arrive, but only for some
# time: otherwise we would wait for a member for as long as it pushes rubbish.  A member that has to wait for one of our
# buffers does not owe us the parts that it could not send.


class SilenceTracker:
    """Tracker of the debts of other members, and of their signs of life.

    `now` is trio time.  chunk_s: seconds for which bytes count after a peer's last delivery, or the start of its debt.
    """

    def __init__(self, peers: Iterable[PeerId], now: float, chunk_s: float) -> None:
        self._heard, self._chunk_s, self._begun = dict.fromkeys(peers, now), chunk_s, now
        self._first: dict[PeerId, float] = {}
        self._delivered = dict.fromkeys(self._heard, now)
        self._owing: dict[PeerId, float] = {}

    def moving(self, peer: PeerId, now: float) -> None:
        """Note that more bytes of a peer's push have arrived."""
        if peer in self._heard and now - max(self._delivered[peer], self._owing.get(peer, -inf)) < self._chunk_s:
            self._heard[peer] = now

    def held(self, peer: PeerId, now: float) -> None:
        """Note that a push of this peer waits for one of our buffers, for which the peer is not to blame."""
        if peer in self._heard:
            self._heard[peer] = now

    def delivered(self, peer: PeerId, now: float) -> None:
        """Note that a peer delivered something new."""
        if peer in self._heard:
            self._heard[peer] = self._delivered[peer] = now
            self._first.setdefault(peer, now)

    def pace_s(self, peers: Collection[PeerId], most_s: float, now: float) -> float:
        """Return the seconds until half of these peers delivered something; before that, the time so far, at most `most_s`.

        The pace is slow on lines that carry large chunks to many peers at a time, and honest peers are then silent for as
        long.
        """
        first = sorted(self._first[peer] for peer in peers if peer in self._first)
        half = (len(peers) + 1) // 2
        return first[half - 1] - self._begun if 0 < half <= len(first) else min(now - self._begun, most_s)

    def overdue(self, owing: Mapping[PeerId, float], now: float, suspects: Collection[PeerId] = ()) -> list[PeerId]:
        """Return the peers that have kept us waiting for too long, sorted.

        owing: for each peer that owes us something now, the longest silence allowed (s), counted from the start of the debt
        at the earliest.  suspects: peers that may owe us something again, so that their debts are not forgotten.
        """
        debtors = {*owing, *(peer for peer in suspects if peer in self._owing)}
        self._owing = {peer: self._owing.get(peer, now) for peer in debtors}
        return sorted(
            peer for peer, allowed_s in owing.items() if now - max(self._heard[peer], self._owing[peer]) > allowed_s
        )


# ------------------------------------------------------------------------------------------------------------------------
# Lateness in an exchange: of the parts that members owe to us, and of the averages that owners owe.


class LatenessTimer:
    """Timer of the seconds for which each member was late.  `now` is trio time."""

    def __init__(self, now: float) -> None:
        self.seconds: dict[PeerId, float] = {}
        self._looked_at = now

    def note(self, late: Collection[PeerId], now: float) -> None:
        """Note that these members were late since the last call."""
        passed, self._looked_at = min(now - self._looked_at, LONGEST_S), now
        for peer in late:
            self.seconds[peer] = self.seconds.get(peer, 0.0) + passed


class AverageDeadline:
    """Deadline for the averages of each member, with the chunks that the plan gave to it.

    owners: the owner of each chunk.  members: number of members in the plan.  begun: trio time.

    The other owners have had enough time if three conditions hold.  We hold all averages of more than half of the owners in
    the jury.  These owners own more than half of the jury's chunks.  `SPREAD` of the time that this took has passed since
    then.  An honest owner is among them, however early liars sign: liars are fewer, and own less than half
    (`protocol.agreement.policy`).  Members that own few chunks or none cannot make an owner look late.  An owner with more
    chunks than these owners gets more time in proportion to its load.  (Our own averages are not a measure: when all of them
    are made, averages of other owners may still be on their lines.)

    An honest owner averages once it has all parts, or once it has waited for late parts as long as it may
    (`ExchangeLimits.late_s`), which is at least the fair time.  So if the lines of honest members differ by no more than
    that, every other honest owner has their parts by then as well.  An honest owner waits only for late parts, and for a
    bounded time.
    """

    def __init__(self, owners: Sequence[PeerId], members: int, begun: float) -> None:
        self._all, self._members, self._begun = len(owners), members, begun
        self._chunks: dict[PeerId, list[int]] = {}
        for chunk, peer in enumerate(owners):
            self._chunks.setdefault(peer, []).append(chunk)
        self._reference: tuple[float, float] | None = None
        """Seconds until the averages of more than half of the owners had arrived, and the mean load of these owners."""

    def late(
        self, here: Collection[int], jury: Collection[PeerId], owner: Callable[[int], PeerId], now: float
    ) -> set[PeerId]:
        """Return the members whose averages are late.

        here: chunks whose averages have arrived.  owner: returns the present owner of a chunk; a successor is never late.
        """
        missing = {peer: [chunk for chunk in chunks if chunk not in here] for peer, chunks in self._chunks.items()}
        if self._reference is None:
            self._reference = self._refer(missing, jury, now)
        return {
            peer
            for peer, chunks in missing.items()
            if self._is_due(peer, now) and any(owner(chunk) == peer for chunk in chunks)
        }

    def _refer(
        self, missing: Mapping[PeerId, Sequence[int]], jury: Collection[PeerId], now: float
    ) -> tuple[float, float] | None:
        owned = {peer: len(self._chunks[peer]) for peer in jury if peer in self._chunks}
        done = [chunks for peer, chunks in owned.items() if not missing[peer]]
        if 2 * len(done) <= len(owned) or 2 * sum(done) <= sum(owned.values()):
            return None
        return now - self._begun, sum(map(self._load, done)) / len(done)

    def _is_due(self, peer: PeerId, now: float) -> bool:
        if self._reference is None:
            return False
        took_s, load = self._reference
        most = max(load, self._load(len(self._chunks[peer])))  # an owner of fewer chunks may have a slower line
        return (now - self._begun) * load >= (1 + SPREAD) * took_s * most

    def _load(self, chunks: int) -> int:
        """Return the load of an owner: chunks that it sends, and receives (`protocol.allreduce.assignment`)."""
        return self._all + (self._members - 2) * chunks


# ------------------------------------------------------------------------------------------------------------------------
# Memory of the peers that were late in earlier rounds, and the time that each of them still gets.


class Slack:
    """Seconds by which each peer may still be late.  Full at the beginning; each round gives a part of it back.

    A peer that is late in each round, but never by much, would otherwise cost as much as a peer that stalls.
    """

    def __init__(self) -> None:
        self._used: dict[PeerId, tuple[int, float]] = {}
        """The last round in which each peer was late, and the seconds that it had used up after this round.

        The round may be a later one than ours: a peer that gives up provisional records goes back.
        """

    def left(self, peer: PeerId, round: int, most_s: float) -> float:
        """Return the slack of this peer in this round, at most `most_s`."""
        last, used_s = self._used.get(peer, (round, 0.0))
        return most_s - max(0.0, used_s - max(0, round - last) * most_s / WINDOW)

    def use(self, peer: PeerId, round: int, seconds: float, most_s: float) -> bool:
        """Take these seconds from the slack of this peer; return True if there was not enough."""
        left_s = self.left(peer, round, most_s) - seconds
        self._used.pop(peer, None)
        if len(self._used) >= MAX_STALLED:
            self._used.pop(next(iter(self._used)))
        self._used[peer] = round, most_s - max(0.0, left_s)
        return left_s < 0


@dataclass
class Conduct:
    """Record of one peer's stalls.

    out_until: the first round in which the peer counts again.  rounds: the number of rounds that its next stall costs.
    """

    out_until: int
    rounds: int


class ExclusionBackoff:
    """Register of stalls, with increasing penalties.

    * The first stall puts a peer on probation for `WINDOW` rounds.
    * A further stall excludes the peer for `FIRST_ROUNDS`, then puts it on probation, and doubles the cost of the next one.
    * All stalls are forgotten `MAX_ROUNDS` after the last one, or after the exclusion that it led to.  So no peer can stall
      often.
    """

    def __init__(self) -> None:
        self._conduct: dict[PeerId, Conduct] = {}

    def lost_with(self, peer: PeerId, round: int) -> None:
        """Record that this peer stalled this round."""
        known = self._conduct.pop(peer, None)
        if len(self._conduct) >= MAX_STALLED:
            self._conduct.pop(next(iter(self._conduct)))
        if known is None or known.out_until + MAX_ROUNDS <= round:
            known = Conduct(round + 1, FIRST_ROUNDS)
        elif known.out_until <= round:  # otherwise this round was judged before, or the peer did not count
            out = FIRST_ROUNDS if peer == STRANGERS else known.rounds
            known = Conduct(round + 1 + out, min(2 * known.rounds, MAX_ROUNDS))
        self._conduct[peer] = known

    def share(self, peer: PeerId, round: int) -> float:
        """Return this peer's fraction of the waiting time in this round: 1, `HURRIED`, or 0 while it does not count."""
        known = self._conduct.get(peer)
        if known is None or known.out_until + WINDOW <= round:
            return 1.0
        return HURRIED if known.out_until <= round else 0.0


class LatenessMemory:
    """Memory of lateness that one peer keeps from round to round.

    trainers: peers that kept a round from being closed.  proposers: peers that made no progress as proposers.  members:
    peers that stalled an exchange.  A peer that is late in one of these roles may be punctual in another.
    """

    def __init__(self) -> None:
        self.trainers, self.proposers, self.members = ExclusionBackoff(), ExclusionBackoff(), ExclusionBackoff()
        self.slack = Slack()

    def limits(self, me: PeerId, members: Collection[PeerId], base: Base, stall_s: float, fair_s: float) -> ExchangeLimits:
        """Return our limits in an exchange of these members.  fair_s: seconds that are nobody's fault."""
        electors = [peer for peer in members if peer in base.electors]
        base = deputised(base, members)
        slack = {peer: self.slack.left(_named(peer, base), base.round, SLACK * stall_s) for peer in members}
        slack[me] = self.slack.left(me, base.round, SLACK_FOR_PARTS * stall_s)
        return ExchangeLimits(
            stall_s=stall_s,
            late_s={peer: fair_s + left_s for peer, left_s in slack.items()},
            jury=electors if tolerated(len(electors)) else [],  # keys are free, so strangers must not set the pace
            ignored=[peer for peer in members if share_of(self.members, base, peer) == 0],
        )

    def judge_exchange(
        self, me: PeerId, members: Collection[PeerId], base: Base, seen: Observed, stall_s: float, fair_s: float
    ) -> set[PeerId]:
        """Remember the lateness of the members of a record; return the members that stalled its exchange.

        Strangers use one common slack, by the time of the latest of them: otherwise new keys could each be late once.
        """
        base = deputised(base, members)
        late = {peer for peer in seen.stalled if peer in members}
        beyond: dict[PeerId, float] = {}
        for peer, seconds in seen.late_s.items():
            name = me if peer == me else _named(peer, base)
            beyond[name] = max(beyond.get(name, 0.0), seconds - fair_s)
        for name, seconds in beyond.items():
            most_s = stall_s * (SLACK_FOR_PARTS if name == me else SLACK)
            if seconds > 0 and self.slack.use(name, base.round, seconds, most_s) and name != me:
                late.add(name)
        judge(self.members, base, late, each=True)
        return late


def is_tenured(base: Base, peer: PeerId) -> bool:
    """Return True if this peer is judged individually, because it is an elector or a contributor to the last record."""
    return peer in base.electors or peer in base.contributors


def deputised(base: Base, here: Collection[PeerId]) -> Base:
    """Return `base` with the members that did recent work in place of the electors, if no elector is `here`.

    Each of them is then remembered by name.  As strangers they share one memory, and a slow newcomer would make them give
    each other up.  Many keys could then stall often, but members vote in this case, so such keys can stop the round anyway.
    """
    return base if any(peer in base.electors for peer in here) else replace(base, electors=tuple(sorted(base.work.tokens)))


def share_of(stalls: ExclusionBackoff, base: Base, peer: PeerId) -> float:
    """Return the fraction of the waiting time that this peer gets in the round on `base`.

    A peer that is not an elector gets no more than the fraction of all strangers together.
    """
    own, strangers = stalls.share(peer, base.round), stalls.share(STRANGERS, base.round)
    return own if own <= strangers or peer in base.electors else strangers


def judge(stalls: ExclusionBackoff, base: Base, late: Collection[PeerId], *, each: bool = False) -> None:
    """Remember the peers that kept the round on `base` waiting.

    each: True if strangers are also remembered individually, when they are few.  A stall of a peer that is not an elector
    counts against all strangers: otherwise new keys could join to stall once each.
    """
    stalled = {peer for peer in late if each or is_tenured(base, peer)}
    stalled |= {_named(peer, base) for peer in late}
    for peer in sorted(stalled):
        stalls.lost_with(peer, base.round)


def _named(peer: PeerId, base: Base) -> PeerId:
    return peer if peer in base.electors else STRANGERS
