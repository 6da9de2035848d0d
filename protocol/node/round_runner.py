"""The trio shell of one round, around `protocol.agreement.machine.RoundMachine`.

All events for the machine pass through the round's inbox and one task, `_drive`, so effects are performed in the order in
which the machine decided them: a vote is on disk before it is sent.  Other tasks run the round's contribution (compute,
then READY), its exchanges, and the fetching of results.  All tasks end with the round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

import trio

from protocol.agreement.events import (
    AmendmentHeld,
    Arrived,
    AuditFailed,
    AverageDisproved,
    BeginExchange,
    Committed,
    ExchangeMoved,
    FinishCompute,
    Forward,
    ObtainResult,
    PeerView,
    Persist,
    PlanUnknown,
    Reject,
    Repair,
    RoundEffect,
    RoundEvent,
    Send,
    StateHashed,
    Tick,
    View,
)
from protocol.agreement.machine import RoundMachine
from protocol.allreduce.lateness import Patience, fair_time
from protocol.allreduce.runner import ExchangeRunner
from protocol.audit.auditor import Unaccountable
from protocol.audit.evidence import ProvenLie
from protocol.chain.base import Base
from protocol.chain.electorate import tolerated
from protocol.chain.replica import Replica
from protocol.chain.store import read_voter_state
from protocol.disk import StoreFailed
from protocol.events.events import Dropped, Notice, ReadySent, RoundProposed, RoundVoted
from protocol.events.status import WhyIdle
from protocol.membership.activity import Activity
from protocol.membership.liveness import Liveness, Membership, Neighbour
from protocol.node.contributor import Contributor
from protocol.node.exchanges import AuditedResults, RunningExchange
from protocol.offload import Offload
from protocol.trainer_link import Contribution
from protocol.transport.handlers import Guard
from protocol.transport.interface import NetworkError, Session, Unreachable
from protocol.wire.envelope import Body, Envelope
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit, Plan, Proposal, Ready, Step, Vote, VoterState
from protocol.wire.presence import Heartbeat, Phase, Role

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
# Delivery of our statements to single peers, and to ourselves.  Some deliveries outlive the round that starts them.  A peer
# that leaves waits for them before it says goodbye.


TIMEOUT_S = 10.0
RETRY_S = 0.5


class PendingDeliveries:
    """Deliveries under way at one node.  nursery: a nursery that outlives the rounds."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self._under_way = 0
        self._idle = trio.Event()

    @contextmanager
    def delivery(self) -> Iterator[None]:
        """Count a delivery to a peer as under way inside the context."""
        self._under_way += 1
        try:
            yield
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


