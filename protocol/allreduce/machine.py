"""The butterfly all-reduce as a pure state machine: it decides which chunks go to which member, also after deaths.

Every member sends its part of a chunk to the chunk's owner.  The owner averages the parts of all members that are not lost,
in canonical order, and sends the result to all.

Policy
* The owner of a chunk is the first member in its takeover order that is not lost.  When an owner is lost, members send only
  the parts of its unfinished chunks to the next one.  That one also asks for the parts that it misses, and a member that is
  asked answers with the result if it holds one, else with its part.  Nothing else is sent again.
* A member is lost when it is reported dead.  It is also lost when it owes us a part and nothing came from it for `stall_s`
  plus `PACES` times the pace of the others, or when it owes us a result and nothing came from it for twice that (an owner
  may itself be waiting for another member).  The time is not doubled if the owners of most chunks went on without it.
  `SilenceTracker` says which bytes count.
* A successor may have given up an owner before we do.  Its result is not taken until we give up that owner as well, but is
  then requested at once.
* A member that is never lost may still be late each time.  The time for which it keeps us waiting for its parts is counted
  (`delays`), and so is the lateness of its averages beside those of other owners (`lateness`).
  `protocol.agreement.patience` remembers both.
* An owner waits for late parts no longer than `wait_s`, and then averages without them.  So a member that withholds its part
  from one owner cannot make the owner's averages so late that others lose the owner, which they do after `owner_s`.
* A lost member stays lost in this exchange: nobody waits for it any more.  Chunks that it still sends are taken.
* The first valid result of a chunk is kept.  If two versions exist, the round's record decides (`adopt`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from protocol.allreduce.assignment import plan_hash, takeover_order
from protocol.allreduce.buffers import share_of_buffers
from protocol.allreduce.events import (
    AllReduceDone,
    Ask,
    Asked,
    Averaged,
    ContributionReady,
    ExchangeEffect,
    ExchangeEvent,
    ExchangeTick,
    Heard,
    Lost,
    Moving,
    PartArrived,
    PeerBack,
    PeerDead,
    Reduce,
    ResultArrived,
    SendPart,
    SendResult,
    SignedEarly,
)
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, Plan, members_in

# ------------------------------------------------------------------------------------------------------------------------
# Debts in an exchange: the members that owe us something, since when, and when we last heard of each.
#
# A chunk may take long on a line that carries several at a time, so its bytes count as they come.  Only bytes of one chunk
# count until it is here and right: else a member that pushes rubbish would be waited for as long as it does.  A member that
# has to wait for a buffer here does not owe us the parts that it could not send.


@dataclass(frozen=True)
class ExchangeLimits:
    """Limits on the waiting of one member in one exchange.

    stall_s: seconds for which a member that owes us a part may be silent if lines are quick.  wait_s: seconds for which our
    averages may wait for late parts.  owner_s: seconds by which the averages of each member may be late; a member without an
    entry is never given up for late averages.  jury: the members by which lateness is judged: others are late once more than
    half of these gave theirs; empty for all members.  shares: fraction of the time for each member that kept earlier
    exchanges waiting; others get all of it.  A member with 0 is not waited for at all: its chunks count if they are here in
    time.
    """

    stall_s: float
    wait_s: float = inf
    owner_s: Mapping[PeerId, float] = field(default_factory=dict[PeerId, float])
    jury: Sequence[PeerId] = ()
    shares: Mapping[PeerId, float] = field(default_factory=dict[PeerId, float])


@dataclass(frozen=True)
class Observed:
    """Observations of one or more exchanges of a round, in seconds.

    delays, lateness: how late the parts and the averages were of members that were not given up.  waited_s: how long our
    averages waited for parts.  left_out: members for which they waited no longer.  stalled: members that were given up.
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


