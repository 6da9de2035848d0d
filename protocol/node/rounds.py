"""The rounds of a node, one after another; each round begins with the votes on disk and is current while it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from protocol.agreement.machine import RELAYED
from protocol.allreduce.lateness import Patience
from protocol.allreduce.runner import ExchangeAsk, ExchangeRunner, push_plan
from protocol.audit.ejection import Ejections
from protocol.audit.evidence import ProvenLie, TwoStatements, contradict
from protocol.chain.replica import Replica
from protocol.disk import let_go
from protocol.membership.handshake import Handshake
from protocol.membership.liveness import Membership
from protocol.node.contributor import Contributor, Work
from protocol.node.exchanges import AuditedResults, Exchanges
from protocol.node.round_runner import Outcome, PendingDeliveries, RoundPeers, RoundRunner, RoundStart, VoteLog
from protocol.transport.handlers import Guard, Statement, answers, hears, is_told, landed, lands
from protocol.transport.interface import Acceptance, Landing, Members, Offence, Refused
from protocol.wire.envelope import Body, Envelope
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit, Ready
from protocol.wire.questions import PartReply, PartRequest

# ------------------------------------------------------------------------------------------------------------------------
# The running round, for the components of a peer that outlive rounds, and the handlers of messages about rounds.


class CurrentRound:
    """The current round, opened by `Rounds`.  Between rounds it ignores statements and events.

    readys: READYs received, also before their round begins here.
    """

    def __init__(self, readys: EarlyReadyBuffer) -> None:
        self.readys = readys
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
        """Number of inner steps done."""
        return self._runner.work.steps if self._runner is not None else 0

    @property
    def loss(self) -> float:
        """Mean loss so far (nats a token)."""
        return self._runner.work.loss if self._runner is not None else 0.0

    @property
    def ready_raw(self) -> bytes:
        """Our READY as sent; empty before we have sent it."""
        return self._runner.work.ready_raw if self._runner is not None else b""

    # -- events -------------------------------------------------------------------------------------------------------

    def receive(self, sender: PeerId, body: Body, envelope: Envelope, *, by: PeerId | None = None) -> None:
        """Queue a received statement for the current round.  by: the peer that brought it; None if that is the sender."""
        if self._runner is not None:
            self._runner.inbox.receive(sender, body, envelope, by=by)

    def peer_dead(self, peer: PeerId) -> None:
        """Tell the exchanges that a peer has left."""
        if self._runner is not None:
            self._runner.exchanges.peer_dead(peer)

    def peer_suspected(self, peer: PeerId) -> None:
        """Tell the exchanges that a peer is silent, or that its connection broke."""
        if self._runner is not None:
            self._runner.exchanges.peer_suspected(peer)

    def peer_alive(self, peer: PeerId, *, restarted: bool) -> None:
        """Tell the exchanges that a peer is alive again.  restarted: True if that is another process of it."""
        if self._runner is not None:
            self._runner.exchanges.peer_alive(peer, restarted=restarted)

    def on_verdict(self, verdict: ProvenLie) -> None:
        """Tell the round that a peer is proven to have lied."""
        if self._runner is not None:
            self._runner.on_verdict(verdict)


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


@dataclass(frozen=True)
class PlanHeader:
    """Header of a push of an exchange.  raw: the header as received."""

    plan: Hash
    raw: bytes


def read_plan(header: bytes) -> PlanHeader | None:
    """Return the header of a push if it carries a chunk of an exchange."""
    plan = push_plan(header)
    return PlanHeader(plan, header) if plan is not None else None


class RoundHandlers:
    """Handlers that deliver messages about rounds to the current round, and READYs also to the next one."""

    def __init__(self, handshake: Handshake, membership: Membership, ejections: Ejections, current: CurrentRound) -> None:
        self._handshake, self._membership, self._ejections, self._round = handshake, membership, ejections, current

    @hears(Ready)
    def hear_ready(self, said: Statement[Ready]) -> Acceptance:
        """Receive a READY of a peer that a record may name."""
        if not self._handshake.may_be_named(said.sender, said.body):
            return Acceptance.IGNORE
        is_live = self._membership.is_live(said.sender)
        news = self._round.readys.add(said.sender, said.body, said.envelope, is_live=is_live)
        if isinstance(news, TwoStatements):
            self._ejections.accuse(said.sender, news.first, news.second)
            return Acceptance.IGNORE
        if news:
            self._round.receive(said.sender, said.body, said.envelope)
        return Acceptance.of_news(news)

    @is_told("round", Body)
    async def told(self, said: Statement[Body]) -> None:
        """Receive a statement about the round that was sent to us alone.  Raises `Offence`."""
        if said.sender != said.by and not isinstance(said.body, (Commit, *RELAYED)):
            raise Offence("a statement that another peer signed")
        self._ejections.compare(said)
        self._round.receive(said.sender, said.body, said.envelope, by=said.by)

    @answers("part", PartRequest)
    async def answer_part(self, peer: PeerId, question: PartRequest) -> bytes:
        """Return a slice of our contribution to a member or voter of a plan that we have taken up, for its audit."""
        runner = self._round.runner
        part = runner.part(peer, Hash(question.root), question.chunk) if runner is not None else None
        if part is None:
            raise Refused("that contribution is not here")
        proof, piece = part
        data = bytes(piece[question.offset : question.offset + question.length])
        let_go(piece)
        return PartReply(proof=proof, data=data).encode()

    @answers("exchange", ExchangeAsk)
    async def answer_exchange(self, peer: PeerId, ask: ExchangeAsk) -> bytes:
        """Note that a member asks for a chunk's average, or for our part of the chunk."""
        exchange = await self._exchange(Hash(ask.plan))
        if exchange is None:
            raise Refused("no such exchange here")
        exchange.asked(peer, ask)
        return b""

    @lands(read_plan)
    async def open_push(self, peer: PeerId, header: PlanHeader, size: int) -> Landing | None:
        """Return the landing for a chunk of an exchange; None if the chunk is not wanted."""
        exchange = await self._exchange(header.plan)
        return await exchange.open_push(peer, header.raw, size) if exchange is not None else None

    @landed(read_plan)
    async def finish_push(self, peer: PeerId, header: PlanHeader, landing: Landing | None) -> None:
        """Finish a push of an exchange, which is complete or was interrupted."""
        if self._round.exchanges is not None:
            await self._round.exchanges.finish_push(header.plan, peer, header.raw, landing)

    async def _exchange(self, plan: Hash) -> ExchangeRunner | None:
        exchanges = self._round.exchanges
        return await exchanges.find(plan) if exchanges is not None else None


