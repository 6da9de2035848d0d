"""The rounds of a node, one after another: each begins with the votes on disk and is current while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from protocol.agreement.contradictions import slot
from protocol.agreement.patience import Patience
from protocol.agreement.ratification import has_ratified
from protocol.agreement.relay import RELAYED
from protocol.allreduce.messages import ExchangeAsk, push_plan
from protocol.allreduce.runner import ExchangeRunner
from protocol.audit.ejection import Ejections
from protocol.audit.evidence import ProvenLie, TwoStatements
from protocol.chain.electorate import tolerated
from protocol.chain.replica import Replica
from protocol.events.events import Notice
from protocol.membership.activity import Activity
from protocol.membership.handshake import Handshake
from protocol.membership.liveness import Membership
from protocol.node.contributor import Contributor, Work
from protocol.node.evaluator import Evaluator
from protocol.node.exchanges import Exchanges
from protocol.node.round_runner import Outcome, PendingDeliveries, RoundRunner
from protocol.offload import Offload
from protocol.sync.catch_up import CatchUp
from protocol.transport.handlers import Guard, Statement, answers, hears, is_told, landed, lands
from protocol.transport.interface import Acceptance, Landing, Members, Offence, Refused, Session
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_ENVELOPE_BYTES, Body, Envelope, decode_body
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit, Ready, VoterState
from protocol.wire.questions import PartReply, PartRequest

# ------------------------------------------------------------------------------------------------------------------------
# The round that runs now, as seen by the parts of a peer that outlive rounds, and the handlers of messages about rounds.


class CurrentRound:
    """The current round, opened by `protocol.node.rounds`.  Between rounds it answers nothing and ignores news."""

    def __init__(self) -> None:
        self._runner: RoundRunner | None = None

    @contextmanager
    def open(self, runner: RoundRunner) -> Iterator[None]:
        """Make this the current round inside the context."""
        self._runner = runner
        try:
            yield
        finally:
            self._runner = None

    @property
    def runner(self) -> RoundRunner | None:
        """Runner of the current round; None between rounds."""
        return self._runner

    @property
    def work(self) -> Work | None:
        """Our work in the current round; None between rounds."""
        return self._runner.work if self._runner is not None else None

    @property
    def exchanges(self) -> Exchanges | None:
        """Exchanges of the current round, for arriving chunks and questions; None between rounds."""
        return self._runner.exchanges if self._runner is not None else None

    # -- implements `protocol.membership.heartbeats.RoundProgress` ----------------------------------------------------

    @property
    def steps(self) -> int:
        """Inner steps done."""
        return self._runner.work.steps if self._runner is not None else 0

    @property
    def loss(self) -> float:
        """Mean loss so far, nats a token."""
        return self._runner.work.loss if self._runner is not None else 0.0

    @property
    def ready_raw(self) -> bytes:
        """Our READY as it was sent; empty until then."""
        return self._runner.work.ready_raw if self._runner is not None else b""

    # -- events -------------------------------------------------------------------------------------------------------

    def receive(self, sender: PeerId, body: Body, envelope: Envelope, *, by: PeerId | None = None) -> None:
        """Queue an arrived statement for the current round.  by: the peer that brought it, if not its sender."""
        if self._runner is not None:
            self._runner.inbox.receive(sender, body, envelope, by=by)

    def peer_dead(self, peer: PeerId) -> None:
        """Tell the exchanges that a peer is silent, gone or has left."""
        if self._runner is not None:
            self._runner.exchanges.peer_dead(peer)

    def peer_alive(self, peer: PeerId) -> None:
        """Tell the exchanges that a peer is heard again."""
        if self._runner is not None:
            self._runner.exchanges.peer_alive(peer)

    def on_verdict(self, verdict: ProvenLie) -> None:
        """Tell the round that a peer is proven to have lied."""
        if self._runner is not None:
            self._runner.on_verdict(verdict)


# ------------------------------------------------------------------------------------------------------------------------
# The newest READY of each peer, heard by gossip: a round may begin here after others are ready for it.
#
# A READY is forgotten when its round is over.  Members have room of their own.  Strangers, of whom there may be any number,
# share as many places as two rounds have members.  A stranger that is alive takes the place of one that is not.


MAX_OF_MEMBERS = 2048
STRANGERS_PER_MEMBER = 2


@dataclass(frozen=True)
class _Heard:
    ready: Ready
    envelope: Envelope
    was_live: bool


class EarlyReadyBuffer:
    """Remembers READYs between rounds, and detects two different ones for one slot.

    members: tells members from strangers.  round_members: the most members that a round may have.
    """

    def __init__(self, members: Members, round_members: int) -> None:
        self._members, self._strangers_room = members, STRANGERS_PER_MEMBER * round_members
        self._round = 0
        self._of_members: dict[PeerId, _Heard] = {}
        self._of_strangers: dict[PeerId, _Heard] = {}

    def __len__(self) -> int:
        return len(self._of_members) + len(self._of_strangers)

    def add(self, sender: PeerId, ready: Ready, envelope: Envelope, *, is_live: bool) -> bool | TwoStatements:
        """Keep a READY; return True if it is news, or proof that its sender made two statements for one slot.

        is_live: whether we take the sender for alive.
        """
        if ready.round < self._round:
            return False
        known = self._of_members.get(sender) or self._of_strangers.get(sender)
        if known is not None and known.envelope.raw == envelope.raw:
            return False
        if known is not None and (ready.incarnation, ready.serial) <= (known.ready.incarnation, known.ready.serial):
            contradicts = slot(ready) == slot(known.ready) and ready != known.ready
            return TwoStatements(first=known.envelope.raw, second=envelope.raw) if contradicts else False
        return self._keep(sender, _Heard(ready, envelope, is_live))

    def _keep(self, sender: PeerId, heard: _Heard) -> bool:
        """Keep a READY if there is room; return True if there is."""
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
        """Return the READYs for the round that begins here on `tip`; forget those of earlier rounds, which are news no more.

        Strangers' READYs are kept only for this round: a peer that is ready says so again with each heartbeat.
        """
        self._round = round
        self._of_members = {peer: heard for peer, heard in self._of_members.items() if heard.ready.round >= round}
        self._of_strangers = {peer: heard for peer, heard in self._of_strangers.items() if heard.ready.base == tip}
        found = (*self._of_members.items(), *self._of_strangers.items())
        return [(peer, heard.ready, heard.envelope) for peer, heard in found if heard.ready.base == tip]


# ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanHeader:
    """Header of a push of an exchange.  raw: as it travelled."""

    plan: Hash
    raw: bytes


def read_plan(header: bytes) -> PlanHeader | None:
    """Return the header of a push if it carries a chunk of an exchange."""
    plan = push_plan(header)
    return PlanHeader(plan, header) if plan is not None else None


class RoundHandlers:
    """Handlers of messages about rounds; they reach the current round, and READYs also the next one.

    readys: READYs heard, also before their round begins here.
    """

    def __init__(
        self,
        handshake: Handshake,
        membership: Membership,
        ejections: Ejections,
        readys: EarlyReadyBuffer,
        current: CurrentRound,
    ) -> None:
        self._handshake, self._membership, self._ejections = handshake, membership, ejections
        self._readys, self._round = readys, current

    @hears(Ready)
    def hear_ready(self, said: Statement[Ready]) -> Acceptance:
        """Take in a READY of a peer that a record may name."""
        if not self._handshake.may_be_named(said.sender, said.body):
            return Acceptance.IGNORE
        is_live = self._membership.is_live(said.sender)
        news = self._readys.add(said.sender, said.body, said.envelope, is_live=is_live)
        if isinstance(news, TwoStatements):
            self._ejections.accuse(said.sender, news.first, news.second)
            return Acceptance.IGNORE
        if news:
            self._round.receive(said.sender, said.body, said.envelope)
        return Acceptance.of_news(news)

    @is_told("round", Body)
    async def told(self, said: Statement[Body]) -> None:
        """Take in a statement about the round that was brought to us alone; raises `Offence`."""
        if said.sender != said.by and not isinstance(said.body, (Commit, *RELAYED)):
            raise Offence("a statement of somebody else")
        self._ejections.compare(said)
        self._round.receive(said.sender, said.body, said.envelope, by=said.by)

    @answers("part", PartRequest)
    async def answer_part(self, peer: PeerId, question: PartRequest) -> bytes:
        """Return a slice of our contribution to an auditing peer."""
        work = self._round.work
        part = work.part(Hash(question.root), question.chunk) if work is not None else None
        if part is None:
            raise Refused("that contribution is not here")
        proof, piece = part
        return PartReply(proof=proof, data=bytes(piece[question.offset : question.offset + question.length])).encode()

    @answers("exchange", ExchangeAsk)
    async def answer_exchange(self, peer: PeerId, ask: ExchangeAsk) -> bytes:
        """Note that a member asks for a chunk's average, or for its part."""
        exchange = await self._exchange(Hash(ask.plan))
        if exchange is None:
            raise Refused("no such exchange here")
        exchange.asked(peer, ask)
        return b""

    @lands(read_plan)
    async def open_push(self, peer: PeerId, header: PlanHeader, size: int) -> Landing | None:
        """Return the landing for a chunk of an exchange; None if it is not wanted."""
        exchange = await self._exchange(header.plan)
        return await exchange.open_push(peer, header.raw, size) if exchange is not None else None

    @landed(read_plan)
    async def finish_push(self, peer: PeerId, header: PlanHeader, landing: Landing | None) -> None:
        """Finish a push of an exchange that is complete or was broken off."""
        if self._round.exchanges is not None:
            await self._round.exchanges.finish_push(header.plan, peer, header.raw, landing)

    async def _exchange(self, plan: Hash) -> ExchangeRunner | None:
        exchanges = self._round.exchanges
        return await exchanges.find(plan) if exchanges is not None else None


