"""Rules about late peers: the longest wait of a round for a peer, and the shorter time for a peer that made others wait.

A round needs something of each peer: its READY, its parts, its averages, and its statements as a proposer.  Four rules limit
the wait, each relative to the time that most other peers needed, so neither the length of a round nor the speed of the lines
has to be known.  A fifth rule remembers the peers that used that time up.

1. **Fair time.**  No peer may cost a round more time than its work is worth.  So a round waits for one peer for the
   others' computing time, times `LATE`, divided by their number (`fair_time`).  `protocol.agreement.policy` uses the fair
   time to close a round; rules 3 and 4 add it to their deadlines.
2. **Silence.**  A member that owes us a part is lost when nothing has come from it for `stall_s` plus `PACES` times the time
   that half of the other members needed for one chunk (`SilenceTracker`).  A member that owes us an average may itself be
   waiting, so it gets `RESULT_PATIENCE` times as long.  It does not get the longer time if the owners of most chunks went on
   without it (`ExclusionCounts`).  Only this rule works before most other members have delivered.
3. **Parts.**  Let T be the time from the start of the exchange until more than half of the jury gave their parts.  A part is
   late for an owner once `SPREAD` of T has passed since then (`PartDeadline`).  An owner waits for the late parts of all
   members for the fair time of each exchange, and beyond that for `FOR_PARTS` of `stall_s` in `WINDOW` rounds
   (`LatenessBudget`).  Then the owner averages without the late parts.
4. **Averages.**  Let T be the time until the averages of more than half of the jury had arrived.  An average is late once
   `SPREAD` of T has passed since then (`AverageDeadline`).  An owner may be late by the fair time of each exchange, and
   beyond that by `stall_s` in `WINDOW` rounds.  Then the owner is lost.  Owners wait for parts only half as long, so nobody
   makes an honest owner late by withholding parts.
5. **Exclusion with exponential backoff.**  A peer that was lost, left out, or late for too long has stalled the round
   (`ExclusionBackoff`).  After its first stall, the peer gets `HURRIED` of the usual time until it has done its part in
   `FIRST_ROUNDS` rounds.  Each further stall excludes the peer for that many rounds, and doubles the number, up to
   `MAX_ROUNDS`.  After `MAX_ROUNDS` good rounds in a row all its stalls are forgotten.  A peer is also put on probation if
   its parts are missing in the averages of more signers than may be liars (`MissingParts`): otherwise it could stall one
   owner after another.

The jury consists of the electors among the members, if there are enough to tolerate a liar; otherwise it is all members.
The honest majority of the jury sets the pace.  Strangers are remembered under one common name, and each also under its own,
because keys cost nothing.

Two timers are kept elsewhere, because they need no memory of peers: the timeout of an attempt's proposer, which doubles
after each attempt given up (`protocol.agreement.round_state`), and the grace time for trainers
(`protocol.agreement.policy`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from protocol.chain.base import Base
from protocol.chain.electorate import tolerated
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, members_in

LATE = 0.75
"""Longest time that a round waits for one more trainer, as a fraction of the others' computing time per member."""
OWNER_SHARE = 0.2
"""Smallest fraction of the time that an owner gets: the plan gave it chunks, so other members may be waiting for it."""
CHUNK_TIMES = 6.0
"""Multiple of `stall_s` for which bytes of one chunk count as a sign of life: a line may carry several chunks at once."""
PACES = 3.0
"""Silence allowed to a member beyond `stall_s`, as a multiple of the exchange's pace.

The pace is the time that half of the jury took for one chunk.
"""
RESULT_PATIENCE = 2.0
"""Factor by which an owner that owes a result may be silent longer than other members."""
LONGEST_S = 1.0
"""Longest time (s) counted between two ticks: if more time passed, we slept, and no other member is to blame."""
SPREAD = 0.5
"""Fraction by which the other members may take longer than most members took since the exchange began.

No two lines are equally fast.  The wait costs almost nothing if exchanges are short compared with the work, and half an
exchange if they are long.  The fraction is clearly larger than the difference in bandwidth that the shares of chunks ignore
(`protocol.allreduce.assignment.ALIKE`).
"""
MAX_STALLED = 1024
FIRST_ROUNDS, MAX_ROUNDS = 4, 64
"""Number of rounds that the first stall costs, and the most rounds that one stall costs."""
WINDOW = 16
"""Number of rounds for which a peer's missing or late parts are remembered."""
FOR_PARTS = 0.5
"""Fraction of `stall_s` by which parts may be late in `WINDOW` rounds, beyond the fair time.

The limit applies to the parts of one member, and to all parts for which one owner waits.  Averages may be late by the whole
of `stall_s`, because an honest owner waits half of it for parts.
"""
HURRIED = 0.2
"""Fraction of the usual time that a peer on probation gets."""
STRANGERS = PeerId("strangers")
"""Name under which all peers except the electors are remembered together.

Keys cost nothing, so one stall for each key would be too many.  Strangers are excluded for at most `FIRST_ROUNDS`, because
honest newcomers must be able to join.
"""


