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
  `protocol.allreduce.lateness` remembers both.
* An owner waits for late parts no longer than `wait_s`, and then averages without them.  So a member that withholds its part
  from one owner cannot make the owner's averages so late that others lose the owner, which they do after `owner_s`.
* A lost member stays lost in this exchange: nobody waits for it any more.  Chunks that it still sends are taken.
* The first valid result of a chunk is kept.  If two versions exist, the round's record decides (`adopt`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from protocol.allreduce.assignment import plan_hash, takeover_order
from protocol.allreduce.buffers import share_of_buffers
from protocol.allreduce.lateness import (
    CHUNK_TIMES,
    OWNER_SHARE,
    PACES,
    RESULT_PATIENCE,
    AverageDeadline,
    DelayTimer,
    ExchangeLimits,
    ExclusionCounts,
    Observed,
    PartDeadline,
    SilenceTracker,
)
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, Plan

# ------------------------------------------------------------------------------------------------------------------------
# The events of the exchange machine.  A chunk is one of the plan's chunks, except in `Asked`.


# ------------------------------------------------------------------------------------------------------------------------
# The effects of the exchange machine: actions that `protocol.allreduce.runner` performs, in the order of the list.


@dataclass(frozen=True)
class SendPart:
    """Push our part of a chunk."""

    to: PeerId
    chunk: int


@dataclass(frozen=True)
class SendResult:
    """Push the average of a chunk with its owner's statement."""

    to: PeerId
    chunk: int


@dataclass(frozen=True)
class Reduce:
    """Average these members' parts of a chunk (indices in the plan, ascending), then report `Averaged`."""

    chunk: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class Ask:
    """Ask a peer for the result of a chunk, or for its part."""

    peer: PeerId
    chunk: int


@dataclass(frozen=True)
class Lost:
    """Stop waiting for this member."""

    peer: PeerId


@dataclass(frozen=True)
class AllReduceDone:
    """Report that all results are here."""


ExchangeEffect = SendPart | SendResult | Reduce | Ask | Lost | AllReduceDone


# ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ContributionReady:
    """Start of the exchange: our own contribution may be sent."""


@dataclass(frozen=True)
class Heard:
    """Start of a push from this peer: its bytes are coming."""

    peer: PeerId


@dataclass(frozen=True)
class Moving:
    """Progress of a push: more bytes have come from this peer, or its push still waits for a buffer here (`held`)."""

    peer: PeerId
    held: bool


@dataclass(frozen=True)
class PartArrived:
    """A verified part of a member.  If we have that chunk's result, the sender takes us for the owner and wants it."""

    peer: PeerId
    chunk: int


@dataclass(frozen=True)
class ResultArrived:
    """A verified result, from its owner or from a member that passes it on.

    A successor may get a result that the dead owner made.  Members that took the successor for the owner, and sent it their
    parts, wait for that result.
    """

    peer: PeerId
    chunk: int
    entry: ChunkEntry
    signer: PeerId


@dataclass(frozen=True)
class SignedEarly:
    """A result that a member signed out of turn: it gave up an owner for which we still wait."""

    signer: PeerId
    chunk: int


@dataclass(frozen=True)
class Averaged:
    """Our own average of a chunk, now complete."""

    chunk: int
    entry: ChunkEntry


@dataclass(frozen=True)
class Asked:
    """A successor's request for the result of a chunk, or for our part.  The chunk number is unchecked."""

    peer: PeerId
    chunk: int


@dataclass(frozen=True)
class PeerDead:
    """Death of this peer, as membership judges."""

    peer: PeerId


@dataclass(frozen=True)
class PeerBack:
    """Return of a peer: nobody waits for it, but it may have our averages."""

    peer: PeerId


@dataclass(frozen=True)
class ExchangeTick:
    """Passage of time."""


ExchangeEvent = (
    ContributionReady
    | Heard
    | Moving
    | PartArrived
    | ResultArrived
    | SignedEarly
    | Averaged
    | Asked
    | PeerDead
    | PeerBack
    | ExchangeTick
)


# ------------------------------------------------------------------------------------------------------------------------


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
        self.delays, self.lateness, self._parts_due = DelayTimer(now), DelayTimer(now), PartDeadline(now)
        self._ownership = AverageDeadline([self.members[owner] for owner in plan.owners], len(self.members), now)
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