class SilenceTracker:
    """Debts of other members, and the last sign of life of each.

    `now` is trio time.  chunk_s: seconds for which the bytes of one chunk count.
    """

    def __init__(self, peers: Iterable[PeerId], now: float, chunk_s: float) -> None:
        self._heard, self._chunk_s, self._begun = dict.fromkeys(peers, now), chunk_s, now
        self._announced: dict[PeerId, float] = {}
        """Peers that have begun to push something since they last delivered, and when."""
        self._first: dict[PeerId, float] = {}
        self._delivered: dict[PeerId, float] = {}
        self._owing: dict[PeerId, float] = {}

    def announced(self, peer: PeerId, now: float) -> None:
        """Note that a peer began to push something.  That counts once; then only its arriving bytes and new chunks count."""
        if peer in self._heard and peer not in self._announced:
            self._announced[peer] = now
            self._heard[peer] = now

    def moving(self, peer: PeerId, now: float) -> None:
        """Note that more bytes of a peer's current push are here."""
        if now - max(self._announced.get(peer, -inf), self._delivered.get(peer, -inf)) < self._chunk_s:
            self._heard[peer] = now

    def held(self, peer: PeerId, now: float) -> None:
        """Note that a push of this peer waits for a buffer here: the peer is not to blame for that."""
        if peer in self._heard:
            self._heard[peer] = now

    def delivered(self, peer: PeerId, now: float) -> None:
        """Note that a peer delivered something new."""
        if peer in self._heard:
            self._announced.pop(peer, None)
            self._heard[peer] = self._delivered[peer] = now
            self._first.setdefault(peer, now)

    def pace_s(self, peers: Collection[PeerId], most_s: float, now: float) -> float:
        """Return the seconds until half of these peers delivered something; until then, the time so far, `most_s` at most.

        The pace is slow on lines that carry large chunks to many peers at a time, and honest silences are as long.
        """
        first = sorted(self._first[peer] for peer in peers if peer in self._first)
        half = (len(peers) + 1) // 2
        return first[half - 1] - self._begun if 0 < half <= len(first) else min(now - self._begun, most_s)

    def overdue(self, owing: Mapping[PeerId, float], now: float) -> list[PeerId]:
        """Return the peers that have kept us waiting for too long, sorted.

        owing: all peers that owe us something now, and how long (s) each may be silent; patience begins with the debt.
        """
        self._owing = {peer: self._owing.get(peer, now) for peer in owing}
        return sorted(peer for peer, patience in owing.items() if now - max(self._heard[peer], self._owing[peer]) > patience)


# ------------------------------------------------------------------------------------------------------------------------
# Members that the owners of an exchange leave out of their averages: a member that gives nobody its parts gives us none.


class ExclusionCounts:
    """Counter of the members left out, read from the masks of the averages that are here.

    chunks: number of chunks of a contribution.
    """

    def __init__(self, members: Sequence[PeerId], chunks: int) -> None:
        self._members, self._chunks = members, chunks
        self._without: dict[PeerId, dict[int, PeerId]] = {}
        """For each member, the chunks whose average leaves it out, with the signer of each."""

    def note(self, signer: PeerId, chunk: int, entry: ChunkEntry) -> None:
        """Take the average of a chunk by this member; its mask is well formed."""
        taken = members_in(entry.mask, len(self._members))
        for index, peer in enumerate(self._members):
            if index not in taken:
                self._without.setdefault(peer, {}).setdefault(chunk, signer)

    def is_left_out(self, peer: PeerId) -> bool:
        """Return True if at least two others, together, average more than half of the chunks without this member.

        Liars among four or more electors own less than half (`protocol.agreement.policy`).  Members that are no electors may
        own more.  All they can do to an owner in this way is to halve its time.
        """
        signers = [signer for signer in self._without.get(peer, {}).values() if signer != peer]
        return 2 * len(signers) > self._chunks and len(set(signers)) > 1


# ------------------------------------------------------------------------------------------------------------------------
# Delays by each member in an exchange, although it was never silent for so long that it was lost.


LONGEST_S = 1.0
"""Longest time (s) that counts between two ticks: if more passed, we slept, and no other member is to blame for it."""
SPREAD = 0.5
"""Fraction of the time taken by most members since the exchange began, by which others may be slower.

No two lines are equally fast.  The time lost is nothing if exchanges are short beside the work, and half an exchange if they
are long.  The fraction is clearly larger than the difference in bandwidth that the shares of chunks ignore
(`protocol.allreduce.assignment.ALIKE`).
"""