def fair_time(took_s: float, members: int) -> float:
    """Return the longest time (s) that a round of `members` members may wait for one of them: its work is worth that time.

    took_s: the time (s) that the other members took for their work.
    """
    return LATE * took_s / members


@dataclass(frozen=True)
class ExchangeLimits:
    """Limits on the time that we wait in one exchange.

    stall_s: seconds for which a member that owes us a part may be silent if lines are quick.  wait_s: seconds for which our
    averages may wait for late parts.  owner_s: for each member, the seconds by which its averages may be late; a member
    without an entry is never given up for late averages.  jury: the members by which lateness is judged; empty for all
    members.  Other members are late once more than half of the jury have given theirs.  shares: for each member that kept
    earlier exchanges waiting, its fraction of the time; other members get all of it.  We do not wait for a member with share
    0, but its chunks count if they arrive in time.
    """

    stall_s: float
    wait_s: float = inf
    owner_s: Mapping[PeerId, float] = field(default_factory=dict[PeerId, float])
    jury: Sequence[PeerId] = ()
    shares: Mapping[PeerId, float] = field(default_factory=dict[PeerId, float])


@dataclass(frozen=True)
class Observed:
    """Observations of lateness in one or more exchanges of a round, in seconds.

    delays, lateness: lateness of the parts, and of the averages, of members that were not given up.  waited_s: time for
    which our averages waited for parts.  left_out: members for which our averages stopped waiting.  stalled: members that
    were given up.
    """

    delays: Mapping[PeerId, float]
    lateness: Mapping[PeerId, float]
    waited_s: float
    left_out: Collection[PeerId]
    stalled: Collection[PeerId]

    @classmethod
    def merge(cls, each: Sequence[Observed]) -> Observed:
        """Return the longest times of these exchanges, and the members that any of them left out or gave up."""
        return cls(
            _longest([one.delays for one in each]),
            _longest([one.lateness for one in each]),
            max((one.waited_s for one in each), default=0.0),
            {peer for one in each for peer in one.left_out},
            {peer for one in each for peer in one.stalled},
        )


def _longest(each: Sequence[Mapping[PeerId, float]]) -> dict[PeerId, float]:
    longest: dict[PeerId, float] = {}
    for seconds in each:
        longest |= {peer: max(longest.get(peer, 0.0), passed) for peer, passed in seconds.items()}
    return longest


# ------------------------------------------------------------------------------------------------------------------------
# Debts in an exchange: the members that owe us something, since when, and when we last heard of each.
#
# A chunk may take long on a line that carries several chunks at a time, so its bytes count as they arrive.  Until a chunk
# has arrived and is verified, only its own bytes count: otherwise we would wait for a member for as long as it pushes
# rubbish.  A member that has to wait for one of our buffers does not owe us the parts that it could not send.