# ------------------------------------------------------------------------------------------------------------------------


class Rounds:
    """The rounds of one node, which share its memory of late members."""

    def __init__(
        self,
        guard: Guard,
        replica: Replica,
        peers: RoundPeers,
        votes: VoteLog,
        results: AuditedResults,
        contributor: Contributor,
        current: CurrentRound,
    ) -> None:
        self._guard, self._replica, self._peers, self._votes = guard, replica, peers, votes
        self._results, self._contributor, self._current = results, contributor, current
        self._patience = Patience()

    async def run_next(
        self, beside: Callable[[trio.Event], Awaitable[None]], *, state_verified: bool, deliveries: PendingDeliveries
    ) -> Outcome:
        """Run the round on our tip and return its outcome.  Raises `StoreFull`.

        beside: runs at the same time as the round; its argument is set once our trainer has been told to train.
        state_verified: True if the state was just rebuilt from certified data.  deliveries: deliveries that outlive the
        round.
        """
        base = self._replica.base
        kept, abstains = await self._votes.load(base)
        if kept is not None and kept.lock is not None:
            self._peers.activity.note_present()  # we have to stay on this tip, and the others have to know
        start = RoundStart(base, kept, abstains, self._votes, self._patience, state_verified, deliveries)
        runner = RoundRunner(self._guard, self._replica, self._peers, self._results, self._contributor, start)
        with self._current.open(runner):
            for peer, ready, envelope in self._current.readys.begin(base.round, base.tip):
                runner.inbox.receive(peer, ready, envelope)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(beside, runner.work.training)
                outcome = await runner.run()
                nursery.cancel_scope.cancel()
        if isinstance(outcome, Commit):
            await self._votes.note_commit(base.electors, base.round + 1)
        return outcome

    async def hand_over(self, deliveries: PendingDeliveries) -> None:
        """Send statements that perhaps only we know, before a goodbye, and wait until all our deliveries are over."""
        if self._current.runner is not None:
            self._current.runner.hand_over(deliveries.nursery)
        await deliveries.delivered()