class PartDeadline:
    """Deadline for the debts of others: the time in which most of us gave theirs, or would have, plus `SPREAD` of it.

    Most members are held up if there is room for only a share of their debts.  The time in which they gave that share tells
    how long the whole would have taken them.  begun: trio time.
    """

    def __init__(self, begun: float) -> None:
        self._begun = self._looked_at = begun
        self._gave_s = 0.0
        self._most_gave = False
        self.at = begun
        """Trio time of the deadline; the beginning while most still give."""

    def has_come(self, most_gave: bool, share: float, now: float) -> bool:
        """Return True if the deadline has come.

        most_gave: True if most members gave all that they can now.  share: that amount as a fraction of the whole.
        """
        if not self._most_gave:
            self._gave_s += now - self._looked_at
        self._most_gave, self._looked_at = most_gave, now
        self.at = self._begun + ((1 + SPREAD) * self._gave_s / share if most_gave else 0.0)
        return most_gave and now >= self.at


class Delays:
    """Seconds for which each member delayed anything.  Several chunks that wait at a time count once.  `now` is trio time.

    seconds: by member, for each that delayed anything.  all_s: the seconds in which any member did.
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
# Late averages in an exchange: later than an honest owner's can be, beside the averages of other owners.


class Ownership:
    """Chunks that the plan gave to each member.

    owners: the owner of each chunk.  members: number of members in the plan.  begun: trio time.

    Others have had the time to average if three things hold.  All averages are here of more than half of the owners in the
    jury.  These owners own more than half of the jury's chunks.  `SPREAD` of the time that this took has passed since.  An
    honest owner is among them, however early liars sign: liars are fewer, and own less than half
    (`protocol.agreement.policy`).  Members that own nothing, or little, make nobody look late.  An owner with more chunks
    than these owners gets more time in proportion to its load.  (It tells nothing that all our own averages are made:
    averages of others may still be on their lines.)

    An honest owner averages when it has all parts, or has waited for late parts as long as it may
    (`ExchangeMachine.wait_s`), which is at least the fair time.  So if the lines of honest members differ by no more than
    that, another honest owner has their parts by then as well.  It waits only for late parts, and for a bounded time.
    """

    def __init__(self, owners: Sequence[PeerId], members: int, begun: float) -> None:
        self._all, self._members, self._begun = len(owners), members, begun
        self._chunks: dict[PeerId, list[int]] = {}
        for chunk, peer in enumerate(owners):
            self._chunks.setdefault(peer, []).append(chunk)
        self._reference: tuple[float, float] | None = None
        """Seconds until the averages of more than half were here, and the mean load of their owners."""

    def late(
        self, here: Collection[int], jury: Collection[PeerId], owner: Callable[[int], PeerId], now: float
    ) -> set[PeerId]:
        """Return the members whose averages are late.

        here: chunks whose averages are here.  owner: returns the present owner of a chunk; a successor is not late.
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
        most = max(load, self._load(len(self._chunks[peer])))  # an owner of less may have a slower line
        return (now - self._begun) * load >= (1 + SPREAD) * took_s * most

    def _load(self, chunks: int) -> int:
        """Return the chunks that an owner of so many sends, and receives (`protocol.allreduce.assignment`)."""
        return self._all + (self._members - 2) * chunks


# ------------------------------------------------------------------------------------------------------------------------
# Succession to a chunk: its owner, and the member that averages it when the owner is lost.


