"""The relay: carries bytes between two peers that are both connected to it, within the limits that its owner set.

Policy
* A peer that wants to be reached through us has a place here while it is connected.  Members come before strangers.
* Another peer asks us to reach it.  We tell it, and both dial us anew, each with a token that is valid for some seconds and
  for one socket.  From then on the bytes of each socket go into the other.  We see only data that the two have encrypted.
* All circuits together keep to the relay's own rate, and give way to our own pushes.  A circuit waits while the other end
  takes no data, and ends if nothing moves on it.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from protocol.transport.doorstep import Doorstep, receive, send
from protocol.transport.interface import Members
from protocol.transport.library import Host, MuxedConnection
from protocol.transport.nat.circuit_address import is_peer_id
from protocol.transport.rate_limit import RateLimit, Turn, guarded
from protocol.transport.reputation import Channel, Reputation
from protocol.transport.streams import answer_with, ask
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

FIRST_BYTE: Final = b"\xb2"
"""First byte of a socket that is one end of a circuit; the token follows."""
TOKEN_BYTES = 16
PEER_BYTES = 64
ANSWER_S = 4.0
"""Seconds for the wanted peer to say that it comes."""
DIAL_S = 6.0
"""Seconds for both ends to dial us."""
MAX_PLACES, MAX_STRANGERS = 128, 32
"""Most peers that can be reached through us, and most strangers among them."""
MAX_CIRCUITS, MAX_STRANGERS_CIRCUITS = 192, 16
"""Most circuits, and most circuits for which strangers asked, all together."""
MAX_CIRCUITS_PER_PEER = 40
PIECE_BYTES = 64 << 10
STALL_S = 120.0
"""Seconds without movement after which a circuit ends."""
DEAD_S = 20
"""Seconds without an acknowledgement after which an end counts as gone."""

log = logging.getLogger(__name__)
PLACE, CONNECT = 1, 2
QUESTION = struct.Struct(f">B{PEER_BYTES}s")
"""PLACE or CONNECT, and for CONNECT the wanted peer."""
ANSWER = struct.Struct(f">B{TOKEN_BYTES}sI")
"""1 for yes; for CONNECT the token, and our rate in kB a second, 0 for no limit."""
SUMMONS = struct.Struct(f">{TOKEN_BYTES}s{PEER_BYTES}sI")
"""Message to the wanted peer: its token, the asker, and our rate."""


class Refusal(Exception):
    """A question is answered with no; the text says why, for our log."""


def relay_protocol(run: Hash) -> str:
    """Return the name of the protocol that a relay answers."""
    return f"/manyhands/1/{bytes(run).hex()[:16]}/relay"


def summons_protocol(run: Hash) -> str:
    """Return the name of the protocol that a peer with a place at a relay answers."""
    return f"/manyhands/1/{bytes(run).hex()[:16]}/relayed"


@dataclass
class _Circuit:
    """One circuit.  asker: the peer that asked for it.  ends: the sockets that have come, by token.

    both: set when both have come.  moved_at: time when data last came out of either socket (trio time).
    """

    asker: PeerId
    asked: PeerId
    tokens: tuple[bytes, bytes]
    ends: dict[bytes, trio.socket.SocketType] = field(default_factory=dict)
    both: trio.Event = field(default_factory=trio.Event)
    moved_at: float = field(default_factory=trio.current_time)
    over: trio.Event = field(default_factory=trio.Event)


class RelayService:
    """Our peer as a relay.  `run` it.

    members: tells members from strangers.  connected: returns True if we have reached a peer or it has greeted us.
    rate: bytes a second of all circuits together, 0 to relay nothing.  up, down: the limits of all our traffic.
    """

    def __init__(
        self,
        host: Host,
        run: Hash,
        members: Members,
        reputation: Reputation,
        connected: Callable[[PeerId], bool],
        doorstep: Doorstep,
        rate: float,
        up: RateLimit,
        down: RateLimit,
    ) -> None:
        self._host, self._members, self._reputation, self._connected = host, members, reputation, connected
        self._doorstep, self._rate, self._up, self._down = doorstep, rate, up, down
        self._limit = RateLimit(rate or None)
        self._summons = summons_protocol(run)
        self._places: dict[PeerId, None] = {}
        self._circuits: dict[bytes, _Circuit] = {}
        self._nursery: trio.Nursery | None = None
        self.carried_bytes = 0
        answer_with(host, relay_protocol(run), QUESTION.size, self._answer, ANSWER_S)

    @property
    def circuits(self) -> int:
        """The number of circuits, including circuits whose ends have not come yet."""
        return len(self._circuits) // 2

    async def run(self) -> None:
        """Keep the tasks of circuits running until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await trio.sleep_forever()

    def disconnected(self, peer: PeerId) -> None:
        """Free the place of a peer that is no longer connected."""
        self._places.pop(peer, None)

    async def accept(self, sock: trio.socket.SocketType, address: str) -> None:
        """Serve a socket as one end of the circuit whose token it sends, until the circuit is over."""
        with self._doorstep.waits(sock, address), trio.fail_after(DIAL_S):
            token = (await receive(sock, 1 + TOKEN_BYTES))[1:]
        circuit = self._circuits.get(token)
        if circuit is None or token in circuit.ends:
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_S * 1000)
        circuit.ends[token] = sock
        if len(circuit.ends) == 2:
            circuit.both.set()
        with trio.fail_after(DIAL_S):
            await circuit.both.wait()
        await self._carry(circuit, sock, next(end for other, end in circuit.ends.items() if other != token))

    async def _answer(self, peer: PeerId, connection: MuxedConnection, question: bytes) -> bytes:
        wanted, name = QUESTION.unpack(question)
        try:
            if not self._connected(peer) or not self._rate:
                raise Refusal("not for strangers, or for nobody")
            if wanted == PLACE:
                self._give_place(peer)
                return ANSWER.pack(1, bytes(TOKEN_BYTES), self._kb_per_s)
            return ANSWER.pack(1, await self._connect(peer, name.rstrip(b"\0").decode("ascii")), self._kb_per_s)
        except (Refusal, UnicodeDecodeError) as error:
            log.debug("%s is refused: %s", peer, error)
            return ANSWER.pack(0, bytes(TOKEN_BYTES), 0)

    @property
    def _kb_per_s(self) -> int:
        return min(1 << 30, int(self._rate / 1000))

    def _give_place(self, peer: PeerId) -> None:
        """Give a peer a place; a member takes a stranger's if all are taken.  Raises `Refusal`."""
        strangers = [other for other in self._places if not self._members.has_member(other) and other != peer]
        is_member = self._members.has_member(peer)
        if not is_member and len(strangers) >= MAX_STRANGERS:
            raise Refusal("no place for another stranger")
        if len(self._places) >= MAX_PLACES and peer not in self._places:
            if not is_member or not strangers:
                raise Refusal("no place")
            del self._places[strangers[0]]
        self._places[peer] = None

    async def _connect(self, asker: PeerId, name: str) -> bytes:
        """Tell the peer of this name that `asker` wants to reach it; return the asker's token.  Raises `Refusal`."""
        asked = PeerId(name)
        if not is_peer_id(name) or asked == asker or asked not in self._places or not self._connected(asked):
            raise Refusal("a peer that cannot be reached through us")
        if self._nursery is None or not self._reputation.spend(asker, Channel.CIRCUIT) or not self._has_room(asker, asked):
            raise Refusal("too many circuits")
        circuit = _Circuit(asker, asked, (os.urandom(TOKEN_BYTES), os.urandom(TOKEN_BYTES)))
        self._circuits.update(dict.fromkeys(circuit.tokens, circuit))
        self._nursery.start_soon(guarded, self._expire, circuit)
        summons = SUMMONS.pack(circuit.tokens[1], asker.encode(), self._kb_per_s)
        try:
            answer, _ = await ask(self._host, asked, self._summons, summons, 1, ANSWER_S)
        except Exception as error:
            self._drop(circuit)
            raise Refusal(f"it does not come: {error}") from error
        if answer != b"\x01":
            self._drop(circuit)
            raise Refusal("it does not want to")
        return circuit.tokens[0]

    def _has_room(self, asker: PeerId, asked: PeerId) -> bool:
        circuits = {id(circuit): circuit for circuit in self._circuits.values()}.values()
        taken = Counter(peer for circuit in circuits for peer in (circuit.asker, circuit.asked))
        by_strangers = sum(not self._members.has_member(circuit.asker) for circuit in circuits)
        if max(taken[asker], taken[asked]) >= MAX_CIRCUITS_PER_PEER or len(circuits) >= MAX_CIRCUITS:
            return False
        return self._members.has_member(asker) or by_strangers < MAX_STRANGERS_CIRCUITS

    async def _expire(self, circuit: _Circuit) -> None:
        """Forget a circuit when it is over, or if its ends do not come in time."""
        with trio.move_on_after(ANSWER_S + DIAL_S):
            await circuit.both.wait()
        if circuit.both.is_set():
            await circuit.over.wait()
        self._drop(circuit)

    def _drop(self, circuit: _Circuit) -> None:
        for token in circuit.tokens:
            self._circuits.pop(token, None)

    async def _carry(self, circuit: _Circuit, source: trio.socket.SocketType, sink: trio.socket.SocketType) -> None:
        """Carry bytes from one end to the other until the circuit is over."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_when, circuit.over, nursery.cancel_scope)
                buffer = memoryview(bytearray(PIECE_BYTES))
                while trio.current_time() < circuit.moved_at + STALL_S:
                    got = -1
                    with trio.move_on_after(STALL_S):
                        got = await source.recv_into(buffer)
                    if got == 0:
                        break
                    if got > 0:
                        circuit.moved_at = trio.current_time()
                        await self._pay(got)
                        with trio.fail_after(STALL_S):
                            await send(sink, buffer[:got])
                        self.carried_bytes += got
                nursery.cancel_scope.cancel()
        except* (OSError, trio.TooSlowError, trio.ClosedResourceError) as error:
            log.debug("a circuit ended: %r", error)
        finally:
            circuit.over.set()

    async def _pay(self, size: int) -> None:
        for limit in (self._limit, self._down, self._up):
            await limit.pay(size, Turn.SPARE)


async def _cancel_when(over: trio.Event, scope: trio.CancelScope) -> None:
    await over.wait()
    scope.cancel()