# ------------------------------------------------------------------------------------------------------------------------


ABSTENTIONS = 2
"""Rounds that must be committed before a peer with a copied or restored data directory votes."""
MAX_VOTER_STATE_BYTES = 3 * MAX_ENVELOPE_BYTES
"""Size limit of a `VoterState`: two locks, each as large as a motion."""


class Rounds:
    """The parts that the rounds of one node share.

    is_copy: the data directory was copied or put back, so statements that bind our votes may be missing in it.
    amendment: as in `RoundRunner`.
    """

    def __init__(
        self,
        session: Session,
        guard: Guard,
        replica: Replica,
        offload: Offload,
        membership: Membership,
        activity: Activity,
        catch_up: CatchUp,
        ejections: Ejections,
        contributor: Contributor,
        evaluator: Evaluator,
        readys: EarlyReadyBuffer,
        current: CurrentRound,
        *,
        is_copy: bool,
        amendment: Callable[[], bytes | None],
    ) -> None:
        self._session, self._guard, self._replica, self._offload = session, guard, replica, offload
        self._membership, self._activity, self._catch_up = membership, activity, catch_up
        self._ejections, self._contributor, self._evaluator = ejections, contributor, evaluator
        self._readys, self._current, self._amendment = readys, current, amendment
        self._patience = Patience()
        self._abstentions = ABSTENTIONS if is_copy else 0

    async def run_next(self, *, state_verified: bool, deliveries: PendingDeliveries) -> Outcome:
        """Run the round on our tip and return its outcome.  Raises `StoreFull`.

        state_verified: the state was just rebuilt from certified data.  deliveries: deliveries that outlive the round.
        """
        base = self._replica.base
        raw = await self._offload(self._replica.store.votes.load, base.round, base.tip)
        kept = read_voter_state(raw)
        lost = kept is None and await self._offload(self._replica.store.votes.has_lost, base.round, base.tip)
        if lost:
            self._session.emit(Notice("warning", f"what we voted in round {base.round} cannot be read: no vote in it"))
        runner = RoundRunner(
            self._session,
            self._guard,
            self._replica,
            base,
            self._offload,
            self._membership,
            self._activity,
            self._catch_up,
            self._ejections,
            self._contributor,
            kept=None if has_ratified(kept) else kept,
            abstains=lost or self._abstentions > 0 or has_ratified(kept),
            patience=self._patience,
            state_verified=state_verified,
            deliveries=deliveries,
            amendment=self._amendment,
        )
        with self._current.open(runner):
            for peer, ready, envelope in self._readys.begin(base.round, base.tip):
                runner.inbox.receive(peer, ready, envelope)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._evaluator.during_round, runner.work.training)
                outcome = await runner.run()
                nursery.cancel_scope.cancel()
        if isinstance(outcome, Commit):
            await self._note_commit(base.electors, base.round + 1)
        return outcome

    async def _note_commit(self, electors: Sequence[PeerId], rounds: int) -> None:
        """Count a committed round towards the end of our abstention.

        Electors that go on without our vote leave behind any statement that we made in a life unknown to our disk.  A round
        that they left long ago, and whose record a peer shows us, does not count.
        """
        beats = [known.heartbeat for peer in electors if (known := self._membership.get(peer)) is not None]
        is_old = sum(beat.round > rounds for beat in beats) > tolerated(len(electors))
        if self._abstentions and not is_old:
            if self._abstentions == 1:
                await self._offload(self._replica.store.votes.set_complete_from, rounds)
            self._abstentions -= 1
            if not self._abstentions:
                self._session.emit(Notice("info", f"votes again, from round {rounds} on"))

    async def hand_over(self, deliveries: PendingDeliveries) -> None:
        """Pass on statements that only we may know, before a goodbye, and wait until none of our deliveries is under way."""
        if self._current.runner is not None:
            self._current.runner.hand_over(deliveries.nursery)
        await deliveries.delivered()


def read_voter_state(raw: bytes | None) -> VoterState | None:
    """Return the stored votes that bind us; None if there are none, or if they are unreadable."""
    if raw is None:
        return None
    try:
        return decode_body(VoterState, raw, max_bytes=MAX_VOTER_STATE_BYTES)
    except Malformed:
        return None