class OwnerFailover:
    """Present owner of each chunk: the first member in its takeover order that is waited for, or we if none is left."""

    def __init__(self, me: PeerId, plan: Plan, members: Sequence[PeerId], shares: Mapping[PeerId, float]) -> None:
        self._me, self._name, self._members, self._shares = me, plan_hash(plan), members, shares
        self._orders = [[members[owner]] for owner in plan.owners]
        """Takeover order of each chunk; only the planned owner, as long as that is enough."""
        self.lost: dict[PeerId, None] = {}
        """Members that are not waited for any more in this exchange."""

    def share(self, peer: PeerId) -> float:
        """Return the fraction of the time that this member gets."""
        return self._shares.get(peer, 1.0)

    def is_awaited(self, peer: PeerId) -> bool:
        """Return True if others wait for the chunks of this member."""
        return peer not in self.lost and self.share(peer) > 0

    def planned(self, chunk: int) -> PeerId:
        """Return the member that the plan gave this chunk."""
        return self._orders[chunk][0]

    def owner(self, chunk: int) -> PeerId:
        """Return the member that averages this chunk now."""
        order = self._orders[chunk]
        if order[0] not in self.lost:
            return order[0]
        if len(order) == 1:
            order = self._orders[chunk] = takeover_order(self._name, chunk, self._members, order[0])
        return next((peer for peer in order if self.is_awaited(peer)), self._me)

    def is_in_line(self, peer: PeerId, chunk: int) -> bool:
        """Return True if this member owns the chunk, or follows an owner that was lost."""
        return peer in self._orders[chunk]

    def may_sign(self, peer: PeerId, chunk: int) -> bool:
        """Return True if this member averages the chunk now, or did before we gave it up.

        Later successors may not sign: their averages would come first, with fewer parts than the owner has.
        """
        owner = self.owner(chunk)
        order = self._orders[chunk]
        return peer == owner or peer in order[: order.index(owner)]


# ------------------------------------------------------------------------------------------------------------------------


OWNER_SHARE = 0.2
"""Smallest fraction of the time for an owner: the plan has given it chunks, and others may wait for it."""
CHUNK_TIMES = 6.0
"""Multiple of `stall_s` for which the bytes of one chunk are a sign of life: a line may carry several chunks at a time."""
PACES = 3.0
"""Multiple of the exchange's pace for which a member may be silent beyond `stall_s`.

The pace is the time that half of the jury took for one chunk.
"""
RESULT_PATIENCE = 2.0
"""Factor by which an owner may be silent longer while it owes a result."""
ASK_EVERY_S = 2.0
"""Seconds between two rounds of requests for the parts that a successor misses."""


