"""The parts of a round around its machine: queue, early READYs, deliveries, reports, view of the peers, votes on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import trio

from protocol.agreement.events import (
    AmendmentHeld,
    Arrived,
    ExchangeMoved,
    Forward,
    PeerView,
    Reject,
    RoundEvent,
    Send,
    StateHashed,
    View,
)
from protocol.agreement.machine import RoundMachine
from protocol.allreduce.runner import ExchangeRunner
from protocol.audit.auditor import Unaccountable
from protocol.audit.ejection import Ejections
from protocol.audit.evidence import TwoStatements, contradict
from protocol.chain.base import Base
from protocol.chain.electorate import tolerated
from protocol.chain.replica import Replica
from protocol.chain.store import read_voter_state
from protocol.events.events import Dropped, Notice, ReadySent, RoundProposed, RoundVoted
from protocol.events.status import WhyIdle
from protocol.membership.activity import Activity
from protocol.membership.handshake import Handshake
from protocol.membership.liveness import Liveness, Membership, Neighbour
from protocol.offload import Offload
from protocol.trainer_link import Contribution
from protocol.transport.handlers import Guard
from protocol.transport.interface import Members, NetworkError, Session, Unreachable
from protocol.wire.envelope import Body, Envelope
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit, Plan, Proposal, Ready, Step, Vote, VoterState
from protocol.wire.presence import Heartbeat, Phase, Role


@dataclass(frozen=True)
class RoundPeers:
    """Access of a node's rounds to the other peers, and the activity that is shown to them."""

    session: Session
    guard: Guard
    handshake: Handshake
    membership: Membership
    ejections: Ejections
    activity: Activity


# ------------------------------------------------------------------------------------------------------------------------
# The queue of a round's machine: statements of peers, limited in bytes, and events of our own.


QUEUE = 4096
"""Most events in the queue; further events are dropped, and the senders of dropped statements send them again."""
QUEUE_BYTES = 16 << 20
QUEUE_BYTES_PER_PEER = 4 << 20
"""Most bytes of one peer's waiting statements, as encoded for the wire; in memory a statement is up to 16 times as large."""


@dataclass(frozen=True)
class _Waiting:
    """A queued event.  size: bytes charged to the peer that brought the event, until the event is taken."""

    event: RoundEvent
    bringer: PeerId
    size: int


