"""The butterfly all-reduce as a pure state machine: who sends which chunk to whom, and what a death changes.

Every member sends its part of a chunk to the chunk's owner; the owner averages the parts it has from everybody who is
not lost, in canonical order, and sends the result to all.

Policy
* The owner of a chunk is the first in its takeover order that is not lost.  When an owner is lost, members send the parts
  of its unfinished chunks, only those, to the next one; that one also asks for what it misses, and whoever is asked
  answers with the result, if it holds one, else with its part.  Nothing else is sent again.
* A member is lost when it is reported dead, when it owes us a part and nothing came from it for `stall_s` and `PACES` times
  the pace of the others, or when it owes us a result and nothing came from it for twice that (an owner may itself be
  waiting for somebody); not twice, when the owners of most chunks went on without it.  What counts as coming says `debts`.
* A successor may have given up an owner before we do.  Its result is not taken until we do, too, but then asked for at once.
* Who is never lost may still be late each time: what a member keeps us waiting for as an owner is counted (`delays`), and
  how late its averages are beside those of other owners (`lateness`); `protocol.agreement.patience` remembers both.
* An owner waits for late parts no longer than `wait_s`, and then averages without them: so who withholds its part from one
  owner cannot make its averages so late that others lose it, which they do after `owner_s`.
* Who is lost stays lost in this exchange: nobody waits for it any more.  What it still sends is taken.
* The first valid result of a chunk is kept.  If two versions exist, the round's record decides (`adopt`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf

from protocol.allreduce.assignment import plan_hash, takeover_order
from protocol.allreduce.buffers import share_of_buffers
from protocol.allreduce.events import (
    Ask,
    Asked,
    Averaged,
    Done,
    ExchangeEffect,
    ExchangeEvent,
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
    Started,
    Tick,
)
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, Plan, members_in

# ------------------------------------------------------------------------------------------------------------------------
# Who owes us something in an exchange, since when, and when we last heard of it.
#
# A chunk may take long on a line that carries several at a time, so its bytes count as they come; but those of one chunk
# only, until it is here and right: else whoever pushes rubbish would be waited for as long as it does.  Whoever has to wait
# for a buffer here does not owe us what it could not send.


class Debts:
    """`now` is trio time.  chunk_s: bytes of one chunk count for so long (s)."""

    def __init__(self, peers: Iterable[PeerId], now: float, chunk_s: float) -> None:
        self._heard, self._chunk_s, self._begun = dict.fromkeys(peers, now), chunk_s, now
        self._announced: dict[PeerId, float] = {}
        """Peers that have begun to push something since they last delivered, and when."""
        self._first: dict[PeerId, float] = {}
        self._delivered: dict[PeerId, float] = {}
        self._owing: dict[PeerId, float] = {}

    def announced(self, peer: PeerId, now: float) -> None:
        """A peer began to push something.  That counts once; then only what arrives and is new."""
        if peer in self._heard and peer not in self._announced:
            self._announced[peer] = now
            self._heard[peer] = now

    def moving(self, peer: PeerId, now: float) -> None:
        """More of what it began to push is here."""
        if now - max(self._announced.get(peer, -inf), self._delivered.get(peer, -inf)) < self._chunk_s:
            self._heard[peer] = now

    def held(self, peer: PeerId, now: float) -> None:
        """A push of this peer waits for a buffer here, for which it is not to blame."""
        if peer in self._heard:
            self._heard[peer] = now

    def delivered(self, peer: PeerId, now: float) -> None:
        """A peer delivered something new."""
        if peer in self._heard:
            self._announced.pop(peer, None)
            self._heard[peer] = self._delivered[peer] = now
            self._first.setdefault(peer, now)

    def pace_s(self, peers: Collection[PeerId], most_s: float, now: float) -> float:
        """How long it took until half of these delivered something; until they have, the time so far, `most_s` at most.

        On lines that carry large chunks to many at a time that is long, and so are honest silences.
        """
        first = sorted(self._first[peer] for peer in peers if peer in self._first)
        half = (len(peers) + 1) // 2
        return first[half - 1] - self._begun if 0 < half <= len(first) else min(now - self._begun, most_s)

    def overdue(self, owing: Mapping[PeerId, float], now: float) -> list[PeerId]:
        """Those that have kept us waiting for too long, sorted.

        owing: everybody that owes us something now, and how long (s) it may be silent; patience begins with the debt.
        """
        self._owing = {peer: self._owing.get(peer, now) for peer in owing}
        return sorted(peer for peer, patience in owing.items() if now - max(self._heard[peer], self._owing[peer]) > patience)


# ------------------------------------------------------------------------------------------------------------------------
# Whom the owners of an exchange leave out of their averages: what gives nothing to anybody will give us nothing.


class Omissions:
    """Reads the masks of the averages that are here.  chunks: how many a contribution has."""

    def __init__(self, members: Sequence[PeerId], chunks: int) -> None:
        self._members, self._chunks = members, chunks
        self._without: dict[PeerId, dict[int, PeerId]] = {}
        """Who left out whom, in which chunk."""

    def note(self, signer: PeerId, chunk: int, entry: ChunkEntry) -> None:
        """The average of a chunk by this member, with a mask that is well formed."""
        taken = members_in(entry.mask, len(self._members))
        for index, peer in enumerate(self._members):
            if index not in taken:
                self._without.setdefault(peer, {}).setdefault(chunk, signer)

    def is_left_out(self, peer: PeerId) -> bool:
        """Whether others average more than half of the chunks without this member, and are more than one.

        Those of four or more electors that may lie own less than half (`protocol.agreement.policy`).  Members that are no
        electors may own more; what they can do to an owner by this is no more than to take its double time.
        """
        signers = [signer for signer in self._without.get(peer, {}).values() if signer != peer]
        return 2 * len(signers) > self._chunks and len(set(signers)) > 1


# ------------------------------------------------------------------------------------------------------------------------
# How long each member kept us waiting in an exchange, though it was never silent for so long that it was lost.


LONGEST_S = 1.0
"""What counts between two looks: where we slept in between, nobody else is to blame for it."""
SPREAD = 0.5
"""Of the time that most took since the exchange began: others may take so much more, for no two lines are equally fast.  It
is nothing where exchanges are short beside the work, and half an exchange where they are long.  Clearly more than the
difference that the shares of chunks do not make up for (`protocol.allreduce.assignment.ALIKE`)."""


class Due:
    """When what the others owe is due: `SPREAD` later than most of us were, or would have been, done with giving it.

    Most are held up where there is room for a part of it only.  Then the time in which they gave tells how long the whole
    would have taken them.  begun: trio time.
    """

    def __init__(self, begun: float) -> None:
        self._begun = self._looked_at = begun
        self._gave_s = 0.0
        self._most_gave = False
        self.at = begun
        """When it is due; the beginning while most still give."""

    def has_come(self, most_gave: bool, share: float, now: float) -> bool:
        """Whether it is due.  most_gave: all that they can now; share: that is so much of the whole, until now."""
        if not self._most_gave:
            self._gave_s += now - self._looked_at
        self._most_gave, self._looked_at = most_gave, now
        self.at = self._begun + ((1 + SPREAD) * self._gave_s / share if most_gave else 0.0)
        return most_gave and now >= self.at


class Delays:
    """seconds: of each member that delayed anything.  Several chunks that wait at a time count once.  `now` is trio time.

    all_s: the seconds in which any of them did.
    """

    def __init__(self, now: float) -> None:
        self.seconds: dict[PeerId, float] = {}
        self.all_s = 0.0
        self._looked_at = now

    def note(self, delaying: Collection[PeerId], now: float) -> None:
        """Since the last look these members delayed something."""
        passed, self._looked_at = min(now - self._looked_at, LONGEST_S), now
        self.all_s += passed if delaying else 0.0
        for peer in delaying:
            self.seconds[peer] = self.seconds.get(peer, 0.0) + passed


# ------------------------------------------------------------------------------------------------------------------------
# Whose averages are late in an exchange: later than an honest owner's can be, beside those of other owners.


class Ownership:
    """Which member the plan gave which chunks.  owners: of each.  members: how many the plan has.  begun: trio time.

    Others have had the time to average when all averages of more than half of those of the jury are here that own chunks,
    these own more than half of what the jury owns, and `SPREAD` of the time that this took has passed since.  An honest
    owner is among them, however early liars sign: these are fewer, and own less than half
    (`protocol.agreement.policy`).  Who owns nothing, or little, makes nobody look late, and an owner of more than those
    have gets so much more time as it has more to send.  (That all our own averages are made tells nothing: those of others
    may still be on their lines.)

    An honest owner averages when it has all parts, or has waited for the late ones as long as it may
    (`ExchangeMachine.wait_s`), for the fair time at least.  So where the lines of honest members differ by no more than
    that, another honest owner has their parts by then, too, and only waits for late ones: for a time that is bounded.
    """

    def __init__(self, owners: Sequence[PeerId], members: int, begun: float) -> None:
        self._all, self._members, self._begun = len(owners), members, begun
        self._chunks: dict[PeerId, list[int]] = {}
        for chunk, peer in enumerate(owners):
            self._chunks.setdefault(peer, []).append(chunk)
        self._reference: tuple[float, float] | None = None
        """When (s) the averages of more than half were here, and the mean load of their owners."""

    def late(
        self, here: Collection[int], jury: Collection[PeerId], owner: Callable[[int], PeerId], now: float
    ) -> set[PeerId]:
        """Who is late.  here: chunks whose averages are.  owner: of a chunk now; a successor is not late."""
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
        most = max(load, self._load(len(self._chunks[peer])))  # who owns less may have a slower line
        return (now - self._begun) * load >= (1 + SPREAD) * took_s * most

    def _load(self, chunks: int) -> int:
        """What an owner of so many sends, and receives, in chunks (`protocol.allreduce.assignment`)."""
        return self._all + (self._members - 2) * chunks


# ------------------------------------------------------------------------------------------------------------------------
# Who averages each chunk, and who does when its owner is lost.


class Succession:
    """The owner of a chunk is the first in its takeover order that is waited for; we are, when nobody else is left."""

    def __init__(self, me: PeerId, plan: Plan, members: Sequence[PeerId]) -> None:
        self._me, self._name, self._members = me, plan_hash(plan), members
        self._orders = [[members[owner]] for owner in plan.owners]
        """The takeover order of each chunk; the planned owner alone, as long as that is enough."""
        self.lost: dict[PeerId, None] = {}
        """Members that are waited for no more, in this exchange."""
        self.shares: dict[PeerId, float] = {}
        """The part of the time that members get who kept earlier exchanges waiting; others get all of it.  With 0 a member
        is not waited for at all: what it gives counts if it is here in time."""

    def share(self, peer: PeerId) -> float:
        """The part of the time that this member gets."""
        return self.shares.get(peer, 1.0)

    def is_awaited(self, peer: PeerId) -> bool:
        """Whether anybody waits for what this member gives."""
        return peer not in self.lost and self.share(peer) > 0

    def planned(self, chunk: int) -> PeerId:
        """The member that the plan gave this chunk."""
        return self._orders[chunk][0]

    def owner(self, chunk: int) -> PeerId:
        """The member that averages this chunk now."""
        order = self._orders[chunk]
        if order[0] not in self.lost:
            return order[0]
        if len(order) == 1:
            order = self._orders[chunk] = takeover_order(self._name, chunk, self._members, order[0])
        return next((peer for peer in order if self.is_awaited(peer)), self._me)

    def is_in_line(self, peer: PeerId, chunk: int) -> bool:
        """Whether this member owns the chunk, or follows an owner that was lost."""
        return peer in self._orders[chunk]

    def may_sign(self, peer: PeerId, chunk: int) -> bool:
        """Whether this member averages the chunk now, or did before we gave it up: the others would come first with less
        than the owner has."""
        owner = self.owner(chunk)
        order = self._orders[chunk]
        return peer == owner or peer in order[: order.index(owner)]


# ------------------------------------------------------------------------------------------------------------------------


OWNER_SHARE = 0.2
"""The least part of the time for an owner: the plan has given it chunks, and others may wait for it."""
CHUNK_TIMES = 6.0
"""Times `stall_s` for which the bytes of one chunk are a sign of life: a line may carry several at a time."""
PACES = 3.0
"""Times the pace of an exchange that a member may be silent beyond `stall_s`: what half of the jury took for one chunk."""
RESULT_PATIENCE = 2.0
"""Times as long that an owner may be silent while it owes a result."""
ASK_EVERY_S = 2.0
"""Seconds between two rounds of questions for what a successor misses."""


class ExchangeMachine:
    """One member's view of the exchange of `plan`: what it holds, who is lost, and what follows from each event.

    name: the hash of the plan.  entries: the index entries of the results that are here, by chunk.  `now` is trio time.
    stall_s: how long a member may be silent that owes us a part, where lines are quick.
    """

    def __init__(self, me: PeerId, plan: Plan, stall_s: float, now: float) -> None:
        self.me, self.plan, self.name = me, plan, plan_hash(plan)
        self.members = [PeerId(member.peer) for member in plan.members]
        self.others = [peer for peer in self.members if peer != me]
        self.entries: dict[int, ChunkEntry] = {}
        self._stall_s = stall_s
        self._index = {peer: index for index, peer in enumerate(self.members)}
        self.succession = Succession(me, plan, self.members)
        self.stalled: dict[PeerId, None] = {}
        """Members that were given up because they owed something for too long."""
        self.delays, self.jury = Delays(now), self.members
        """jury: by the parts, or averages, of more than half of these we know who is late."""
        self.lateness, self._parts_due = Delays(now), Due(now)
        self._ownership = Ownership([self.members[owner] for owner in plan.owners], len(self.members), now)
        self.wait_s, self.owner_s = inf, dict[PeerId, float]()
        """wait_s: for how long our averages may wait for late parts.  owner_s: how late the averages of others may be."""
        self.left_out: dict[PeerId, None] = {}
        """Members whose parts we do not wait for any more."""
        self._debts = Debts(self.members, now, CHUNK_TIMES * stall_s)
        self._omissions = Omissions(self.members, self.chunks)
        self._signed_early: dict[int, dict[PeerId, None]] = {}
        """Of each chunk: who has signed a result out of turn.  Whoever passes it on may not have it; its signer does."""
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
        """How many chunks a contribution has."""
        return len(self.plan.owners)

    @property
    def lost(self) -> Collection[PeerId]:
        """Members that nobody waits for any more."""
        return self.succession.lost.keys()

    def is_reducing(self, chunk: int) -> bool:
        """Its parts are being averaged."""
        return chunk in self._reducing

    def owner(self, chunk: int) -> PeerId:
        """The member that averages this chunk now."""
        return self.succession.owner(chunk)

    def waiting_for(self) -> list[PeerId]:
        """Members that the missing results wait for, sorted: owners, and members that owe us parts."""
        peers: dict[PeerId, None] = {}
        for chunk in range(self.chunks):
            if chunk not in self.entries and self.owner(chunk) != self.me:
                peers[self.owner(chunk)] = None
            elif chunk not in self.entries:
                peers.update(dict.fromkeys(self._missing(chunk)))
        return sorted(peers)

    def lacks(self, arrived: PartArrived | ResultArrived) -> bool:
        """Whether this is a result that we do not have, or a part without which one was not made yet."""
        if arrived.chunk in self.entries:
            return False
        return isinstance(arrived, ResultArrived) or self._index[arrived.peer] not in self._parts.get(arrived.chunk, ())

    def adopt(self, index: Sequence[ChunkEntry]) -> list[int]:
        """The chunks in which we hold nothing, or another version than the record's."""
        return [chunk for chunk, entry in enumerate(index) if self.entries.get(chunk) != entry]

    # -- events -------------------------------------------------------------------------------------------------------

    def handle(self, event: ExchangeEvent, now: float) -> list[ExchangeEffect]:
        """Take an event; returns the actions that follow from it, to be performed in this order."""
        match event:
            case Started():
                return [effect for chunk in range(self.chunks) for effect in self._turn_to_owner(chunk)]
            case Heard(peer):
                self._debts.announced(peer, now)
                return []
            case Moving(peer, held):
                if not held:
                    self._debts.moving(peer, now)
                elif self._waits_for_others(peer):
                    self._debts.held(peer, now)
                return []
            case PartArrived(peer, chunk):
                return self._part_arrived(peer, chunk, now)
            case ResultArrived(peer, chunk, entry, signer):
                self._omissions.note(signer, chunk, entry)
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
            case Tick():
                return self._tick(now)

    def _part_arrived(self, peer: PeerId, chunk: int, now: float) -> list[ExchangeEffect]:
        if chunk in self.entries:
            return [SendResult(peer, chunk)]
        if self.lacks(PartArrived(peer, chunk)):
            self._debts.delivered(peer, now)
        self._parts.setdefault(chunk, set()).add(self._index[peer])
        if self.owner(chunk) != self.me:
            self._want(peer, chunk)
            return []
        return self._reduce_if_complete(chunk)

    def _result_arrived(self, peer: PeerId, chunk: int, entry: ChunkEntry, now: float) -> list[ExchangeEffect]:
        if chunk in self.entries:
            return []
        self._debts.delivered(peer, now)
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
        self.succession.lost[peer] = None
        effects: list[ExchangeEffect] = [Lost(peer)]
        for chunk in range(self.chunks):
            if chunk in self.entries:
                continue
            if self.succession.is_in_line(peer, chunk):
                effects += self._turn_to_owner(chunk)
            if self.owner(chunk) == self.me:
                effects += self._reduce_if_complete(chunk)
        return effects

    def _tick(self, now: float) -> list[ExchangeEffect]:
        effects: list[ExchangeEffect] = []
        delaying = self._delaying(now)
        self.delays.note(delaying, now)
        self.lateness.note(self._ownership.late(self.entries, self.jury, self.owner, now) - {self.me}, now)
        for peer in self._stalled(now):
            self.stalled[peer] = None
            effects += self._lose(peer)
        if self.delays.all_s > self.wait_s:
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
        """Give our part of a chunk to whoever owns it now."""
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
        """Who is asked for a chunk: by a successor, whose part it misses; by others, a successor that signed early."""
        owner = self.owner(chunk)
        if chunk in self.entries or owner == self.succession.planned(chunk):
            return []
        if owner == self.me:
            return self._missing(chunk)
        return [owner] if owner in self._signed_early.get(chunk, ()) else []

    def _missing(self, chunk: int) -> list[PeerId]:
        have = self._parts.get(chunk, set())
        awaited = (peer for peer in self.others if self.succession.is_awaited(peer) and peer not in self.left_out)
        return [peer for peer in awaited if self._index[peer] not in have]

    def _waiting(self) -> list[int]:
        """Chunks of ours whose averages are not here, in the order in which their parts are sent to us."""
        missing = [chunk for chunk in range(self.chunks) if chunk not in self.entries] if self.lost else []
        inherited = [
            chunk for chunk in missing if self.succession.planned(chunk) != self.me and self.owner(chunk) == self.me
        ]
        return [chunk for chunk in self._planned if chunk not in self.entries] + inherited

    def _waits_for_others(self, peer: PeerId) -> bool:
        """Whether a push of this peer that we have no room for waits for the parts of others: it gave its own one of the
        chunk that is averaged next."""
        mine = self._waiting()
        return bool(mine) and self._index[peer] in self._parts.get(mine[0], ())

    def _delaying(self, now: float) -> set[PeerId]:
        """Members for whose parts alone we wait.  More than half of the jury gave their parts of all our chunks, or as many
        as there is room for before an average is made; the others are due, and did not give the first one that those gave.
        Before that they cost nothing, however far behind the others they are.
        """
        mine = self._waiting()
        jury = {self._index[peer] for peer in self.jury}
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
            return []  # not started yet: our own part belongs to it
        self._reducing.add(chunk)
        return [Reduce(chunk, tuple(sorted(self._parts[chunk])))]

    def _hold(self, chunk: int, entry: ChunkEntry, to: Sequence[PeerId]) -> list[ExchangeEffect]:
        self.entries[chunk] = entry
        self._parts.pop(chunk, None)
        if to:
            self._mine.append(chunk)
        wishes = [peer for peer in self._wanted_by.pop(chunk, []) if peer not in to]
        effects: list[ExchangeEffect] = [SendResult(peer, chunk) for peer in [*to, *wishes]]
        return [*effects, Done()] if len(self.entries) == self.chunks else effects

    def _want(self, peer: PeerId, chunk: int) -> None:
        wishes = self._wanted_by.setdefault(chunk, [])
        if peer not in wishes:
            wishes.append(peer)

    def _stalled(self, now: float) -> list[PeerId]:
        owners = {self.members[owner] for owner in self.plan.owners}
        senders = {*self.jury} & ({*self.others} if self._planned else owners)  # who has something for us from the beginning
        silence_s = self._stall_s + PACES * self._debts.pace_s(senders, self._stall_s, now)
        parts, averages = dict[PeerId, float](), dict[PeerId, float]()
        for chunk in range(self.chunks):
            owner = self.owner(chunk)
            if chunk in self.entries or chunk in self._reducing:
                continue
            if owner == self.me:
                parts |= {peer: silence_s * self.succession.share(peer) for peer in self._missing(chunk)}
            elif owner not in averages:
                patience = 1.0 if self._omissions.is_left_out(owner) else RESULT_PATIENCE
                averages[owner] = patience * silence_s * max(self.succession.share(owner), OWNER_SHARE)
        overdue = {*self._debts.overdue(averages | parts, now)}
        waiting = {owner for owner in averages if now < self._parts_due.at + self.owner_s.get(owner, 0.0)} - {*parts}
        late = [peer for peer, seconds in self.lateness.seconds.items() if seconds > self.owner_s.get(peer, inf)]
        return sorted((overdue - waiting) | {peer for peer in late if peer in averages or peer in parts})
