"""The entrance of a node: the handlers that the network calls.

`protocol.node.statements` takes in statements, and `protocol.node.answers` answers questions.  Pushes go to the exchange or
the swarm that they belong to, and connections to the membership.  Each handler runs under the guard, so only refusals get
out of it: from `on_request`, and from the handlers of pushes.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import trio

from protocol.allreduce.messages import push_plan
from protocol.audit.ejection import Ejections
from protocol.blobs.messages import read_chunk_header
from protocol.blobs.swarm import Swarm
from protocol.events.events import Notice
from protocol.membership.activity import Activity
from protocol.membership.handshake import Handshake
from protocol.membership.liveness import Membership
from protocol.node.answers import Answers
from protocol.node.background import Background
from protocol.node.current_round import CurrentRound
from protocol.node.guard import Guard
from protocol.node.statements import Statements
from protocol.transport.interface import Acceptance, Landing, Refused, Session
from protocol.versions.weight_versions import WeightVersions
from protocol.wire.identity import PeerId


class Dispatcher:
    """Implements `protocol.transport.interface.Handlers`.  While not open, it ignores gossip and connections."""

    def __init__(
        self,
        session: Session,
        guard: Guard,
        background: Background,
        membership: Membership,
        handshake: Handshake,
        activity: Activity,
        ejections: Ejections,
        statements: Statements,
        answers: Answers,
        swarm: Swarm,
        versions: WeightVersions,
        current: CurrentRound,
    ) -> None:
        self._session, self._guard, self._background = session, guard, background
        self._membership, self._handshake, self._activity = membership, handshake, activity
        self._ejections, self._statements, self._answers = ejections, statements, answers
        self._swarm, self._versions, self._round = swarm, versions, current

    def open(self) -> AbstractAsyncContextManager[trio.Nursery]:
        """Handle arriving traffic inside the context, in the nursery that it yields."""
        return self._background.open()

    def has_member(self, peer: PeerId) -> bool:
        """Return True if a record of our chain names `peer`."""
        return self._membership.has_member(peer)

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Acceptance:
        """Judge a gossiped statement and hand it to its component; return whether the network forwards it."""
        with self._guard.watch(forwarder, "gossip"):
            return self._statements.by_gossip(forwarder, data)
        return Acceptance.IGNORE

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        """Answer a peer's question.  Raises `Refused`, or `Offence` if the question breaks the protocol."""
        with self._guard.watch(peer, f"question '{kind:.40}'"):
            return await self._answers.answer(peer, kind, data)
        raise Refused("this peer failed at the question")

    # -- pushes -------------------------------------------------------------------------------------------------------

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        """Return the landing for a pushed chunk; None if the chunk is not wanted."""
        with self._guard.watch(peer, "push"):
            if not self._handshake.may_speak(peer) or peer in self._ejections:
                return None
            chunk = read_chunk_header(header)
            if chunk is not None:
                return self._swarm.open_push(peer, chunk, size)
            plan, exchanges = push_plan(header), self._round.exchanges
            if plan is None or exchanges is None:
                return None
            exchange = await exchanges.find(plan)
            return await exchange.open_push(peer, header, size) if exchange is not None else None
        return None

    async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
        """Finish a push that is complete or was broken off."""
        with self._guard.watch(peer, "push"):
            chunk = read_chunk_header(header)
            if chunk is not None:
                self._swarm.finish_push(peer, chunk, landing)
            plan, exchanges = push_plan(header), self._round.exchanges
            if plan is not None and exchanges is not None:
                await exchanges.finish_push(plan, peer, header, landing)

    # -- connections --------------------------------------------------------------------------------------------------

    def on_peer_connected(self, peer: PeerId) -> None:
        """Greet a newly connected peer."""
        if not self._background.is_open:
            return
        with self._guard.watch(peer, "connection"):
            self._background.start(self._greet, peer)
            for event in self._membership.on_connected(peer, trio.current_time()):
                self._session.emit(event)
                self._round.peer_alive(peer)

    async def _greet(self, peer: PeerId) -> None:
        with self._guard.watch(peer, "answer to our greeting"):
            refusal = await self._handshake.greet(self._session.network, peer)
            self._activity.tell_now()
            warning = self._handshake.clocks.take_warning()
            if warning:
                self._session.emit(Notice("warning", warning))
            if refusal is not None:
                self._session.emit(Notice("warning", refusal))
            else:
                self._versions.met(peer)

    def on_peer_disconnected(self, peer: PeerId) -> None:
        """Judge a peer's liveness by its broken connection."""
        if not self._background.is_open:
            return  # we close the connections ourselves, so no peer is silent for that
        with self._guard.watch(peer, "disconnection"):
            self._swarm.gone(peer)
            for event in self._membership.on_disconnected(peer, trio.current_time()):
                self._session.emit(event)
                self._round.peer_dead(peer)