class Inbox:
    """The queue of one round, read by one task.  Only `next` waits."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._put, self._take = trio.open_memory_channel[_Waiting](QUEUE)
        self._bytes: Counter[PeerId] = Counter()
        self._noted: dict[type[RoundEvent], tuple[RoundEvent, float]] = {}

    def receive(self, sender: PeerId, body: Body, envelope: Envelope, *, by: PeerId | None = None) -> None:
        """Queue a statement.  by: the peer that brought the statement; None if that is the sender."""
        bringer, size = by or sender, max(len(envelope.raw), QUEUE_BYTES // QUEUE)
        if self._bytes.total() + size > QUEUE_BYTES or self._bytes[bringer] + size > QUEUE_BYTES_PER_PEER:
            self._session.emit(Dropped(bringer, "statement", "too many bytes are waiting"))
        elif self._post(_Waiting(Arrived(sender, body, envelope.signature), bringer, size)):
            self._bytes[bringer] += size

    def tell(self, event: RoundEvent) -> None:
        """Queue our own event."""
        self._post(_Waiting(event, self._session.me, 0))

    def note(self, event: StateHashed | ExchangeMoved | AmendmentHeld) -> None:
        """Keep the event; the machine handles it just before the next queued event.

        The machine returns no effects for such events, so only the newest event of each kind is kept.  Chunks arrive by the
        hundred, and their events must not fill the queue.
        """
        self._noted[type(event)] = (event, trio.current_time())

    def take_notes(self) -> list[tuple[RoundEvent, float]]:
        """Return the events noted since the last call, each with its time."""
        notes = list(self._noted.values())
        self._noted.clear()
        return notes

    async def next(self) -> RoundEvent:
        """Wait for the next queued event and return it."""
        waiting = await self._take.receive()
        self._bytes[waiting.bringer] -= waiting.size
        return waiting.event

    async def aclose(self) -> None:
        """Close the queue because the round is over; later events are dropped."""
        await self._take.aclose()

    def _post(self, waiting: _Waiting) -> bool:
        try:
            self._put.send_nowait(waiting)
            return True
        except trio.BrokenResourceError:
            return False  # the round is over
        except trio.WouldBlock:
            self._session.emit(Dropped(self._session.me, "statement", "too many are waiting"))
            return False


# ------------------------------------------------------------------------------------------------------------------------
# The newest READY of each peer, received by gossip: other peers may be READY in a round before it begins here.
#
# A READY is forgotten when its round is over.  Members have places of their own.  All strangers, in any number, share two
# places for each member that a round may have.  A live stranger takes the place of a stranger that is not alive.


MAX_OF_MEMBERS = 2048
STRANGERS_PER_MEMBER = 2


@dataclass(frozen=True)
class _Heard:
    ready: Ready
    envelope: Envelope
    was_live: bool


class EarlyReadyBuffer:
    """Buffer of READYs between rounds, which detects two different READYs for one slot.

    members: distinguishes members from strangers.  round_members: the largest number of members in a round.
    """

    def __init__(self, members: Members, round_members: int) -> None:
        self._members, self._strangers_room = members, STRANGERS_PER_MEMBER * round_members
        self._round = 0
        self._of_members: dict[PeerId, _Heard] = {}
        self._of_strangers: dict[PeerId, _Heard] = {}

    def __len__(self) -> int:
        return len(self._of_members) + len(self._of_strangers)

    def add(self, sender: PeerId, ready: Ready, envelope: Envelope, *, is_live: bool) -> bool | TwoStatements:
        """Keep a READY; return True if it is new, or proof that its sender made two statements for one slot.

        is_live: True if the sender counts as alive for us.
        """
        if ready.round < self._round:
            return False
        known = self._of_members.get(sender) or self._of_strangers.get(sender)
        if known is not None and known.envelope.raw == envelope.raw:
            return False
        if known is not None and (ready.incarnation, ready.serial) <= (known.ready.incarnation, known.ready.serial):
            is_lie = contradict(known.ready, ready)
            return TwoStatements(first=known.envelope.raw, second=envelope.raw) if is_lie else False
        return self._keep(sender, _Heard(ready, envelope, is_live))

    def _keep(self, sender: PeerId, heard: _Heard) -> bool:
        """Keep a READY if a place is free; return True if it was kept."""
        if self._members.has_member(sender):
            self._of_strangers.pop(sender, None)
            if sender not in self._of_members and len(self._of_members) >= MAX_OF_MEMBERS:
                return False
            self._of_members[sender] = heard
            return True
        self._of_members.pop(sender, None)
        if sender not in self._of_strangers and len(self._of_strangers) >= self._strangers_room:
            dead = next((peer for peer, other in self._of_strangers.items() if not other.was_live), None)
            if dead is None or not heard.was_live:
                return False
            del self._of_strangers[dead]
        self._of_strangers[sender] = heard
        return True

    def begin(self, round: int, tip: Hash) -> list[tuple[PeerId, Ready, Envelope]]:
        """Return the READYs for the round that begins here on `tip`, and forget the READYs of earlier rounds.

        Strangers' READYs are kept only for this round: each heartbeat of a ready peer repeats its READY.
        """
        self._round = round
        self._of_members = {peer: heard for peer, heard in self._of_members.items() if heard.ready.round >= round}
        self._of_strangers = {peer: heard for peer, heard in self._of_strangers.items() if heard.ready.base == tip}
        found = (*self._of_members.items(), *self._of_strangers.items())
        return [(peer, heard.ready, heard.envelope) for peer, heard in found if heard.ready.base == tip]


# ------------------------------------------------------------------------------------------------------------------------
# Delivery of our statements to single peers, and to ourselves.  Some deliveries outlive the round that starts them.  A peer
# that leaves waits for them before it says goodbye.


TIMEOUT_S = 10.0
RETRY_S = 0.5


class Deliveries:
    """Deliveries of one node's statements in its rounds, some of which outlive the round that starts them."""

    def __init__(self, peers: RoundPeers) -> None:
        self._peers, self._under_way, self._idle = peers, 0, trio.Event()

    def send(self, effect: Send | Forward, inbox: Inbox, nursery: trio.Nursery | None) -> None:
        """Begin to deliver another peer's statement, or ours, which is signed here.

        inbox: receives the statements that we address to ourselves.  nursery: the nursery of the round; None for a delivery
        that outlives the round, as our commits do: a commit ends our round before the other peers have received it.
        """
        session = self._peers.session
        if isinstance(effect, Forward):
            self._start(effect.to, effect.what, effect.raw, nursery)
            return
        if isinstance(effect.body, Commit):
            nursery = None
        envelope = session.seal(effect.body)
        for peer in effect.to:
            if peer == session.me:
                inbox.receive(peer, effect.body, envelope)
            else:
                self._start(peer, envelope.kind, envelope.raw, nursery)

    def _start(self, peer: PeerId, what: str, raw: bytes, nursery: trio.Nursery | None) -> None:
        """Start a delivery, which counts from now on: its task takes its first step later."""
        if nursery is not None:
            nursery.start_soon(self._deliver, peer, what, raw)
        elif not self._peers.guard.start(self._deliver, peer, what, raw):
            return  # the node is at its end
        self._under_way += 1

    async def _deliver(self, peer: PeerId, what: str, raw: bytes) -> None:
        """Deliver a statement with best effort; the machine sends important statements again."""
        session = self._peers.session
        try:
            for attempt in range(2):
                try:
                    await session.network.request(peer, "round", raw, timeout_s=TIMEOUT_S)
                    return
                except Unreachable:
                    await trio.sleep(RETRY_S * (attempt + 1))
                except NetworkError as error:
                    name = self._peers.membership.name(peer)
                    session.emit(Notice("debug", f"{name} refused our {what}: {error}"))
                    return
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def delivered(self) -> None:
        """Wait until no delivery is under way."""
        while self._under_way:
            if self._idle.is_set():
                self._idle = trio.Event()
            await self._idle.wait()


