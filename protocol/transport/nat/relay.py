"""Relaying: a relay carries bytes between two peers connected to it, within the limits that the relay's owner set.

Policy
* A peer that wants to be reached through us has a place here while it is connected.  Members come before strangers.
* Another peer asks us for a circuit to the first one.  We send that peer a summons, and both dial us on new sockets, each
  with a token that is valid for some seconds and for one socket.  From then on we copy the bytes of each socket to the other
  one.  We see only data that the two peers have encrypted.
* All circuits together keep to the relay's rate limit, and give way to our own pushes.  A circuit waits while an end accepts
  no data, and ends if no data moves for `STALL_S`.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Final

import trio

from protocol.bounds import Backoffs, BoundedDict
from protocol.short_id import short_id
from protocol.transport.addresses import END, CircuitAddress, is_peer_id, is_public, read_end, transport_address, write_end
from protocol.transport.host import RunHost, protocol_of
from protocol.transport.inbound import relayed_group
from protocol.transport.interface import Members, Unreachable
from protocol.transport.library import Host, MuxedConnection, library_id
from protocol.transport.limits import Channel, displaced
from protocol.transport.nat.reachability import AddressVerdict
from protocol.transport.rate_limit import Priority, RateLimit
from protocol.transport.sockets import End, LinkKind, Way, receive, remote_end, send
from protocol.transport.streams import answer_with, ask
from protocol.transport.task_group import TaskGroup, guarded
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

FIRST_BYTE: Final = b"\xb2"
"""First byte of a socket that is one end of a circuit; the token follows."""
TOKEN_BYTES = 16
PEER_BYTES = 64
ANSWER_S = 4.0
"""Seconds within which the wanted peer must accept a summons."""
DIAL_S = 6.0
"""Seconds within which both ends must dial us."""
MAX_PLACES, MAX_STRANGERS = 128, 32
"""Most peers that can be reached through us, and most strangers among them."""
MAX_CIRCUITS, MAX_STRANGERS_CIRCUITS = 192, 16
"""Most circuits, and most circuits for which strangers asked, over all peers."""
MAX_CIRCUITS_PER_PEER = 40
PIECE_BYTES = 64 << 10
STALL_S = 120.0
"""Seconds without data after which a circuit ends."""
DEAD_S = 20
"""Seconds without an acknowledgement after which the kernel closes the socket of an end."""

log = logging.getLogger(__name__)
PLACE, CONNECT = 1, 2
QUESTION = struct.Struct(f">B{PEER_BYTES}s")
"""PLACE or CONNECT, and for CONNECT the wanted peer."""
ANSWER = struct.Struct(f">B{TOKEN_BYTES}sI{END.size}s")
"""1 for yes; for CONNECT the token; our rate in kB a second, 0 for no limit; for CONNECT where we see the wanted peer."""
SUMMONS = struct.Struct(f">{TOKEN_BYTES}s{PEER_BYTES}sI{END.size}s")
"""Message to the wanted peer: the token for its socket, the asker, our rate, and where we see the asker."""


RELAY_PROTOCOL, SUMMONS_PROTOCOL = "relay", "relayed"
"""Names of two protocols: the first is answered by a relay, the second by a peer with a place at a relay."""


def kb_per_s(bytes_per_s: float) -> int:
    """Return a rate in the unit of `ANSWER`: kB a second, rounded up, because 0 stands for no limit."""
    return min(1 << 30, ceil(bytes_per_s / 1000))


class Refusal(Exception):
    """The refusal of a question; its text gives the reason, for our log."""


@dataclass
class _Circuit:
    """One circuit.  asker: the peer that asked for it.  ends: the sockets that the two peers have opened, by token.

    both: set when both sockets are open.  moved_at: time at which we last received data from either socket (trio time).
    over: set when the circuit has ended.
    """

    asker: PeerId
    asked: PeerId
    tokens: tuple[bytes, bytes]
    ends: dict[bytes, trio.socket.SocketType] = field(default_factory=dict)
    both: trio.Event = field(default_factory=trio.Event)
    moved_at: float = field(default_factory=trio.current_time)
    over: trio.Event = field(default_factory=trio.Event)


class RelayService:
    """The relay service of our peer; it needs `run`.

    rate: bytes a second of all circuits together; 0 to relay nothing.
    """

    def __init__(self, own: RunHost, rate: float) -> None:
        self._host, self._members, self._reputation = own.host, own.handlers, own.reputation
        self._connected, self._doorstep, self._rate = own.connected, own.doorstep, rate
        self._limit, self._up, self._down = RateLimit(rate or None), own.line.up, own.line.down
        self._summons = own.protocol(SUMMONS_PROTOCOL)
        self._places: dict[PeerId, None] = {}
        self._circuits: dict[bytes, _Circuit] = {}
        self._tasks = TaskGroup()
        self.carried_bytes = 0
        answer_with(own.host, own.protocol(RELAY_PROTOCOL), QUESTION.size, self._answer, ANSWER_S)

    @property
    def circuits(self) -> int:
        """The number of circuits, including circuits whose sockets are not open yet."""
        return len(self._circuits) // 2

    async def run(self) -> None:
        """Keep the tasks of circuits running until cancelled."""
        async with self._tasks.open():
            await trio.sleep_forever()

    def disconnected(self, peer: PeerId) -> None:
        """Free the place of a peer that is no longer connected."""
        self._places.pop(peer, None)

    async def accept(self, sock: trio.socket.SocketType, address: str) -> None:
        """Read a token from a socket, and serve the socket as one end of the token's circuit until the circuit is over."""
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
                raise Refusal("the asker is a stranger, or this peer relays nothing")
            if wanted == PLACE:
                self._give_place(peer)
                return ANSWER.pack(1, bytes(TOKEN_BYTES), kb_per_s(self._rate), bytes(END.size))
            asked = PeerId(name.rstrip(b"\0").decode("ascii"))
            return ANSWER.pack(1, await self._connect(peer, asked), kb_per_s(self._rate), self._seen(asked))
        except (Refusal, UnicodeDecodeError) as error:
            log.debug("%s is refused: %s", peer, error)
            return ANSWER.pack(0, bytes(TOKEN_BYTES), 0, bytes(END.size))

    def _seen(self, peer: PeerId) -> bytes:
        """Return the endpoint at which we see a connected peer, over IPv4 if we can; zeros if we see none."""
        open_ones = [each for each in self._host.get_network().connections.get(library_id(peer), []) if not each.is_closed]
        ends = sorted((end for each in open_ones if (end := remote_end(each)) is not None), key=lambda end: ":" in end[0])
        return write_end(ends[0]) if ends else bytes(END.size)

    def _give_place(self, peer: PeerId) -> None:
        """Give a peer a place; if none is free, a member takes a stranger's place.  Raises `Refusal`."""
        strangers = sum(not self._members.has_member(other) for other in self._places if other != peer)
        if not self._members.has_member(peer) and strangers >= MAX_STRANGERS:
            raise Refusal("no place for another stranger")
        if len(self._places) >= MAX_PLACES and peer not in self._places:
            loser = displaced(peer, dict.fromkeys(self._places, 1), self._members)
            if loser is None:
                raise Refusal("no place")
            del self._places[loser]
        self._places[peer] = None

    async def _connect(self, asker: PeerId, asked: PeerId) -> bytes:
        """Summon a peer to a circuit with `asker`; return the asker's token.  Raises `Refusal`."""
        if not is_peer_id(asked) or asked == asker or asked not in self._places or not self._connected(asked):
            raise Refusal("the wanted peer cannot be reached through us")
        if not self._tasks.is_open or not self._reputation.spend(asker, Channel.CIRCUIT) or not self._has_room(asker, asked):
            raise Refusal("too many circuits")
        circuit = _Circuit(asker, asked, (os.urandom(TOKEN_BYTES), os.urandom(TOKEN_BYTES)))
        self._circuits.update(dict.fromkeys(circuit.tokens, circuit))
        self._tasks.start(guarded, self._expire, circuit)
        summons = SUMMONS.pack(circuit.tokens[1], asker.encode(), kb_per_s(self._rate), self._seen(asker))
        try:
            answer, _ = await ask(self._host, asked, self._summons, summons, 1, ANSWER_S)
        except Exception as error:
            self._drop(circuit)
            raise Refusal(f"the wanted peer does not answer the summons: {error}") from error
        if answer != b"\x01":
            self._drop(circuit)
            raise Refusal("the wanted peer declines the summons")
        return circuit.tokens[0]

    def _has_room(self, asker: PeerId, asked: PeerId) -> bool:
        circuits = {id(circuit): circuit for circuit in self._circuits.values()}.values()
        taken = Counter(peer for circuit in circuits for peer in (circuit.asker, circuit.asked))
        by_strangers = sum(not self._members.has_member(circuit.asker) for circuit in circuits)
        if max(taken[asker], taken[asked]) >= MAX_CIRCUITS_PER_PEER or len(circuits) >= MAX_CIRCUITS:
            return False
        return self._members.has_member(asker) or by_strangers < MAX_STRANGERS_CIRCUITS

    async def _expire(self, circuit: _Circuit) -> None:
        """Forget a circuit when it is over, or if its two sockets are not open within `ANSWER_S + DIAL_S`."""
        with trio.move_on_after(ANSWER_S + DIAL_S):
            await circuit.both.wait()
        if circuit.both.is_set():
            await circuit.over.wait()
        self._drop(circuit)

    def _drop(self, circuit: _Circuit) -> None:
        for token in circuit.tokens:
            self._circuits.pop(token, None)

    async def _carry(self, circuit: _Circuit, source: trio.socket.SocketType, sink: trio.socket.SocketType) -> None:
        """Carry bytes from one socket to the other until the circuit is over."""
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
            await limit.pay(size, Priority.SPARE)