class SilenceTracker:
    """Tracker of the debts of other members, and of their signs of life.

    `now` is trio time.  chunk_s: seconds for which the bytes of one chunk count.
    """

    def __init__(self, peers: Iterable[PeerId], now: float, chunk_s: float) -> None:
        self._heard, self._chunk_s, self._begun = dict.fromkeys(peers, now), chunk_s, now
        self._announced: dict[PeerId, float] = {}
        """Start time of the first push of each peer since its last delivery."""
        self._first: dict[PeerId, float] = {}
        self._delivered: dict[PeerId, float] = {}
        self._owing: dict[PeerId, float] = {}

    def announced(self, peer: PeerId, now: float) -> None:
        """Note that a peer began a push.  A repeat before the next delivery does not count; its arriving bytes do."""
        if peer in self._heard and peer not in self._announced:
            self._announced[peer] = now
            self._heard[peer] = now

    def moving(self, peer: PeerId, now: float) -> None:
        """Note that more bytes of a peer's current push have arrived."""
        if now - max(self._announced.get(peer, -inf), self._delivered.get(peer, -inf)) < self._chunk_s:
            self._heard[peer] = now

    def held(self, peer: PeerId, now: float) -> None:
        """Note that a push of this peer waits for one of our buffers, for which the peer is not to blame."""
        if peer in self._heard:
            self._heard[peer] = now

    def delivered(self, peer: PeerId, now: float) -> None:
        """Note that a peer delivered something new."""
        if peer in self._heard:
            self._announced.pop(peer, None)
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
        return sorted(peer for peer, patience in owing.items() if now - max(self._heard[peer], self._owing[peer]) > patience)


# ------------------------------------------------------------------------------------------------------------------------
# Members that the owners of an exchange leave out of their averages.  A member that sends its parts to no owner sends us
# none either.


class ExclusionCounts:
    """Counter of the members left out, read from the masks of the averages that have arrived.

    chunks: number of chunks of a contribution.
    """

    def __init__(self, members: Sequence[PeerId], chunks: int) -> None:
        self._members, self._chunks = members, chunks
        self._without: dict[PeerId, dict[int, PeerId]] = {}
        """For each member, the chunks with an average that leaves the member out, and the signer of each average."""

    def note(self, signer: PeerId, chunk: int, entry: ChunkEntry) -> None:
        """Count the members that this average of a chunk leaves out.  signer: its signer; the mask must be well formed."""
        taken = members_in(entry.mask, len(self._members))
        for index, peer in enumerate(self._members):
            if index not in taken:
                self._without.setdefault(peer, {}).setdefault(chunk, signer)

    def is_left_out(self, peer: PeerId) -> bool:
        """Return True if two or more other members together averaged more than half of the chunks without this member.

        Liars among four or more electors own less than half (`protocol.agreement.policy`).  Members that are not electors
        may own more, but the worst that they can do to an owner in this way is to halve its time.
        """
        signers = [signer for signer in self._without.get(peer, {}).values() if signer != peer]
        return 2 * len(signers) > self._chunks and len(set(signers)) > 1


# ------------------------------------------------------------------------------------------------------------------------
# Delays by members of an exchange that were never silent long enough to be lost.


class PartDeadline:
    """Deadline for the parts of slow members: the time that most members took, or would have taken, plus `SPREAD` of it.

    If there is room for only a share of their parts, most members are held up.  The time that they took for this share is
    then extrapolated to all parts.  begun: trio time.
    """

    def __init__(self, begun: float) -> None:
        self._begun = self._looked_at = begun
        self._gave_s = 0.0
        self._most_gave = False
        self.at = begun
        """Trio time of the deadline; the start of the exchange while most members are still delivering."""

    def has_come(self, most_gave: bool, share: float, now: float) -> bool:
        """Return True if the deadline has come.

        most_gave: True if most members gave as many parts as they can now.  share: this amount as a fraction of all parts.
        """
        if not self._most_gave:
            self._gave_s += now - self._looked_at
        self._most_gave, self._looked_at = most_gave, now
        self.at = self._begun + ((1 + SPREAD) * self._gave_s / share if most_gave else 0.0)
        return most_gave and now >= self.at


class DelayTimer:
    """Timer of the delays that each member causes.  Several chunks waiting at the same time count once.  `now` is trio time.

    seconds: the delay caused by each member that delayed anything.  all_s: the time during which at least one member caused
    a delay.
    """

    def __init__(self, now: float) -> None:
        self.seconds: dict[PeerId, float] = {}
        self.all_s = 0.0
        self._looked_at = now

    def note(self, delaying: Collection[PeerId], now: float) -> None:
        """Note that these members delayed something since the last call."""
        passed, self._looked_at = min(now - self._looked_at, LONGEST_S), now
        self.all_s += passed if delaying else 0.0
        for peer in delaying:
            self.seconds[peer] = self.seconds.get(peer, 0.0) + passed


# ------------------------------------------------------------------------------------------------------------------------
# Late averages in an exchange: later than an honest owner's average can be, compared with the averages of other owners.


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
    (`ExchangeLimits.wait_s`), which is at least the fair time.  So if the lines of honest members differ by no more than
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
# Memory of the peers that stalled rounds lately, and the time that each of them still gets.