# ------------------------------------------------------------------------------------------------------------------------
# Reports about a round to the user of this peer: events, and a sentence with the reason why the round waits.


SHOW_EXCHANGE_S = 5.0
"""Seconds between two sentences about the same exchange."""


class RoundReport:
    """Reporter on one round, which changes only the display.  abstains: True if this peer does not vote."""

    def __init__(self, session: Session, membership: Membership, activity: Activity, *, abstains: bool) -> None:
        self._session, self._membership, self._activity, self._abstains = session, membership, activity, abstains
        self._complained: dict[str, None] = {}
        self._proposed = -1
        self._whom = ""
        self._exchange_shown_at: float | None = None

    def waiting(self, machine: RoundMachine, view: View, min_members: int) -> None:
        """Show the peers that the round waits for while we are ready, and no record is there to vote on or to fetch."""
        waiting, ready = machine.waiting_for(view), machine.ready_count
        if self._session.me in waiting or machine.is_settling:
            return  # the machine has not handled our READY yet, or it waits for votes or a result, which others show
        if ready < min_members and not waiting:
            self._activity.show(
                Phase.READY,
                WhyIdle.WAITING_FOR_PEERS,
                f"waiting for more peers ({ready} of {min_members})",
            )
        else:
            names = ", ".join(self._membership.name(peer) for peer in waiting[:4]) or (
                "the others' votes; this peer does not vote yet (see --only-copy)" if self._abstains else "the proposal"
            )
            self._activity.show(Phase.READY, WhyIdle.WAITING_FOR_MEMBERS, f"{ready} ready, waiting for {names}")

    def exchanging(self, plan: Plan) -> None:
        """Show that an exchange begins."""
        others = len(plan.members) - 1
        self._whom = (
            f"with {others} {'other' if others == 1 else 'others'}" if others else "with nobody, alone in this round"
        )
        self._exchange_shown_at = None
        self._activity.show(Phase.EXCHANGING, WhyIdle.EXCHANGING, self._whom)

    def exchange_waits(self, exchange: ExchangeRunner) -> None:
        """Show the members for which a long exchange waits; once it is complete, that we wait for the record."""
        now = trio.current_time()
        shown_at = self._exchange_shown_at = now if self._exchange_shown_at is None else self._exchange_shown_at
        if self._activity.beneath is not Phase.EXCHANGING or now - shown_at < SHOW_EXCHANGE_S:
            return
        self._exchange_shown_at = now
        if exchange.done.is_set():
            text = "all parts are averaged here; waiting for the others, and for the record proposal"
            self._activity.show(Phase.EXCHANGING, WhyIdle.COMMITTING, text)
            return
        names = ", ".join(self._membership.name(peer) for peer in exchange.machine.waiting_for()[:4])
        self._activity.show(
            Phase.EXCHANGING, WhyIdle.EXCHANGING, f"{self._whom}, waiting for {names}" if names else self._whom
        )

    def ready(self, ready: Ready, contribution: Contribution, fragments: int) -> None:
        """Report that we have contributed."""
        margin, accuracy, fragment = contribution.margin, contribution.accuracy, ready.fragment
        self._session.emit(
            ReadySent(ready.round, ready.tokens, ready.steps, ready.loss, margin, accuracy, fragment, fragments)
        )

    def sent(self, body: Body) -> None:
        """Show our outgoing statement if it is a first vote or a new proposal."""
        if isinstance(body, Vote) and body.step is Step.FIRST:
            self._activity.show(Phase.VOTING, WhyIdle.COMMITTING, "voted, waiting for the quorum")
            self._session.emit(RoundVoted(body.round, body.attempt, body.record_hash.hex()))
        elif isinstance(body, Proposal) and body.attempt != self._proposed:
            plan, self._proposed = body.plan, body.attempt
            self._session.emit(
                RoundProposed(
                    plan.round, body.attempt, self._session.me, [member.peer for member in plan.members], list(body.absent)
                )
            )

    def rejected(self, effect: Reject) -> None:
        """Report a rejected statement."""
        self._session.emit(Dropped(effect.sender, effect.what, effect.reason))

    def unaccountable(self, round: int, problem: Unaccountable) -> None:
        """Report that we do not vote for a record; report each reason once."""
        if str(problem) not in self._complained:
            self._complained[str(problem)] = None
            level = "info" if problem.is_doubt else "warning"
            self._session.emit(Notice(level, f"round {round}: no vote for {problem}"))