class Delivery:
    """Delivery of statements in one round.

    inbox: receives the statements that we address to ourselves.  deliveries: delivers our commits, because a commit ends our
    round before the other peers have received it.
    """

    def __init__(self, session: Session, membership: Membership, inbox: Inbox, deliveries: PendingDeliveries) -> None:
        self._session, self._membership, self._inbox, self._deliveries = session, membership, inbox, deliveries

    def send(self, effect: Send, nursery: trio.Nursery) -> None:
        """Sign a statement and begin to deliver it.  nursery: the nursery of the round."""
        envelope = self._session.seal(effect.body)
        for peer in effect.to:
            if peer == self._session.me:
                self._inbox.receive(peer, effect.body, envelope)
            else:
                within = self._deliveries.nursery if isinstance(effect.body, Commit) else nursery
                within.start_soon(self._deliver, peer, envelope.kind, envelope.raw)

    def forward(self, effect: Forward, nursery: trio.Nursery) -> None:
        """Begin to deliver another peer's statement.  nursery: the nursery of the round."""
        nursery.start_soon(self._deliver, effect.to, effect.what, effect.raw)

    async def _deliver(self, peer: PeerId, what: str, raw: bytes) -> None:
        """Deliver a statement with best effort; the machine sends important statements again."""
        with self._deliveries.delivery():
            for attempt in range(2):
                try:
                    await self._session.network.request(peer, "round", raw, timeout_s=TIMEOUT_S)
                    return
                except Unreachable:
                    await trio.sleep(RETRY_S * (attempt + 1))
                except NetworkError as error:
                    name = self._membership.name(peer)
                    self._session.emit(Notice("debug", f"{name} refused our {what}: {error}"))
                    return


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
        self._me, self._membership, self._base = me, membership, base
        self._live: dict[PeerId, tuple[Heartbeat, PeerView]] = {}

    def look_around(self, bytes_per_s: float, computing: bool) -> View:
        """Return the present view of all known peers, all electors and ourselves; use it before the next await.

        bytes_per_s: capacity of our own line.  computing: whether we train.
        """
        now = trio.current_time()
        self._membership.notice(now)
        if len(self._live) > 2 * len(self._membership):
            self._live.clear()  # most of these peers are forgotten
        return _PresentView(self._view_of, self._peers, PeerView(True, computing, False, 0.0, bytes_per_s), self._me, now)

    def _peers(self) -> Iterator[PeerId]:
        """Yield all known peers, then the other electors, then ourselves."""
        membership, electors = self._membership, self._base.electors
        for peer, _ in membership:
            yield peer
        for peer in electors:
            if membership.get(peer) is None:
                yield peer
        if self._me not in electors:
            yield self._me

    def _view_of(self, peer: PeerId, now: float) -> PeerView | None:
        known = self._membership.get(peer)
        if known is None:
            if peer not in self._base.electors:
                return None
            return PeerView(False, False, self._membership.has_left(peer), self._membership.silent_s(peer, now))
        if known.liveness is not Liveness.ALIVE:
            return _not_live(known, now)
        seen = self._live.get(peer)
        if seen is None or seen[0] is not known.heartbeat:
            self._live[peer] = seen = known.heartbeat, self._of_live(peer, known.heartbeat)
        return seen[1]

    def steps_ahead(self) -> int:
        """Return the number of steps that over half of the other electors have done on our tip, by their last heartbeats."""
        now = trio.current_time()
        self._membership.notice(now)
        beats = {peer: known.heartbeat for peer, known in self._membership if known.liveness is Liveness.ALIVE}
        electors = [peer for peer in self._base.electors if peer != self._me]
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

    def __init__(
        self,
        view_of: Callable[[PeerId, float], PeerView | None],
        peers: Callable[[], Iterator[PeerId]],
        own: PeerView,
        me: PeerId,
        now: float,
    ) -> None:
        self._view_of, self._peers, self._own, self._me, self._now = view_of, peers, own, me, now

    def __getitem__(self, peer: PeerId) -> PeerView:
        seen = self._own if peer == self._me else self._view_of(peer, self._now)
        if seen is None:
            raise KeyError(peer)
        return seen

    def __iter__(self) -> Iterator[PeerId]:
        return self._peers()

    def __len__(self) -> int:
        return sum(1 for _ in self._peers())


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


# ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RoundPeers:
    """Access of rounds to the other peers: our session, the membership, and the activity that we show to the peers."""

    session: Session
    membership: Membership
    activity: Activity


TICK_S = 0.25


@dataclass(frozen=True)
class Behind:
    """The outcome of a round that the swarm has left without us: we must catch up."""


@dataclass(frozen=True)
class StateDisagreement:
    """The outcome of a round if our state differs from the swarm's state.  digest: the digest of the swarm's state."""

    digest: Hash


Outcome = Commit | Behind | StateDisagreement


@dataclass(frozen=True)
class RoundStart:
    """Conditions under which a round begins.

    kept: the votes that bind us at this tip.  abstains: True if we do not vote, because earlier votes may be lost, or bind
    us to another record.  votes: keeps our votes.  patience: our memory of lateness in earlier rounds.  state_verified: True
    if the state was just rebuilt from certified data, so peers with another state are wrong.  deliveries: deliveries that
    outlive the round.
    """

    base: Base
    kept: VoterState | None
    abstains: bool
    votes: VoteLog
    patience: Patience
    state_verified: bool
    deliveries: PendingDeliveries