async def _cancel_when(over: trio.Event, scope: trio.CancelScope) -> None:
    await over.wait()
    scope.cancel()


# ------------------------------------------------------------------------------------------------------------------------
# The use of relays: our places at relays while not every peer can reach us, circuits to other peers, and circuits to us.


WANTED = 2
"""Relays at which we want a place: two, so that one remains if the other is lost."""
LOOK_S = 2.0
KEEP_S = 30.0
"""Seconds after which we ask for a place again: the relay may have given it to another peer without telling us."""
MAX_AGAIN_S = 60.0
"""Longest pause before we ask a relay again that has refused.  The first pause is `LOOK_S`, because our handshake with the
relay may not be complete yet; each further pause is twice as long."""
MAX_REMEMBERED = 1024
SOON_S, AT_ONCE = 0.5, 8
"""Seconds without an answer after which we ask another relay as well, and most relays asked at one time.  So a relay that
does not answer cannot delay our search."""

Take = Callable[[trio.SocketStream, str, Way], Awaitable[None]]
"""Function that serves a peer's socket until it closes, given the address group for which it counts, and its `Way`."""


class Circuits:
    """The circuits of our peer and its places at relays; they need `run`.

    dialled: returns the connected peers that we have dialled, with their endpoints.  reached: returns the verdict on our
    reachability for all peers, including peers without IPv6.  take: serves a socket through which a peer connects to us.
    """

    def __init__(
        self,
        host: Host,
        run: Hash,
        members: Members,
        dialled: Callable[[], dict[PeerId, End]],
        reached: Callable[[], AddressVerdict],
        take: Take,
    ) -> None:
        self._host, self._members, self._dialled, self._reached, self._take = host, members, dialled, reached, take
        self._protocol = protocol_of(run, RELAY_PROTOCOL)
        self._places = BoundedDict[PeerId, float](WANTED, lambda relay, _: not members.has_member(relay))
        """Time at which each relay last granted us a place."""
        self._met = trio.Event()
        self._refused = Backoffs[PeerId](LOOK_S, MAX_AGAIN_S, MAX_REMEMBERED)
        """Pauses before we ask each relay again."""
        self._coming = Counter[PeerId]()
        """Number of sockets that we are opening because of a summons, by relay."""
        self._tasks = TaskGroup()
        answer_with(host, protocol_of(run, SUMMONS_PROTOCOL), SUMMONS.size, self._on_summons, ANSWER_S)

    async def run(self) -> None:
        """Keep places at relays until cancelled."""
        async with self._tasks.open() as nursery:
            nursery.start_soon(self._keep)
            while True:
                if self._reached() is AddressVerdict.REACHABLE:
                    self._places.clear()
                else:
                    await self._look_for_places()
                with trio.move_on_after(LOOK_S):
                    await self._met.wait()
                self._met = trio.Event()

    def connected(self) -> None:
        """Note that another peer, a possible relay, is connected."""
        self._met.set()

    def disconnected(self, peer: PeerId) -> None:
        """Forget our place at a peer that is no longer connected."""
        self._places.pop(peer, None)

    def addresses(self, me: PeerId) -> list[str]:
        """Return our addresses behind relays."""
        dialled = self._dialled()
        at = {relay: transport_address(*dialled[relay]) for relay in self._places if relay in dialled}
        return [str(CircuitAddress(address, relay, me)) for relay, address in at.items()]

    async def open(self, relay: PeerId, peer: PeerId) -> tuple[trio.socket.SocketType, Way]:
        """Open a socket to `peer` through a relay; return the socket and its `Way`.  Raises `Unreachable` or OSError."""
        end = self._dialled().get(relay)
        if end is None:
            raise Unreachable(f"the relay {short_id(relay)} is not connected")
        question = QUESTION.pack(CONNECT, peer.encode().ljust(PEER_BYTES, b"\0"))
        answer, _ = await ask(self._host, relay, self._protocol, question, ANSWER.size, 2 * ANSWER_S)
        granted, token, kb_per_s, seen = ANSWER.unpack(answer)
        if granted != 1:
            raise Unreachable(f"the relay {short_id(relay)} does not lead to {short_id(peer)}")
        return await self._come(end, token), _way(relay, kb_per_s, seen)

    async def _look_for_places(self) -> None:
        """Ask relays for places, members first.

        Members replace strangers that gave us a place, because a crowd of strangers may have connected before the members.
        While our reachability is unknown, we already ask relays with public addresses: other peers will be looking for us.
        """
        dialled, now = self._dialled(), trio.current_time()
        for relay in self._places.keys() - dialled.keys():
            del self._places[relay]  # we no longer announce a place there
        in_vain = self._reached() is AddressVerdict.UNREACHABLE
        due = [
            relay
            for relay, end in dialled.items()
            if relay not in self._places and self._refused.is_over(relay, now)
            if in_vain or is_public(transport_address(*end))
        ]
        waiting = iter(sorted(due, key=lambda relay: not self._members.has_member(relay)))
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                over = trio.Event()
                nursery.start_soon(self._ask_in_turn, waiting, over)
                with trio.move_on_after(SOON_S):
                    await over.wait()
                if over.is_set():
                    break

    async def _ask_in_turn(self, waiting: Iterator[PeerId], over: trio.Event) -> None:
        for relay in waiting:
            if self._is_wanted(relay):
                await self._gets_place(relay)
        over.set()

    def _is_wanted(self, relay: PeerId) -> bool:
        """Return True if we need another place at a relay like this one: at a member, or for a stranger at any relay."""
        is_member = self._members.has_member(relay)
        enough = sum(self._members.has_member(each) or not is_member for each in self._places) >= WANTED
        return not enough and relay not in self._places

    async def _keep(self) -> None:
        while True:
            await self._keep_places()
            await trio.sleep(LOOK_S)

    async def _keep_places(self) -> None:
        for relay, granted_at in list(self._places.items()):
            if trio.current_time() >= granted_at + KEEP_S:
                await self._gets_place(relay)

    async def _gets_place(self, relay: PeerId) -> bool:
        """Ask a relay for a place; return True if it grants one.  After each refusal we wait longer before we ask again."""
        question, granted = QUESTION.pack(PLACE, bytes(PEER_BYTES)), False
        try:
            answer, _ = await ask(self._host, relay, self._protocol, question, ANSWER.size, ANSWER_S)
            granted = ANSWER.unpack(answer)[0] == 1
        except Unreachable as error:
            log.debug("no place at a relay: %s", error)
        if granted:
            self._refused.pop(relay, None)
            self._places[relay] = trio.current_time()
        else:
            self._places.pop(relay, None)
            self._refused.failed(relay, trio.current_time())
        return granted

    async def _on_summons(self, relay: PeerId, connection: MuxedConnection, question: bytes) -> bytes:
        """Answer a summons: a relay at which we have a place tells us that another peer wants to reach us."""
        token, _, kb_per_s, seen = SUMMONS.unpack(question)
        end = self._dialled().get(relay)
        if relay not in self._places or end is None or not self._tasks.is_open:
            return b"\0"
        if self._coming[relay] >= MAX_CIRCUITS_PER_PEER:
            return b"\0"  # a relay allows each peer no more circuits than this
        self._coming[relay] += 1
        self._tasks.start(guarded, self._serve, relay, end, token, _way(relay, kb_per_s, seen))
        return b"\x01"

    async def _serve(self, relay: PeerId, end: End, token: bytes, way: Way) -> None:
        try:
            sock = await self._come(end, token)
        except OSError as error:
            log.debug("no circuit: %s", error)
            return
        finally:
            self._coming[relay] -= 1
            self._coming += Counter()  # removes relays whose count is zero
        await self._take(trio.SocketStream(sock), relayed_group(relay), way)

    async def _come(self, relay: End, token: bytes) -> trio.socket.SocketType:
        """Open our socket of a circuit.  Raises OSError."""
        return await dial(relay, FIRST_BYTE + token, DIAL_S)


def _way(relay: PeerId, kb_per_s: int, seen: bytes) -> Way:
    return Way(LinkKind.RELAYED, relay, kb_per_s * 1000.0 or inf, read_end(seen))


async def dial(end: End, first: bytes, deadline_s: float) -> trio.socket.SocketType:
    """Open a socket to this endpoint and send `first` on it.  Raises OSError."""
    sock = trio.socket.socket(trio.socket.AF_INET6 if ":" in end[0] else trio.socket.AF_INET, trio.socket.SOCK_STREAM)
    try:
        with trio.fail_after(deadline_s):
            await sock.connect(end)
            await send(sock, first)
    except trio.TooSlowError as error:
        sock.close()
        raise OSError(f"{end[0]} does not answer") from error
    except BaseException:
        sock.close()
        raise
    return sock


def relays_of(addresses: Sequence[CircuitAddress]) -> list[PeerId]:
    """Return the relays in these addresses, each once."""
    return list(dict.fromkeys(address.relay for address in addresses))
