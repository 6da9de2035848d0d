"""The butterfly all-reduce as a pure state machine, which routes chunks between members, even after deaths.

Every member sends its part of a chunk to the chunk's owner.  The owner averages the parts of all members that are not lost,
in canonical order, and sends the result to all members.

Policy
* The owner of a chunk is the first member in its takeover order that is not lost.  When an owner is lost, members send only
  the parts of its unfinished chunks to the successor.  The successor also asks for the parts that it lacks.  A member that
  is asked answers with the result if it holds one, and otherwise with its part.  Nothing else is sent again.
* A member is lost when it is reported dead or suspected.  A suspicion may be wrong, since a busy computer can be silent for
  longer than a dead one takes to be noticed.  So a member that is lost by suspicion alone is taken back when it is heard
  again (`PeerBack`): it owns its unfinished chunks again, and gets the parts that it has not received yet.  Its debts run on
  meanwhile, so nobody gains time by being suspected.
* A member that owes us something is also lost when it is silent for too long.  `SilenceTracker` determines the bytes that
  count.
* A successor may give up an owner before we do.  We do not take the successor's result until we give up that owner as well,
  but then we request it at once.
* A member that is never silent may still be late compared with other members.  We count the time by which its averages are
  late, and the time for which we wait for late parts ourselves (`lateness`).  Once it exceeds `ExchangeLimits.late_s`, the
  owner is lost, or we average without the late parts.  `protocol.allreduce.lateness` remembers both.
* Any other lost member stays lost in this exchange: no member waits for it again, but chunks that it still sends are
  accepted.
* The first valid result of a chunk is kept.  If two versions exist, the round's record decides (`adopt`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf

from protocol.allreduce.assignment import plan_hash, takeover_order
from protocol.allreduce.buffers import share_of_buffers
from protocol.allreduce.lateness import (
    CHUNK_TIMES,
    SPREAD,
    AverageDeadline,
    ExchangeLimits,
    LatenessTimer,
    Observed,
    SilenceTracker,
)
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, Plan

# ------------------------------------------------------------------------------------------------------------------------
# The effects of the exchange machine: actions that `protocol.allreduce.runner` performs, in the order of the list.
# A chunk is one of the plan's chunks, also in the events below except `Asked`.


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
    """Average the parts of a chunk from these members (indices in the plan, ascending), then report `Averaged`."""

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
class Regained:
    """Wait again for this member, which was lost."""

    peer: PeerId


@dataclass(frozen=True)
class AllReduceDone:
    """Report that all results are here."""


ExchangeEffect = SendPart | SendResult | Reduce | Ask | Lost | Regained | AllReduceDone


# ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ContributionReady:
    """Readiness of our own contribution to be sent, which starts the exchange."""


@dataclass(frozen=True)
class Moving:
    """Progress of a push: more bytes came from this peer, or (if `held`) its push still waits for one of our buffers."""

    peer: PeerId
    held: bool


@dataclass(frozen=True)
class PartArrived:
    """A verified part from a member.  If we have the chunk's result, we send it back: the member takes us for the owner."""

    peer: PeerId
    chunk: int


@dataclass(frozen=True)
class ResultArrived:
    """A verified result, from its owner or from a member that forwards it.

    A successor may get a result that the dead owner made.  Members that took the successor for the owner, and sent it their
    parts, then wait for this result.
    """

    peer: PeerId
    chunk: int
    entry: ChunkEntry
    signer: PeerId


@dataclass(frozen=True)
class SignedEarly:
    """A result signed out of turn, by a member that has given up an owner for which we still wait."""

    signer: PeerId
    chunk: int


@dataclass(frozen=True)
class Averaged:
    """Completion of our own average of a chunk."""

    chunk: int
    entry: ChunkEntry


@dataclass(frozen=True)
class Asked:
    """A request of a successor for the result of a chunk, or for our part; the chunk number is unchecked."""

    peer: PeerId
    chunk: int


@dataclass(frozen=True)
class PeerDead:
    """End of this peer's part in the exchange: it said goodbye, or was ejected."""

    peer: PeerId


@dataclass(frozen=True)
class SuspicionRaised:
    """Suspicion that this peer is dead, according to membership: it is silent, or its connection broke."""

    peer: PeerId


@dataclass(frozen=True)
class PeerBack:
    """New sign of life of a peer that was dead or suspected.  restarted: True if its process has been started again.

    No member waits for a process that was started again, because it has lost its contribution.  It may still get our
    averages.
    """

    peer: PeerId
    restarted: bool