class ExchangeMachine:
    """One member's view of the exchange of `plan`: the chunks it holds, the lost members, and the effects of each event.

    name: the hash of the plan.  entries: the index entries of the results that are here, by chunk.  `now` is trio time.
    """

    def __init__(self, me: PeerId, plan: Plan, limits: ExchangeLimits, now: float) -> None:
        self.me, self.plan, self.name = me, plan, plan_hash(plan)
        self.members = [PeerId(member.peer) for member in plan.members]
        self.others = [peer for peer in self.members if peer != me]
        self.entries: dict[int, ChunkEntry] = {}
        self._limits, self._jury = limits, limits.jury or self.members
        self._index = {peer: index for index, peer in enumerate(self.members)}
        self.failover = OwnerFailover(me, plan, self.members, limits.shares)
        self.stalled: dict[PeerId, None] = {}
        """Members that were given up because they owed something for too long."""
        self.delays, self.lateness, self._parts_due = Delays(now), Delays(now), PartDeadline(now)
        self._ownership = Ownership([self.members[owner] for owner in plan.owners], len(self.members), now)
        self.left_out: dict[PeerId, None] = {}
        """Members for whose parts we do not wait any more."""
        self._silence = SilenceTracker(self.members, now, CHUNK_TIMES * limits.stall_s)
        self._exclusions = ExclusionCounts(self.members, self.chunks)
        self._signed_early: dict[int, dict[PeerId, None]] = {}
        """Members that signed a result out of turn, by chunk.

        A member that passes the result on may not have it; its signer does.
        """
        self._parts: dict[int, set[int]] = {}
        self._reducing: set[int] = set()
        self._sent: set[tuple[PeerId, int]] = set()
        self._wanted_by: dict[int, list[PeerId]] = {}
        self._asked_at = now
        self._planned = [chunk for chunk, owner in enumerate(plan.owners) if self.members[owner] == me]
        self._mine: list[int] = []

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def chunks(self) -> int:
        """Number of chunks of a contribution."""
        return len(self.plan.owners)

    @property
    def lost(self) -> Collection[PeerId]:
        """Members for which nobody waits any more."""
        return self.failover.lost.keys()

    def is_reducing(self, chunk: int) -> bool:
        """Return True if the parts of this chunk are being averaged."""
        return chunk in self._reducing

    def owner(self, chunk: int) -> PeerId:
        """Return the member that averages this chunk now."""
        return self.failover.owner(chunk)

    def waiting_for(self) -> list[PeerId]:
        """Return the members that the missing results wait for, sorted: owners, and members that owe us parts."""
        peers: dict[PeerId, None] = {}
        for chunk in range(self.chunks):
            if chunk not in self.entries and self.owner(chunk) != self.me:
                peers[self.owner(chunk)] = None
            elif chunk not in self.entries:
                peers.update(dict.fromkeys(self._missing(chunk)))
        return sorted(peers)

    def lacks(self, arrived: PartArrived | ResultArrived) -> bool:
        """Return True if this is a result that we do not have, or a part that we lack for a result not made yet."""
        if arrived.chunk in self.entries:
            return False
        return isinstance(arrived, ResultArrived) or self._index[arrived.peer] not in self._parts.get(arrived.chunk, ())

    def adopt(self, index: Sequence[ChunkEntry]) -> list[int]:
        """Return the chunks of which we hold no version, or another version than the record's."""
        return [chunk for chunk, entry in enumerate(index) if self.entries.get(chunk) != entry]

    def observed(self) -> Observed:
        """Return our observations of the lateness of others."""
        kept = {peer: seconds for peer, seconds in self.delays.seconds.items() if peer not in self.lost}
        late = {peer: seconds for peer, seconds in self.lateness.seconds.items() if peer not in self.lost}
        return Observed(kept, late, self.delays.all_s, self.left_out.keys(), self.stalled.keys())

    # -- events -------------------------------------------------------------------------------------------------------

    def handle(self, event: ExchangeEvent, now: float) -> list[ExchangeEffect]:
        """Take an event and return the effects that follow from it, in the order in which they are to be performed."""
        match event:
            case ContributionReady():
                return [effect for chunk in range(self.chunks) for effect in self._turn_to_owner(chunk)]
            case Heard(peer):
                self._silence.announced(peer, now)
                return []
            case Moving(peer, held):
                if not held:
                    self._silence.moving(peer, now)
                elif self._waits_for_others(peer):
                    self._silence.held(peer, now)
                return []
            case PartArrived(peer, chunk):
                return self._part_arrived(peer, chunk, now)
            case ResultArrived(peer, chunk, entry, signer):
                self._exclusions.note(signer, chunk, entry)
                return self._result_arrived(peer, chunk, entry, now)
            case SignedEarly(signer, chunk):
                self._signed_early.setdefault(chunk, {})[signer] = None
                return []
            case Averaged(chunk, entry):
                return self._averaged(chunk, entry)
            case Asked(peer, chunk):
                return self._asked(peer, chunk)
            case PeerDead(peer):
                return self._lose(peer)
            case PeerBack(peer):
                return [SendResult(peer, chunk) for chunk in self._mine] if peer in self.lost else []
            case ExchangeTick():
                return self._tick(now)

    def _part_arrived(self, peer: PeerId, chunk: int, now: float) -> list[ExchangeEffect]:
        if chunk in self.entries:
            return [SendResult(peer, chunk)]
        if self.lacks(PartArrived(peer, chunk)):
            self._silence.delivered(peer, now)
        self._parts.setdefault(chunk, set()).add(self._index[peer])
        if self.owner(chunk) != self.me:
            self._want(peer, chunk)
            return []
        return self._reduce_if_complete(chunk)

    def _result_arrived(self, peer: PeerId, chunk: int, entry: ChunkEntry, now: float) -> list[ExchangeEffect]:
        if chunk in self.entries:
            return []
        self._silence.delivered(peer, now)
        waiting = self._parts.get(chunk, set()) if self.owner(chunk) == self.me else set()
        to = [self.members[index] for index in sorted(waiting)]
        return self._hold(chunk, entry, [other for other in to if other not in (self.me, peer, *self.lost)])

    def _averaged(self, chunk: int, entry: ChunkEntry) -> list[ExchangeEffect]:
        self._reducing.discard(chunk)
        if chunk in self.entries:
            return []
        return self._hold(chunk, entry, [peer for peer in self.others if peer not in self.lost])

    def _asked(self, peer: PeerId, chunk: int) -> list[ExchangeEffect]:
        if peer not in self._index or peer == self.me or not 0 <= chunk < self.chunks:
            return []
        return [SendResult(peer, chunk)] if chunk in self.entries else [SendPart(peer, chunk)]

    def _lose(self, peer: PeerId) -> list[ExchangeEffect]:
        if peer not in self._index or peer in self.lost or peer == self.me:
            return []
        self.failover.lost[peer] = None
        effects: list[ExchangeEffect] = [Lost(peer)]
        for chunk in range(self.chunks):
            if chunk in self.entries:
                continue
            if self.failover.is_in_line(peer, chunk):
                effects += self._turn_to_owner(chunk)
            if self.owner(chunk) == self.me:
                effects += self._reduce_if_complete(chunk)
        return effects

    def _tick(self, now: float) -> list[ExchangeEffect]:
        effects: list[ExchangeEffect] = []
        delaying = self._delaying(now)
        self.delays.note(delaying, now)
        self.lateness.note(self._ownership.late(self.entries, self._jury, self.owner, now) - {self.me}, now)
        for peer in self._stalled(now):
            self.stalled[peer] = None
            effects += self._lose(peer)
        if self.delays.all_s > self._limits.wait_s:
            self.left_out |= dict.fromkeys(sorted(delaying))
            for chunk in self._waiting():
                effects += self._reduce_if_complete(chunk)
        if now - self._asked_at >= ASK_EVERY_S:
            self._asked_at = now
            for chunk in range(self.chunks):
                effects += [Ask(peer, chunk) for peer in self._asked_about(chunk)]
        return effects

    # -- the inside ---------------------------------------------------------------------------------------------------

    def _turn_to_owner(self, chunk: int) -> list[ExchangeEffect]:
        """Give our part of a chunk to its present owner."""
        owner = self.owner(chunk)
        if owner == self.me:
            self._parts.setdefault(chunk, set()).add(self._index[self.me])
            return [*(Ask(peer, chunk) for peer in self._asked_about(chunk)), *self._reduce_if_complete(chunk)]
        asked = self._asked_about(chunk)
        if asked or (owner, chunk) in self._sent:
            return [Ask(peer, chunk) for peer in asked]
        self._sent.add((owner, chunk))
        return [SendPart(owner, chunk)]

    def _asked_about(self, chunk: int) -> list[PeerId]:
        """Return the peers to ask for a chunk.

        A successor asks the members whose parts it misses; other members ask a successor that signed early.
        """
        owner = self.owner(chunk)
        if chunk in self.entries or owner == self.failover.planned(chunk):
            return []
        if owner == self.me:
            return self._missing(chunk)
        return [owner] if owner in self._signed_early.get(chunk, ()) else []

    def _missing(self, chunk: int) -> list[PeerId]:
        have = self._parts.get(chunk, set())
        awaited = (peer for peer in self.others if self.failover.is_awaited(peer) and peer not in self.left_out)
        return [peer for peer in awaited if self._index[peer] not in have]

    def _waiting(self) -> list[int]:
        """Return our chunks whose averages are not here, in the order in which their parts are sent to us."""
        missing = [chunk for chunk in range(self.chunks) if chunk not in self.entries] if self.lost else []
        inherited = [chunk for chunk in missing if self.failover.planned(chunk) != self.me and self.owner(chunk) == self.me]
        return [chunk for chunk in self._planned if chunk not in self.entries] + inherited

    def _waits_for_others(self, peer: PeerId) -> bool:
        """Return True if a push of this peer has no room here because parts of others are missing.

        That is so if the peer gave its own part of the chunk that is averaged next.
        """
        mine = self._waiting()
        return bool(mine) and self._index[peer] in self._parts.get(mine[0], ())

    def _delaying(self, now: float) -> set[PeerId]:
        """Return the members for whose parts alone we wait.

        First, more than half of the jury must have given their parts of all our chunks, or as many parts as there is room
        for before an average is made.  Once the deadline of the others has come, they delay us if they did not give their
        part of the first chunk that this majority gave.  Before that they cost nothing, however far behind they are.
        """
        mine = self._waiting()
        jury = {self._index[peer] for peer in self._jury}
        enough = min(len(mine), share_of_buffers(len(self.others)))
        given = Counter(index for chunk in mine for index in jury & self._parts.get(chunk, set()))
        most = 2 * sum(given[index] >= enough for index in jury) > len(jury)
        done = sum(self.owner(chunk) == self.me for chunk in self.entries)
        share = (done + enough) / (done + len(mine)) if mine else 1.0
        if not self._parts_due.has_come(most, share, now):
            return set()
        ripe = (chunk for chunk in mine if 2 * len(jury & self._parts.get(chunk, set())) > len(jury))
        first = next((chunk for chunk in ripe if chunk not in self._reducing), None)
        return set(self._missing(first)) if first is not None else set()

    def _reduce_if_complete(self, chunk: int) -> list[ExchangeEffect]:
        if chunk in self.entries or chunk in self._reducing or self._missing(chunk):
            return []
        if self._index[self.me] not in self._parts.get(chunk, ()):
            return []  # not started yet: our own part is missing
        self._reducing.add(chunk)
        return [Reduce(chunk, tuple(sorted(self._parts[chunk])))]

    def _hold(self, chunk: int, entry: ChunkEntry, to: Sequence[PeerId]) -> list[ExchangeEffect]:
        self.entries[chunk] = entry
        self._parts.pop(chunk, None)
        if to:
            self._mine.append(chunk)
        wishes = [peer for peer in self._wanted_by.pop(chunk, []) if peer not in to]
        effects: list[ExchangeEffect] = [SendResult(peer, chunk) for peer in [*to, *wishes]]
        return [*effects, AllReduceDone()] if len(self.entries) == self.chunks else effects

    def _want(self, peer: PeerId, chunk: int) -> None:
        wishes = self._wanted_by.setdefault(chunk, [])
        if peer not in wishes:
            wishes.append(peer)

    def _stalled(self, now: float) -> list[PeerId]:
        owners = {self.members[owner] for owner in self.plan.owners}
        senders = {*self._jury} & ({*self.others} if self._planned else owners)  # who owes us something from the beginning
        silence_s = self._limits.stall_s + PACES * self._silence.pace_s(senders, self._limits.stall_s, now)
        parts, averages = dict[PeerId, float](), dict[PeerId, float]()
        for chunk in range(self.chunks):
            owner = self.owner(chunk)
            if chunk in self.entries or chunk in self._reducing:
                continue
            if owner == self.me:
                parts |= {peer: silence_s * self.failover.share(peer) for peer in self._missing(chunk)}
            elif owner not in averages:
                patience = 1.0 if self._exclusions.is_left_out(owner) else RESULT_PATIENCE
                averages[owner] = patience * silence_s * max(self.failover.share(owner), OWNER_SHARE)
        overdue = {*self._silence.overdue(averages | parts, now)}
        waiting = {owner for owner in averages if now < self._parts_due.at + self._limits.owner_s.get(owner, 0.0)} - {*parts}
        late = [peer for peer, seconds in self.lateness.seconds.items() if seconds > self._limits.owner_s.get(peer, inf)]
        return sorted((overdue - waiting) | {peer for peer in late if peer in averages or peer in parts})
