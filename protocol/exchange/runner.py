"""The exchange as it happens: the trio shell around `protocol.exchange.machine.ExchangeMachine`.

Performs what the machine decides: `Sender` pushes chunks, `Receiver` checks every byte that comes in, `Averager` averages
in worker threads.

Memory: parts that wait for their chunk's average are limited to `buffers.PART_BUFFERS` in all, shared out equally among the
senders.  Each sender sends in the same order, and no push starts while the one so many places before it is under way as a
sender has buffers at the receiver: so the lowest unfinished chunk always finds room and nothing deadlocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trio

from kernels.aggregate import Rule
from kernels.layout import Layout
from protocol.events import MemberLost
from protocol.exchange.averaging import Averager
from protocol.exchange.buffers import BufferPool, WaitingParts
from protocol.exchange.chunks import OwnParts, Results
from protocol.exchange.effects import Ask, Done, ExchangeEffect, Lost, Reduce, SendPart, SendResult
from protocol.exchange.events import Asked, ExchangeEvent, PeerBack, PeerDead, Started, Tick
from protocol.exchange.machine import ExchangeMachine
from protocol.exchange.messages import ExchangeAsk
from protocol.exchange.progress import ProgressReport
from protocol.exchange.receiving import Receiver
from protocol.exchange.sending import Sender
from protocol.network.interface import Landing, NetworkError
from protocol.network.session import Session
from protocol.offload import Offload
from protocol.wire.envelope import Envelope
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, Plan, Provenance

TICK_S = 0.25
ASK_TIMEOUT_S = 5.0


class ExchangeRunner:
    """Lives until its round ends: after it is `done` it goes on sending others what it owes them.

    contribution: codec bytes of ours, `leaves` the hashes of its chunks.  result: writable buffer of the same size, complete
    when `done` is set.  stall_s: how long a member may be silent that owes us something, where lines are quick.
    """

    def __init__(
        self,
        *,
        session: Session,
        plan: Plan,
        layout: Layout,
        contribution: memoryview,
        leaves: Sequence[Hash],
        result: memoryview,
        offload: Offload,
        stall_s: float,
        rule: Rule,
    ) -> None:
        self.machine = ExchangeMachine(session.me, plan, stall_s, trio.current_time())
        self.done = trio.Event()
        self._session = session
        self._results = Results(result, layout)
        own, pool = OwnParts(contribution, leaves, layout), BufferPool()
        self._parts = WaitingParts(self.machine.others, pool)
        self._sender = Sender(self.machine, own, self._results, session.network)
        self._receiver = Receiver(self.machine, layout, session.run, self._parts, self._results, pool, session.emit)
        self._averager = Averager(self.machine, session, layout, own, self._parts, self._results, pool, offload, rule)
        self._progress = ProgressReport(self.machine, session.emit)
        self._nursery: trio.Nursery | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Exchange until cancelled; only then is it known what was sent, for others may want it after we have all."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for peer in self.machine.others:
                    nursery.start_soon(self._sender.serve, peer)
                self._handle(Started())
                while True:
                    for moving in self._receiver.moving():
                        self._handle(moving)
                    self._handle(Tick())
                    await trio.sleep(TICK_S)
        finally:
            self._nursery = None  # what is still on its way here starts nothing any more
            self._progress.finish(self._sender.up_bytes, self._receiver.down_bytes)

    def entries(self) -> tuple[ChunkEntry, ...]:
        """The index of the result, once `done`."""
        return tuple(self.machine.entries[chunk] for chunk in range(self.machine.chunks))

    def provenance(self) -> Provenance:
        """Signers and signatures of the chunks of the result, once `done`."""
        return self._results.provenance(self.machine.plan)

    @property
    def refusing(self) -> list[PeerId]:
        """Members that did not take a push of ours."""
        return [*self._sender.refusing]

    @property
    def statements(self) -> Mapping[int, Envelope]:
        """What the owners of the results that are here signed, by chunk."""
        return self._results.statements

    @property
    def result(self) -> memoryview | None:
        """The averages that are here, each in its place; None once somebody else has the buffer."""
        return self._results.buffer

    def adopt(self, index: Sequence[ChunkEntry]) -> list[int]:
        """From now on the result buffer is the caller's: these chunks of it are missing or another version."""
        self._results.release()
        return self.machine.adopt(index)

    # -- what happens -------------------------------------------------------------------------------------------------

    def peer_dead(self, peer: PeerId) -> None:
        """Membership says so: nobody waits for it any more."""
        self._handle(PeerDead(peer))

    def peer_alive(self, peer: PeerId) -> None:
        """A member that was lost is heard again."""
        self._handle(PeerBack(peer))

    def asked(self, peer: PeerId, ask: ExchangeAsk) -> None:
        """A successor asks for the result of a chunk, or our part; nothing, if it is of another fragment."""
        if ask.fragment == self.machine.plan.fragment:
            self._handle(Asked(peer, ask.chunk))

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        """As `Handlers.open_push` of the network."""
        return await self._receiver.open(peer, header, size)

    def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> bool:
        """As `Handlers.finish_push` of the network; whether the exchange lacked what has come."""
        arrived = self._receiver.finish(peer, header, landing)
        if arrived is None:
            return False
        is_new = self.machine.lacks(arrived)
        self._handle(arrived)
        return is_new

    # -- the machine ------------------------------------------------------------------------------------------------------

    def _handle(self, event: ExchangeEvent) -> None:
        effects = self.machine.handle(event, trio.current_time())
        for effect in effects:
            self._perform(effect)
        if effects:
            self._progress.show()

    def _perform(self, effect: ExchangeEffect) -> None:
        if isinstance(effect, SendPart | SendResult):
            self._sender.order(effect)
        elif isinstance(effect, Reduce):
            if self._nursery is not None:
                self._nursery.start_soon(self._reduce, effect)
        elif isinstance(effect, Ask):
            if self._nursery is not None:
                self._nursery.start_soon(self._ask, effect)
        elif isinstance(effect, Lost):
            self._session.emit(MemberLost(self.machine.plan.round, effect.peer))
            self._parts.wake_senders()
        elif isinstance(effect, Done):
            self.done.set()
            self._progress.complete()

    async def _reduce(self, effect: Reduce) -> None:
        averaged = await self._averager.reduce(effect)
        if averaged is not None:
            self._handle(averaged)

    async def _ask(self, effect: Ask) -> None:
        question = ExchangeAsk(plan=self.machine.name, fragment=self.machine.plan.fragment, chunk=effect.chunk).encode()
        try:
            await self._session.network.request(effect.peer, "exchange", question, timeout_s=ASK_TIMEOUT_S)
        except NetworkError:
            return  # asked again on the next occasion, until it answers or is lost