class RoundRunner:
    """Runner of one round."""

    def __init__(
        self,
        guard: Guard,
        replica: Replica,
        peers: RoundPeers,
        results: AuditedResults,
        contributor: Contributor,
        start: RoundStart,
    ) -> None:
        self.session, self.base, self._guard = peers.session, start.base, guard
        self._replica, self._results, self._contributor = replica, results, contributor
        self._votes, self._patience, self._state_verified = start.votes, start.patience, start.state_verified
        self._deliveries = start.deliveries
        me, now = self.session.me, trio.current_time()
        self.machine = RoundMachine(me, replica.rounds, self.base, now, start.kept, start.patience, abstains=start.abstains)
        self.work, self.inbox = contributor.work_on(self.base), Inbox(self.session)
        ahead_s = contributor.ahead_s(self.work)
        self.machine.note_training(ahead_s)
        self.exchanges = results.exchanges(lambda: self.inbox.note(ExchangeMoved()))
        self._obtainer = results.obtainer(self.work, self.exchanges)
        self._surroundings = Surroundings(me, peers.membership, self.base)
        self._delivery = Delivery(self.session, peers.membership, self.inbox, start.deliveries)
        self._report = RoundReport(self.session, peers.membership, peers.activity, abstains=start.abstains)
        self._over = trio.Event()
        self._outcome: Outcome | None = None
        self._begun, self._computed_s = now - ahead_s, 0.0
        """Time when the training for this round began, without waits before the round; and seconds until its exchange."""

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        """Run until the round is committed or we cannot commit it; return the outcome.  Raises `StoreFull`."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._drive, nursery)
                nursery.start_soon(self._tick)
                nursery.start_soon(self._contribute)
                await self._over.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._remember_stalls()
            self.exchanges.discard()
        assert self._outcome is not None
        return self._outcome

    def end(self, outcome: Outcome) -> None:
        """Stop with this outcome; only the first outcome counts."""
        if self._outcome is None:
            self._outcome = outcome
            self._over.set()

    @property
    def deciding(self) -> bool:
        """True while we commit a certified record; catching up must wait until then."""
        return self.machine.decided is not None

    def part(self, peer: PeerId, root: Hash, chunk: int) -> tuple[list[bytes], memoryview] | None:
        """Return (tree proof, bytes) of a chunk of our contribution for an auditor; None if `peer` must not have it.

        Nobody gets it before we have taken up a plan with it, and then only members and voters do.  A peer that read
        contributions before it committed to its own could send a copy, or choose one that suits it.
        """
        may_read = self.exchanges.any and (peer in self.base.electors or self.exchanges.names(peer))
        return self.work.part(root, chunk) if may_read else None

    def hand_over(self, nursery: trio.Nursery) -> None:
        """Start to deliver, in this nursery, the statements that would be lost when we leave."""
        for effect in self.machine.farewell():
            if isinstance(effect, Send):
                self._delivery.send(effect, nursery)
            else:
                self._delivery.forward(effect, nursery)

    def on_verdict(self, verdict: ProvenLie) -> None:
        """Act on the proof that a peer has lied."""
        self.exchanges.peer_dead(verdict.peer)
        for chunk, hash in verdict.false_chunks:
            self.inbox.tell(AverageDisproved(verdict.peer, chunk, hash))

    # -- the machine --------------------------------------------------------------------------------------------------

    async def _drive(self, nursery: trio.Nursery) -> None:
        async with aclosing(self.inbox):
            while True:
                for effect in self._handle_safely(await self.inbox.next()):
                    await self._perform(effect, nursery)

    def _handle_safely(self, event: RoundEvent) -> list[RoundEffect]:
        """Handle an event.  If the machine raises, drop a statement, or restart the round for an event of our own."""
        if isinstance(event, Arrived):
            with self._guard.watch(event.sender, type(event.body).KIND):
                return self._handle(event)
            return []
        with self._guard.watch(self.session.me, type(event).__name__):
            return self._handle(event)
        self.end(Behind())
        return []

    def _handle(self, event: RoundEvent) -> list[RoundEffect]:
        view, now = self._view(), trio.current_time()
        for noted, at in self.inbox.take_notes():
            self.machine.handle(noted, view, at)
        return self.machine.handle(event, view, now)

    def _view(self) -> View:
        """Return the present view of all peers."""
        return self._surroundings.look_around(self.session.network.bandwidth().least, self._contributor.computes)

    async def _tick(self) -> None:
        while True:
            for peer in self.exchanges.refusing():
                self.inbox.tell(PlanUnknown(peer))
            self.inbox.note(AmendmentHeld(self._contributor.amendment()))
            self.inbox.tell(Tick())
            self._show_waiting()
            await trio.sleep(TICK_S)

    def _show_waiting(self) -> None:
        newest = self.exchanges.newest
        if newest is not None:
            self._report.exchange_waits(newest.exchange)
        elif self.work.ready is not None:
            self._report.waiting(self.machine, self._view(), self._replica.rounds.min_members)

    # -- effects ------------------------------------------------------------------------------------------------------

    async def _perform(self, effect: RoundEffect, nursery: trio.Nursery) -> None:
        if isinstance(effect, Persist):
            await self._votes.save(effect.kept)
        elif isinstance(effect, Send):
            self._report.sent(effect.body)
            self._delivery.send(effect, nursery)
        elif isinstance(effect, Forward):
            self._delivery.forward(effect, nursery)
        elif isinstance(effect, BeginExchange):
            await self._begin_exchange(effect.plan, nursery)
        elif isinstance(effect, FinishCompute):
            self._contributor.finish(self.base)
        elif isinstance(effect, ObtainResult):
            nursery.start_soon(self._obtain, effect)
        elif isinstance(effect, Committed):
            self.end(effect.commit)
        elif isinstance(effect, Reject):
            self._report.rejected(effect)
        elif isinstance(effect, Repair) and not self._state_verified:
            self.end(StateDisagreement(effect.digest))

    async def _begin_exchange(self, plan: Plan, nursery: trio.Nursery) -> None:
        self._computed_s = self._computed_s or trio.current_time() - self._begun
        members = [PeerId(member.peer) for member in plan.members]
        stall_s, fair_s = self._replica.rounds.stall_s, self._fair(members)
        limits = self._patience.limits(self.session.me, members, self.base, stall_s, fair_s)
        running = await self.exchanges.begin(plan, self.work, limits)
        if running is not None:
            view = self._view()
            for peer in members:
                if peer in view and view[peer].left:
                    running.exchange.peer_dead(peer)
                elif peer in view and not view[peer].live:
                    running.exchange.peer_suspected(peer)
            self._report.exchanging(plan)
            nursery.start_soon(self._exchange, running, nursery)

    def _fair(self, members: Collection[PeerId]) -> float:
        """Return the time that an exchange of these members may wait for one member (s)."""
        return fair_time(self._computed_s, len(members))

    def _remember_stalls(self) -> None:
        """Remember the members for which our exchanges waited."""
        if isinstance(self._outcome, Commit):
            members = {PeerId(member.peer) for member in self._outcome.record.members}
            stall_s, fair_s = self._replica.rounds.stall_s, self._fair(members)
            for seen in self.exchanges.observed():
                self._patience.judge_exchange(self.session.me, members, self.base, seen, stall_s, fair_s)

    async def _exchange(self, running: RunningExchange, nursery: trio.Nursery) -> None:
        nursery.start_soon(running.exchange.run)
        self.inbox.tell(await running.outcome())

    async def _obtain(self, effect: ObtainResult) -> None:
        with self._guard.watch(effect.proposer, "record", passing=(StoreFailed,)):
            await self._obtain_or_refuse(effect)
            return
        self.inbox.tell(AuditFailed(effect.record.result_root))

    async def _obtain_or_refuse(self, effect: ObtainResult) -> None:
        for lie in await self._obtainer.contradictions(effect):
            await self._results.convict(lie)
        try:
            obtained = await self._obtainer.obtain(effect)
        except Unaccountable as problem:
            if problem.evidence is not None:
                await self._results.convict(problem.evidence)
            self.inbox.tell(AuditFailed(effect.record.result_root))
            self._report.unaccountable(effect.record.round, problem)
        else:
            if obtained is not None:
                self.inbox.tell(obtained)

    # -- contribution -------------------------------------------------------------------------------------------------

    async def _contribute(self) -> None:
        state = await self._contributor.name_state()
        self.inbox.note(StateHashed(state))
        contribution = await self._contributor.compute(self.base, self.work, self._surroundings.steps_ahead)
        if contribution is not None:
            await self._say_ready(contribution, state)

    async def _say_ready(self, contribution: Contribution, state: bytes) -> None:
        ready, envelope = await self._contributor.commit(self.base, self.work, contribution, state)
        self._contributor.train_ahead(self.base, self.work, self._deliveries.nursery)
        self._report.ready(ready, contribution, self._replica.manifest.fragments)
        self.inbox.receive(self.session.me, ready, envelope)
        await self.session.network.publish(envelope.raw)
        self._show_waiting()
