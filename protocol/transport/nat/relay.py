"""The relay: carries bytes between two peers that both have a connection to it, within the limits that its owner set.

Policy
* A peer that wants to be reached through us has a place here for as long as it is connected.  Members come before strangers.
* Whoever wants to reach it asks us.  We tell it, and both dial us anew, each with a token that is good for some seconds
  and for one socket; from then on what comes out of one socket goes into the other.  We see nothing but what the two have
  encrypted.
* All circuits together keep to the relay's own rate, and give way to what we push ourselves.  Each waits when the other end
  takes nothing; one on which nothing moves ends.
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
"""Of a socket that is one end of a circuit; the token follows."""
TOKEN_BYTES = 16
PEER_BYTES = 64
ANSWER_S = 4.0
"""For the peer that is asked for to say that it comes."""
DIAL_S = 6.0
"""For both ends to dial us."""
MAX_PLACES, MAX_STRANGERS = 128, 32
"""Peers that can be reached through us, and how many of them are no members."""
MAX_CIRCUITS, MAX_STRANGERS_CIRCUITS = 192, 16
"""The latter: those that strangers asked for, all together."""
MAX_CIRCUITS_PER_PEER = 40
PIECE_BYTES = 64 << 10
STALL_S = 120.0
"""A circuit on which nothing moved for so long ends."""
DEAD_S = 20
"""Seconds after which an end that acknowledges nothing is gone."""

log = logging.getLogger(__name__)
PLACE, CONNECT = 1, 2
QUESTION = struct.Struct(f">B{PEER_BYTES}s")
"""What is wanted, and for CONNECT the peer."""
ANSWER = struct.Struct(f">B{TOKEN_BYTES}sI")
"""1 for yes; for CONNECT the token, and how many kB a second we carry, 0 for any number."""
SUMMONS = struct.Struct(f">{TOKEN_BYTES}s{PEER_BYTES}sI")
"""To the peer that is asked for: its token, who asks, and the rate."""


class Refusal(Exception):
    """A question that is answered with no; the text says why, to our log."""


def relay_protocol(run: Hash) -> str:
    """Spoken by the relay."""
    return f"/manyhands/1/{bytes(run).hex()[:16]}/relay"


def summons_protocol(run: Hash) -> str:
    """Spoken by a peer that can be reached through a relay."""
    return f"/manyhands/1/{bytes(run).hex()[:16]}/relayed"


@dataclass
class _Circuit:
    """asker: who asked for it.  ends: the sockets that have come, by token.  both: they have.

    moved_at: when anything last came out of either (trio time).
    """

    asker: PeerId
    asked: PeerId
    tokens: tuple[bytes, bytes]
    ends: dict[bytes, trio.socket.SocketType] = field(default_factory=dict)
    both: trio.Event = field(default_factory=trio.Event)
    moved_at: float = field(default_factory=trio.current_time)
    over: trio.Event = field(default_factory=trio.Event)


class Relay:
    """One peer's willingness to relay.  `run` it.

    members: tells members from strangers.  connected: whether a peer is one that we have reached, or that has greeted us.
    rate: of all circuits together, in bytes a second, 0 to relay nothing.  up, down: the limits of all that we move.
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
        """How many there are, those included that are coming about."""
        return len(self._circuits) // 2

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await trio.sleep_forever()

    def disconnected(self, peer: PeerId) -> None:
        """It cannot be reached through us any more."""
        self._places.pop(peer, None)

    async def accept(self, sock: trio.socket.SocketType, address: str) -> None:
        """One end of a circuit has come, if it knows the token; carries for it until the circuit is over."""
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
        """Raises `Refusal`."""
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
        """Tell the peer of that name; the asker's token.  Raises `Refusal`."""
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
        """It is forgotten when it is over, or when its ends do not come."""
        with trio.move_on_after(ANSWER_S + DIAL_S):
            await circuit.both.wait()
        if circuit.both.is_set():
            await circuit.over.wait()
        self._drop(circuit)

    def _drop(self, circuit: _Circuit) -> None:
        for token in circuit.tokens:
            self._circuits.pop(token, None)

    async def _carry(self, circuit: _Circuit, source: trio.socket.SocketType, sink: trio.socket.SocketType) -> None:
        """What comes out of one end, until the circuit is over."""
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