@dataclass(frozen=True)
class ExchangeTick:
    """Passage of time."""


ExchangeEvent = (
    ContributionReady
    | Moving
    | PartArrived
    | ResultArrived
    | SignedEarly
    | Averaged
    | Asked
    | PeerDead
    | SuspicionRaised
    | PeerBack
    | ExchangeTick
)


# ------------------------------------------------------------------------------------------------------------------------
# Failover of a chunk from its owner, when the owner is lost, to the member that averages the chunk next.


class OwnerFailover:
    """Failover of chunks to their present owners: the first awaited member in the takeover order, or we if none is left."""

    def __init__(self, me: PeerId, plan: Plan, members: Sequence[PeerId], ignored: Collection[PeerId]) -> None:
        self._me, self._name, self._members, self._ignored = me, plan_hash(plan), members, ignored
        self._orders = [[members[owner]] for owner in plan.owners]
        """Takeover order of each chunk; only the planned owner, until that owner is lost."""
        self._turns = [0] * len(plan.owners)
        """The farthest place in the takeover order of each chunk whose turn has come so far."""
        self.lost: dict[PeerId, None] = {}
        """Members for which nobody waits now."""

    def is_awaited(self, peer: PeerId) -> bool:
        """Return True if other members wait for the chunks of this member."""
        return peer not in self.lost and peer not in self._ignored

    def planned(self, chunk: int) -> PeerId:
        """Return the owner of this chunk according to the plan."""
        return self._orders[chunk][0]

    def owner(self, chunk: int) -> PeerId:
        """Return the member that averages this chunk now."""
        order = self._orders[chunk]
        if order[0] not in self.lost:
            return order[0]
        if len(order) == 1:
            order = self._orders[chunk] = takeover_order(self._name, chunk, self._members, order[0])
        owner = next((peer for peer in order if self.is_awaited(peer)), self._me)
        self._turns[chunk] = max(self._turns[chunk], order.index(owner))
        return owner

    def is_in_line(self, peer: PeerId, chunk: int) -> bool:
        """Return True if this member is in the takeover order of the chunk, as far as the order has been needed."""
        return peer in self._orders[chunk]

    def may_sign(self, peer: PeerId, chunk: int) -> bool:
        """Return True if this member is the chunk's owner now, or was at any time.

        Later successors must not sign: their averages would come first, with fewer parts than the owner has.
        """
        return peer == self.owner(chunk) or peer in self._orders[chunk][: self._turns[chunk] + 1]


# ------------------------------------------------------------------------------------------------------------------------


ASK_EVERY_S = 2.0
"""Interval (s) at which a successor repeats its requests for missing parts."""