# ------------------------------------------------------------------------------------------------------------------------
# The view of the peers on which `protocol.agreement.policy` bases its decisions, built from the heartbeats of the peers.


AT_WORK = frozenset({Phase.COMPUTING, Phase.READY, Phase.EXCHANGING, Phase.VOTING, Phase.APPLYING})
"""Phases of a trainer for which a round waits, if the trainer is on our tip or is an elector about to reach it."""
ARRIVING = AT_WORK | {Phase.SYNCING}
NEAR_ROUNDS = 2
"""Most rounds by which a peer may be behind us and still count as about to reach our tip."""


class Surroundings:
    """Views of the other peers for the round on `base`.

    The view of a live peer does not change until its next heartbeat, so it is cached: each statement needs some views.
    """

    def __init__(self, me: PeerId, membership: Membership, base: Base) -> None:
        self.me, self.membership, self._base = me, membership, base
        self._live: dict[PeerId, tuple[Heartbeat, PeerView]] = {}

    def look_around(self, bytes_per_s: float, computing: bool) -> View:
        """Return the present view of all known peers, all electors and ourselves; use it before the next await.

        bytes_per_s: capacity of our own line.  computing: whether we train.
        """
        now = trio.current_time()
        self.membership.notice(now)
        if len(self._live) > 2 * len(self.membership):
            self._live.clear()  # most of these peers are forgotten
        return _PresentView(self, PeerView(True, computing, False, 0.0, bytes_per_s), now)

    def peers(self) -> Iterator[PeerId]:
        """Yield all known peers, then the other electors, then ourselves."""
        membership, electors = self.membership, self._base.electors
        for peer, _ in membership:
            yield peer
        for peer in electors:
            if membership.get(peer) is None:
                yield peer
        if self.me not in electors:
            yield self.me

    def view_of(self, peer: PeerId, now: float) -> PeerView | None:
        """Return the view of another peer; None if it is neither known nor an elector."""
        known = self.membership.get(peer)
        if known is None:
            if peer not in self._base.electors:
                return None
            return PeerView(False, False, self.membership.has_left(peer), self.membership.silent_s(peer, now))
        if known.liveness is not Liveness.ALIVE:
            return _not_live(known, now)
        seen = self._live.get(peer)
        if seen is None or seen[0] is not known.heartbeat:
            self._live[peer] = seen = known.heartbeat, self._of_live(peer, known.heartbeat)
        return seen[1]

    def steps_ahead(self) -> int:
        """Return the number of steps that over half of the other electors have done on our tip, by their last heartbeats."""
        now = trio.current_time()
        self.membership.notice(now)
        beats = {peer: known.heartbeat for peer, known in self.membership if known.liveness is Liveness.ALIVE}
        electors = [peer for peer in self._base.electors if peer != self.me]
        steps = sorted(self._steps(beats[peer]) if peer in beats else 0 for peer in electors)
        return steps[(len(steps) - 1) // 2] if steps else 0

    def _steps(self, beat: Heartbeat) -> int:
        return beat.steps if beat.phase in AT_WORK and beat.tip == self._base.tip else 0

    def _of_live(self, peer: PeerId, beat: Heartbeat) -> PeerView:
        base, trains = self._base, beat.role is Role.TRAINER
        if beat.was_away and beat.tip != base.tip and base.round - beat.round > NEAR_ROUNDS:
            # It says that it was away and is far behind: the round goes on without it until it has caught up.
            return PeerView(False, False, True, 0.0, _bytes_per_s(beat))
        return PeerView(
            live=True,
            on_tip=trains and _on_tip(beat, base, peer in base.electors),
            left=False,
            silent_s=0.0,
            bytes_per_s=_bytes_per_s(beat),
            near=trains and _near(beat, base),
        )


class _PresentView(Mapping[PeerId, PeerView]):
    """View of the peers at one moment, which judges a peer when it is read: most statements concern few peers."""

    def __init__(self, around: Surroundings, own: PeerView, now: float) -> None:
        self._around, self._own, self._now = around, own, now

    def __getitem__(self, peer: PeerId) -> PeerView:
        seen = self._own if peer == self._around.me else self._around.view_of(peer, self._now)
        if seen is None:
            raise KeyError(peer)
        return seen

    def __iter__(self) -> Iterator[PeerId]:
        return self._around.peers()

    def __len__(self) -> int:
        return sum(1 for _ in self._around.peers())


def _not_live(known: Neighbour, now: float) -> PeerView:
    left = known.liveness is Liveness.LEFT
    return PeerView(False, False, left, now - known.heard, _bytes_per_s(known.heartbeat))


def _bytes_per_s(beat: Heartbeat) -> float:
    return min(beat.up_bytes_per_s, beat.down_bytes_per_s)


def _on_tip(beat: Heartbeat, base: Base, elector: bool) -> bool:
    """Return True if the peer works on our tip, or is an elector whose last heartbeat is older than the tip's commit."""
    return beat.phase in AT_WORK and (beat.tip == base.tip or (elector and beat.round < base.round))


def _near(beat: Heartbeat, base: Base) -> bool:
    """Return True if the peer is about to work on our tip.  A peer with as many rounds but another tip is on a fork."""
    return beat.phase in ARRIVING and (beat.tip == base.tip or 0 < base.round - beat.round <= NEAR_ROUNDS)


# ------------------------------------------------------------------------------------------------------------------------
# Our votes on disk, which bind this peer after a restart.


ABSTENTIONS = 2
"""Number of rounds that must be committed before a peer with a copied or restored data directory votes."""


class VoteLog:
    """Votes of one node on its disk, and the node's abstention while some votes may be missing on the disk.

    A second vote in a ballot of all electors also confirms provisional records of our chain (`protocol.chain.finality`).
    is_copy: True if the data directory was copied or restored, so statements that bind our votes may be missing in it.
    """

    def __init__(
        self, session: Session, replica: Replica, offload: Offload, membership: Membership, *, is_copy: bool
    ) -> None:
        self._session, self._replica, self._offload, self._membership = session, replica, offload, membership
        self._abstentions = ABSTENTIONS if is_copy or replica.store.votes.has_lost_confirmed else 0
        self._free: dict[Hash, Hash] = {}
        """Provisional records of our chain against which no vote of ours stands, by the tip below."""

    async def load(self, base: Base) -> tuple[VoterState | None, bool]:
        """Return (votes that bind us on `base`, True if we must not vote on `base`)."""
        votes = self._replica.store.votes
        kept = read_voter_state(await self._offload(votes.load, base.round, base.tip))
        lost = kept is None and await self._offload(votes.has_lost, base.round, base.tip)
        if lost:
            self._session.emit(Notice("warning", f"our votes of round {base.round} cannot be read, so we do not vote in it"))
        has_confirmed = votes.confirmed_on(base.round, base.tip) is not None
        is_bound = await self._offload(self._is_bound_elsewhere)
        return kept, lost or self._abstentions > 0 or has_confirmed or is_bound

    def _is_bound_elsewhere(self) -> bool:
        """Return True if, at the tip below a provisional record of our chain, another record binds us.  Blocking."""
        history, votes = self._replica.history, self._replica.store.votes
        for round in history.provisional:
            tip, record = history.tip_at(round), history.tip_at(round + 1)
            if self._free.get(tip) != record:
                if votes.is_bound_elsewhere(round, tip, record):
                    return True
                self._free[tip] = record
        return False

    async def save(self, kept: VoterState) -> None:
        """Write to disk the votes that bind us at a tip, and the records that a second vote confirms."""
        votes, history = self._replica.store.votes, self._replica.history
        if kept.second is not None and kept.lock is not None and not kept.absent:
            members = [PeerId(member.peer) for member in kept.lock.record.members]
            confirmed = history.roster.finality.confirmable(members)
            mine = [round for each in confirmed if self._session.me in each.electors for round in each.rounds]
            await self._offload(votes.confirm, [(round, history.tip_at(round), history.tip_at(round + 1)) for round in mine])
        self._free.pop(Hash(kept.base), None)
        await self._offload(votes.save, kept.round, Hash(kept.base), kept.encode())

    async def note_commit(self, electors: Sequence[PeerId], rounds: int) -> None:
        """Count a committed round towards the end of our abstention.

        Our disk may lack statements that we made; they no longer matter once the electors commit a round without our vote.
        A round does not count if the electors left it long ago and a peer only shows us its record.
        """
        beats = [known.heartbeat for peer in electors if (known := self._membership.get(peer)) is not None]
        is_old = sum(beat.round > rounds for beat in beats) > tolerated(len(electors))
        if self._abstentions and not is_old:
            self._abstentions -= 1
            if not self._abstentions:
                await self._offload(self._replica.store.votes.forget_lost)
                self._session.emit(Notice("info", f"this peer votes again from round {rounds} on"))