@dataclass
class Conduct:
    """Record of one peer's stalls.

    out_until: the first round in which the peer counts again.  rounds: the number of rounds that its next stall costs.
    good: the number of rounds since its last stall in which it counted and did its part.
    """

    out_until: int
    rounds: int
    good: int = 0


class ExclusionBackoff:
    """Register of stalls, with increasing penalties.

    * The first stall puts a peer on probation: it gets `HURRIED` of the usual time until it has done its part in as many
      rounds as the stall costs.
    * A further stall excludes the peer for that many rounds, then puts it on probation, and doubles the cost of the next
      stall.
    * After `MAX_ROUNDS` good rounds in a row all stalls of the peer are forgotten.  So no peer can stall often.

    lenient: False if the first stall already excludes a peer.
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
        elif known.out_until <= round:  # otherwise this round was judged before, or the peer did not count
            out = FIRST_ROUNDS if peer == STRANGERS else known.rounds
            known = Conduct(round + 1 + out, min(2 * known.rounds, MAX_ROUNDS))
        self._conduct[peer] = known

    def suspect(self, peer: PeerId, round: int) -> None:
        """Put a peer on probation from now on, because other peers report that it stalls.

        Their reports never exclude a peer: otherwise peers that do not wait for it could take turns blaming it forever.
        """
        if peer in self._conduct:
            self._conduct[peer].good = 0
        else:
            self.lost_with(peer, round)

    def delivered(self, peer: PeerId, round: int) -> None:
        """Credit this peer for doing its part in this round.

        Only a round in which the peer counts is credited: otherwise a peer could make up for its stalls by being quick while
        nobody waits for it.
        """
        known = self._conduct.get(peer)
        if known is not None and known.out_until <= round:
            known.good += 1
            if known.good >= MAX_ROUNDS:
                del self._conduct[peer]

    @property
    def is_blank(self) -> bool:
        """True if no peer is remembered, so that every peer gets the whole time."""
        return not self._conduct

    def share(self, peer: PeerId, round: int) -> float:
        """Return this peer's fraction of the waiting time in this round: 1, `HURRIED`, or 0 while it does not count."""
        known = self._conduct.get(peer)
        if known is None:
            return 1.0
        if known.out_until > round:
            return 0.0
        return HURRIED if known.good < known.rounds else 1.0


class MissingParts:
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
        """Return the peers whose parts were missed by more than `liars` signers: each signer missed them on its own."""
        lately = round - WINDOW
        return [peer for peer, by in self._missed.items() if sum(last > lately for last in by.values()) > liars]


class LatenessBudget:
    """Budget of lateness: seconds for which peers that were never given up kept us waiting in the last `WINDOW` rounds.

    A peer that is a little less than `stall_s` late each time costs as much as a peer that stalls.  All peers except the
    electors count as one: otherwise new keys could each be late once, without end.
    """

    def __init__(self) -> None:
        self._seconds: dict[PeerId, dict[int, float]] = {}

    def note(self, delays: Mapping[PeerId, float], base: Base, fair_s: float) -> None:
        """Record the seconds that members kept us waiting in the round on `base`; the first `fair_s` are nobody's fault."""
        for peer, seconds in delays.items():
            if seconds > fair_s:
                rounds = self._seconds.setdefault(_named(peer, base), {})
                rounds[base.round] = max(rounds.get(base.round, 0.0), seconds - fair_s)
        self._seconds = {name: kept for name, rounds in self._seconds.items() if (kept := _lately(rounds, base.round))}

    def left(self, peer: PeerId, base: Base, most_s: float) -> float:
        """Return the rest of `most_s` that this peer has in the round on `base`; negative if it has used more."""
        return most_s - sum(_lately(self._seconds.get(_named(peer, base), {}), base.round).values())

    def forget(self, peers: Collection[PeerId]) -> None:
        """Forget these peers, whose stall is remembered elsewhere."""
        for peer in peers:
            self._seconds.pop(peer, None)

    def take_beyond(self, most_s: float) -> list[PeerId]:
        """Remove and return the peers that kept us waiting for more than `most_s` in total, which counts as one stall."""
        late = [name for name, rounds in self._seconds.items() if sum(rounds.values()) > most_s]
        for name in late:
            del self._seconds[name]
        return late