class ExchangeMachine:
    """State machine of one member for the exchange of `plan`: the chunks that it holds, the lost members, and the effects.

    name: the hash of the plan.  entries: the index entries of the results that we hold, by chunk.  `now` is trio time.
    """

    def __init__(self, me: PeerId, plan: Plan, limits: ExchangeLimits, now: float) -> None:
        self.me, self.plan, self.name = me, plan, plan_hash(plan)
        self.members = [PeerId(member.peer) for member in plan.members]
        self.others = [peer for peer in self.members if peer != me]
        self.entries: dict[int, ChunkEntry] = {}
        self._limits, self._jury = limits, limits.jury or self.members
        self._index = {peer: index for index, peer in enumerate(self.members)}
        self.failover = OwnerFailover(me, plan, self.members, limits.ignored)
        self._suspects: dict[PeerId, None] = {}
        """Members that are lost by suspicion alone."""
        self._by_successors: set[int] = set()
        """Chunks whose results we hold, signed by another member than the planned owner."""
        self.stalled: dict[PeerId, None] = {}
        """Members that were given up because they owed us something for too long."""
        self.lateness, self._begun = LatenessTimer(now), now
        self._parts_due: float | None = None
        """Time after which parts are late for our chunks; None while most members are still delivering."""
        self._ownership = AverageDeadline([self.members[owner] for owner in plan.owners], len(self.members), now)
        self.left_out: dict[PeerId, None] = {}
        """Members for whose parts we no longer wait."""
        self._used_up: list[PeerId] = []
        """Members for which we waited when our time for late parts was used up.  Those left out later had no time at all."""
        self._silence = SilenceTracker(self.members, now, CHUNK_TIMES * limits.stall_s)
        self._signed_early: dict[int, dict[PeerId, None]] = {}
        """Members that signed a result of a chunk out of turn, by chunk.

        We ask the signer of a result: the member that forwarded it may not have it.
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
        """Members for which no member waits now."""
        return self.failover.lost.keys()

    def is_reducing(self, chunk: int) -> bool:
        """Return True if the parts of this chunk are being averaged."""
        return chunk in self._reducing

    def owner(self, chunk: int) -> PeerId:
        """Return the member that averages this chunk now."""
        return self.failover.owner(chunk)

    def waiting_for(self) -> list[PeerId]:
        """Return the members that delay the missing results, sorted: owners, and members that owe us parts."""
        peers: dict[PeerId, None] = {}
        for chunk in range(self.chunks):
            if chunk not in self.entries and self.owner(chunk) != self.me:
                peers[self.owner(chunk)] = None
            elif chunk not in self.entries:
                peers.update(dict.fromkeys(self._missing(chunk)))
        return sorted(peers)

    def lacks(self, arrived: PartArrived | ResultArrived) -> bool:
        """Return True if this is a result that we do not have, or a missing part of a chunk without a result."""
        if arrived.chunk in self.entries:
            return False
        return isinstance(arrived, ResultArrived) or self._index[arrived.peer] not in self._parts.get(arrived.chunk, ())

    def is_needed(self, part: SendPart) -> bool:
        """Return True if the receiver of this part still lacks it for an average.

        An owner that was taken back does not take a result that its successor signed meanwhile.
        """
        if part.to in self.lost:
            return False
        is_signed_by_another = part.chunk in self._by_successors and self.failover.planned(part.chunk) == part.to
        return part.chunk not in self.entries or is_signed_by_another

    def adopt(self, index: Sequence[ChunkEntry]) -> list[int]:
        """Return the chunks of the record's index that we lack, or of which we hold another version."""
        return [chunk for chunk, entry in enumerate(index) if self.entries.get(chunk) != entry]

    def observed(self) -> Observed:
        """Return our observations of the lateness of other members."""
        late_s = {peer: seconds for peer, seconds in self.lateness.seconds.items() if peer not in self.lost}
        return Observed(late_s, {*self.stalled, *self._used_up})

    # -- events -------------------------------------------------------------------------------------------------------

    def handle(self, event: ExchangeEvent, now: float) -> list[ExchangeEffect]:
        """Process an event and return the resulting effects, in the order in which they must be performed."""
        match event:
            case ContributionReady():
                return [effect for chunk in range(self.chunks) for effect in self._turn_to_owner(chunk)]
            case Moving(peer, held):
                if not held:
                    self._silence.moving(peer, now)
                elif self._waits_for_others(peer):
                    self._silence.held(peer, now)
                return []
            case PartArrived(peer, chunk):
                return self._part_arrived(peer, chunk, now)
            case ResultArrived(peer, chunk, entry, signer):
                if chunk not in self.entries and signer != self.failover.planned(chunk):
                    self._by_successors.add(chunk)
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
            case SuspicionRaised(peer):
                return self._suspect(peer)
            case PeerBack(peer, restarted):
                return self._hear_again(peer, restarted=restarted)
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
        if self.failover.planned(chunk) != self.me:
            self._by_successors.add(chunk)
        return self._hold(chunk, entry, [peer for peer in self.others if peer not in self.lost])

    def _asked(self, peer: PeerId, chunk: int) -> list[ExchangeEffect]:
        if peer not in self._index or peer == self.me or not 0 <= chunk < self.chunks:
            return []
        return [SendResult(peer, chunk)] if chunk in self.entries else [SendPart(peer, chunk)]

    def _suspect(self, peer: PeerId) -> list[ExchangeEffect]:
        if peer in self.lost:
            return []
        effects = self._lose(peer)
        if effects:
            self._suspects[peer] = None
        return effects

    def _hear_again(self, peer: PeerId, *, restarted: bool) -> list[ExchangeEffect]:
        """Take a suspect back, and send it what it lacks: averages of ours, and parts of the chunks that it owns again."""
        if peer not in self.lost:
            return []
        effects: list[ExchangeEffect] = [SendResult(peer, chunk) for chunk in self._mine]
        if restarted:
            self._suspects.pop(peer, None)
        if peer not in self._suspects:
            return effects
        del self._suspects[peer], self.failover.lost[peer]
        owned = [chunk for chunk in range(self.chunks) if self.owner(chunk) == peer]
        parts = [part for chunk in owned if self.is_needed(part := SendPart(peer, chunk))]
        self._sent |= {(peer, part.chunk) for part in parts}
        return [Regained(peer), *effects, *parts]

    def _lose(self, peer: PeerId) -> list[ExchangeEffect]:
        self._suspects.pop(peer, None)
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
        late = self._ownership.late(self.entries, self._jury, self.owner, now) - {self.me}
        self.lateness.note(late | {self.me} if delaying else late, now)
        for peer in self._stalled(now):
            self.stalled[peer] = None
            effects += self._lose(peer)
        if self._is_too_late(self.me):
            self._used_up = self._used_up or sorted(delaying)
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
        """Send our part of a chunk to its present owner; if we are the owner, ask for missing parts."""
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

        If we are a successor, we ask the members whose parts are missing; otherwise we ask a successor that signed early.
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
        """Return our chunks without an average, in the order in which their parts are sent to us."""
        missing = [chunk for chunk in range(self.chunks) if chunk not in self.entries] if self.lost else []
        inherited = [chunk for chunk in missing if self.failover.planned(chunk) != self.me and self.owner(chunk) == self.me]
        return [chunk for chunk in self._planned if chunk not in self.entries] + inherited

    def _waits_for_others(self, peer: PeerId) -> bool:
        """Return True if a push of this peer lacks a buffer because parts of other members are missing.

        This is the case if the peer has given its part of the chunk that is averaged next.
        """
        mine = self._waiting()
        return bool(mine) and self._index[peer] in self._parts.get(mine[0], ())

    def _delaying(self, now: float) -> set[PeerId]:
        """Return the members that delay us, because only their parts are missing.

        First, more than half of the jury must have given their parts of all our chunks, or as many parts as there are
        buffers for; the time for all parts is then extrapolated.  This sets the deadline for the other members.  Once it has
        passed, a member delays us if it has not given its part of the first chunk for which this majority gave theirs.
        Before the deadline no member counts as delaying us, however far behind it is.
        """
        mine = self._waiting()
        jury = {self._index[peer] for peer in self._jury}
        enough = min(len(mine), share_of_buffers(len(self.others)))
        given = Counter(index for chunk in mine for index in jury & self._parts.get(chunk, set()))
        most = 2 * sum(given[index] >= enough for index in jury) > len(jury)
        if most and self._parts_due is None:
            done = sum(self.owner(chunk) == self.me for chunk in self.entries)
            share = (done + enough) / (done + len(mine)) if mine else 1.0
            self._parts_due = self._begun + (1 + SPREAD) * (now - self._begun) / share
        if not most or self._parts_due is None or now < self._parts_due:
            return set()
        ripe = (chunk for chunk in mine if 2 * len(jury & self._parts.get(chunk, set())) > len(jury))
        first = next((chunk for chunk in ripe if chunk not in self._reducing), None)
        return set(self._missing(first)) if first is not None else set()

    def _reduce_if_complete(self, chunk: int) -> list[ExchangeEffect]:
        if chunk in self.entries or chunk in self._reducing or self._missing(chunk):
            return []
        if self._index[self.me] not in self._parts.get(chunk, ()):
            return []  # not started yet, because our own part is missing
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
        # Members of the jury that owe us something from the beginning.
        senders = {*self._jury} & ({*self.others} if self._planned else owners)
        silence_s = self._limits.stall_s + (1 + SPREAD) * self._silence.pace_s(senders, self._limits.stall_s, now)
        parts, averages = dict[PeerId, float](), dict[PeerId, float]()
        for chunk in range(self.chunks):
            owner = self.owner(chunk)
            if chunk in self.entries or chunk in self._reducing:
                continue
            if owner == self.me:
                parts |= dict.fromkeys(self._missing(chunk), silence_s)
            else:
                averages[owner] = 2 * silence_s  # it may itself be waiting for another member
        overdue = {*self._silence.overdue(averages | parts, now, self._suspects)}
        late_s = self._limits.late_s
        due = self._begun if self._parts_due is None else self._parts_due
        waiting = {owner for owner in averages if now < due + late_s.get(owner, 0.0)} - {*parts}
        late = {peer for peer in {**averages, **parts} if self._is_too_late(peer)}
        return sorted((overdue - waiting) | late)

    def _is_too_late(self, peer: PeerId) -> bool:
        return self.lateness.seconds.get(peer, 0.0) > self._limits.late_s.get(peer, inf)