def _lately(rounds: Mapping[int, float], round: int) -> dict[int, float]:
    return {each: seconds for each, seconds in rounds.items() if each > round - WINDOW}


def _named(peer: PeerId, base: Base) -> PeerId:
    return peer if peer in base.electors else STRANGERS


class Patience:
    """Memory of lateness that one peer keeps from round to round.

    trainers: peers that kept a round from being closed.  proposers: peers that made no progress as proposers.  members:
    peers that owed something in an exchange.  A peer that is late in one of these roles may be punctual in another.

    slowness: delays of parts.  owners: delays of averages.  waits: waits of our own averages for late parts.  used: the
    share of these waits that each member caused, which a stall does not erase.
    """

    def __init__(self) -> None:
        self.trainers, self.proposers, self.members = ExclusionBackoff(), ExclusionBackoff(lenient=False), ExclusionBackoff()
        self.missed, self.slowness = MissingParts(), LatenessBudget()
        self.owners, self.waits, self.used = LatenessBudget(), LatenessBudget(), LatenessBudget()

    def limits(self, me: PeerId, members: Collection[PeerId], base: Base, stall_s: float, fair_s: float) -> ExchangeLimits:
        """Return our limits in an exchange of these members.  fair_s: seconds that are nobody's fault."""
        electors = [peer for peer in members if peer in base.electors]
        base = deputised(base, members)
        return ExchangeLimits(
            stall_s=stall_s,
            wait_s=fair_s + self.waits.left(me, base, FOR_PARTS * stall_s),
            owner_s={peer: fair_s + self.owners.left(peer, base, stall_s) for peer in members if peer != me},
            jury=electors if tolerated(len(electors)) else [],  # keys are free, so strangers must not set the pace
            shares={peer: share_of(self.members, base, peer) for peer in members},
        )

    def judge_exchange(
        self, me: PeerId, members: Collection[PeerId], base: Base, seen: Observed, stall_s: float, fair_s: float
    ) -> None:
        """Remember the members of a record that stalled its exchange, and credit its other members."""
        named, base = {*members}, deputised(base, members)
        seen = replace(seen, left_out=named & {*seen.left_out}, stalled=named & {*seen.stalled})
        judge(self.members, base, self.judge_late(me, seen, base, stall_s, fair_s), members, each=True)

    def judge_missed(self, missed: Mapping[PeerId, Collection[PeerId]], base: Base) -> None:
        """Put peers on probation if their parts are missing in the averages of several electors.

        Otherwise a peer could stall one elector after another.  A few liars cannot put a peer on probation by leaving it out
        of their averages.  missed: by peer, the signers of the averages that lack its parts.
        """
        self.missed.note(missed, base.round)
        for peer in self.missed.by_more_than(tolerated(len(base.electors)), base.round):
            self.members.suspect(_named(peer, base), base.round)

    def judge_late(self, me: PeerId, seen: Observed, base: Base, stall_s: float, fair_s: float) -> set[PeerId]:
        """Return the peers that stalled the exchange of the round on `base`.

        These are the members that were given up, the members that were late for too long in `WINDOW` rounds, and the members
        that we left out after they had used at least half of our budget for late parts.
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
    if stalls.is_blank:
        return 1.0
    own = stalls.share(peer, base.round)
    return own if peer in base.electors else min(own, stalls.share(STRANGERS, base.round))


def judge(
    stalls: ExclusionBackoff, base: Base, late: Collection[PeerId], good: Collection[PeerId], *, each: bool = False
) -> None:
    """Remember the peers that kept the round on `base` waiting (`late`), and the peers that did their part (`good`).

    each: True if strangers are also remembered individually, when they are few.  A stall of a peer that is not an elector
    counts against all strangers: otherwise new keys could join to stall once each.
    """
    outsiders = {peer for peer in {*late, *good} if peer not in base.electors}
    named = {peer for peer in {*late, *good} if each or is_tenured(base, peer)}
    stalled = (named & {*late}) | ({STRANGERS} if outsiders & {*late} else set())
    for peer in sorted(stalled):
        stalls.lost_with(peer, base.round)
    for peer in sorted((named | ({STRANGERS} if outsiders else set())) - stalled):
        stalls.delivered(peer, base.round)
