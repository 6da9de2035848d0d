"""Hole punching: two peers that are connected, for example through a relay, open a socket without a peer in between.

One peer sends a nonce and the endpoints at which it may be dialled.  The other peer answers with its own nonce and
endpoints, and both begin to dial (`Race`).  Their sockets carry a token derived from both nonces, so neither peer can make
the other send chosen bytes to another program.  Before that, each peer has asked a peer that it can dial (`Reflector`) for
the endpoint at which its router shows it.  On any socket that wins, both peers still have to prove their identities.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import inf

import trio

from protocol.short_id import short_id
from protocol.transport.addresses import (
    END,
    Address,
    address_of,
    at_interfaces,
    may_be_dialled,
    reach_of,
    read_end,
    write_end,
)
from protocol.transport.host import RunHost
from protocol.transport.inbound import group_at_the_other_end
from protocol.transport.interface import Unreachable
from protocol.transport.library import MuxedConnection
from protocol.transport.limits import Allowance, Channel, Doorstep, Share
from protocol.transport.nat.relay import Take
from protocol.transport.sockets import End, GoneAway, LinkKind, Way, receive, remote_end, send, way_of
from protocol.transport.streams import answer_with, ask
from protocol.transport.task_group import TaskGroup, guarded
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# The reflector, which tells each peer that connects the IP address and port at which we see it, like a STUN server.
#
# A router that translates addresses maps a socket's port to an outside port.  Many routers map an inside port to the same
# outside port for all destinations.  So a peer that knows its outside port can ask other peers to dial that port.


REFLECTOR_FIRST_BYTE = b"\xb3"
REFLECTOR_S = 3.0


class Reflector:
    """The reflector service, on sockets that begin with `REFLECTOR_FIRST_BYTE`."""

    def __init__(self, doorstep: Doorstep) -> None:
        self._doorstep = doorstep

    async def accept(self, sock: trio.socket.SocketType, address: str) -> None:
        """Send the peer the endpoint at which we see it, and wait until it closes the socket, for at most `REFLECTOR_S`."""
        with self._doorstep.waits(sock, address), trio.move_on_after(REFLECTOR_S):
            await receive(sock, 1)
            await send(sock, write_end(sock.getpeername()[:2]))
            await sock.recv(1)


async def seen_at(sock: trio.socket.SocketType, reflector: End) -> End:
    """Return the endpoint at which a reflector sees `sock`.  Raises OSError or trio.TooSlowError.

    sock: a socket that is bound but not connected.
    """
    with trio.fail_after(REFLECTOR_S):
        await sock.connect(reflector)
        await send(sock, REFLECTOR_FIRST_BYTE)
        data = b""
        while len(data) < END.size and (more := await sock.recv(END.size - len(data))):
            data += more
    if len(data) < END.size:
        raise OSError("the reflector does not answer")
    return read_end(data)


async def ports_outside(reflectors: Sequence[End]) -> tuple[int, list[int]]:
    """Return one of our ports, and the outside port that each answering reflector sees for it.  Raises OSError."""
    port, seen = 0, list[int]()
    for reflector in reflectors:
        sock = reusable_socket(port)
        with sock, suppress(OSError, trio.TooSlowError):
            port = sock.getsockname()[1]
            seen.append((await seen_at(sock, reflector))[1])
    return port, seen


def reusable_socket(port: int = 0) -> trio.socket.SocketType:
    """Return an IPv4 socket for dialling, bound to a port that our other sockets may also use.  Raises OSError."""
    bare = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            bare.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bare.bind(("0.0.0.0", port))  # noqa: S104 - to dial from, not to listen
        bare.setblocking(False)
    except OSError:
        bare.close()
        raise
    return trio.socket.from_stdlib_socket(bare)


# ------------------------------------------------------------------------------------------------------------------------
# A race of sockets between two peers: each dials all endpoints of the other, and the first socket on which both have sent
# the token wins.
#
# One of the two peers leads: it chooses the winner by sending one more byte on it, and the other peer waits for that byte.
# If both peers dial each other's outside ports at the same moment, the two attempts become one socket (simultaneous open,
# RFC 9293, 3.5): each router takes the packets from the other side for answers to packets sent from its own side.


RACE_FIRST_BYTE = b"\xb4"
TOKEN_BYTES = 16
RACE_S = 6.0
ATTEMPT_S = 1.4
"""Seconds for one attempt: long enough for a second SYN, sent after one second, because the first may have arrived before
the other router let it in."""
PAUSE_S = 0.15
"""Pause after the first attempt; twice as long after each further one, so an endpoint is dialled six times at most."""
MAX_CANDIDATES = 6
"""Most endpoints of the other peer that are dialled, and most of its sockets that are checked at one time."""
LEADS, FOLLOWS, TAKEN = b"L", b"F", b"!"

log = logging.getLogger(__name__)
_FLAG = struct.Struct(">B")
CANDIDATE_BYTES = _FLAG.size + END.size
CANDIDATES_BYTES = MAX_CANDIDATES * CANDIDATE_BYTES
HELLO_BYTES = 1 + TOKEN_BYTES + 1


@dataclass(frozen=True)
class DialCandidate:
    """An endpoint at which a peer may be dialled.

    punched: True if the peer dials from this endpoint at the same moment, False if it listens there.
    """

    end: End
    punched: bool = False


def write_candidates(candidates: Sequence[DialCandidate]) -> bytes:
    """Encode candidates for the wire, in a fixed size."""
    found = b"".join(_FLAG.pack(2 if each.punched else 1) + write_end(each.end) for each in candidates[:MAX_CANDIDATES])
    return found.ljust(CANDIDATES_BYTES, b"\0")


def read_candidates(data: bytes) -> list[DialCandidate]:
    """Decode candidates from any `CANDIDATES_BYTES` bytes; leave out invalid candidates."""
    found = []
    for at in range(0, CANDIDATES_BYTES, CANDIDATE_BYTES):
        flag = data[at]
        if flag in (1, 2):
            found.append(DialCandidate(read_end(data[at + 1 : at + CANDIDATE_BYTES]), flag == 2))
    return found


def at_its_addresses(candidates: Sequence[DialCandidate], seen: End | None) -> list[DialCandidate]:
    """Return the candidates that may belong to the peer, because a peer could name any computer.

    seen: the endpoint at which we, or a relay, see the peer; only candidates at its address count.  None for a relayed
    member; then, in each family, the first address that it names on the internet counts, and the first in a home network.
    All addresses of an IPv6 network of 64 bits count as one.
    """
    named = [(each, ip, _network(ip)) for each in candidates if (ip := address_of(each.end[0])) is not None]
    at = address_of(seen[0]) if seen is not None else None
    if at is not None:
        return [each for each, _, network in named if network == _network(at)]
    first = dict[object, object]()
    return [each for each, ip, network in named if first.setdefault((ip.version, reach_of(ip)), network) == network]


def _network(ip: Address) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    return ipaddress.ip_network((ip, 64 if ip.version == 6 else 32), strict=False)


class Race:
    """A race of sockets between our peer and another one.

    leads: True if our peer leads.  local_port: the port, known to the other peer, from which we dial punched candidates;
    None to dial no punched candidates.
    """

    def __init__(self, token: bytes, leads: bool, local_port: int | None) -> None:
        self.token, self._leads, self._local_port = token, leads, local_port
        self._arrived_in, self._arrived = trio.open_memory_channel[trio.socket.SocketType](MAX_CANDIDATES)
        self._looked_at = 0
        self._won: tuple[trio.socket.SocketType, LinkKind] | None = None

    def has_come(self, sock: trio.socket.SocketType) -> bool:
        """Enter an inbound socket, whose hello was read, in the race.  Return False if the race does not accept it."""
        if self._looked_at >= MAX_CANDIDATES:
            return False
        try:
            self._arrived_in.send_nowait(sock)
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        self._looked_at += 1
        return True

    async def run(self, theirs: Sequence[DialCandidate]) -> tuple[trio.socket.SocketType, LinkKind] | None:
        """Return the winning socket and its kind; None if no socket won within `RACE_S`.  Closes all other sockets."""
        try:
            with trio.move_on_after(RACE_S):
                async with trio.open_nursery() as nursery:
                    for candidate in theirs:
                        nursery.start_soon(self._dial, candidate, nursery.cancel_scope)
                    while True:
                        sock = await self._arrived.receive()
                        kind = LinkKind.REVERSED if self._leads else LinkKind.DIRECT
                        nursery.start_soon(self._check, sock, kind, nursery.cancel_scope, True)
        except BaseException:
            if self._won is not None:
                self._won[0].close()  # no caller will receive the socket
            raise
        finally:
            self._arrived_in.close()
            self._close_late_ones()
        return self._won

    def _close_late_ones(self) -> None:
        with suppress(trio.WouldBlock, trio.EndOfChannel):
            while True:
                self._arrived.receive_nowait().close()

    async def _dial(self, candidate: DialCandidate, scope: trio.CancelScope) -> None:
        """Dial a candidate repeatedly until cancelled, after growing pauses, and check each socket."""
        pause_s = PAUSE_S
        kind = LinkKind.PUNCHED if candidate.punched else LinkKind.DIRECT if self._leads else LinkKind.REVERSED
        while True:
            with trio.move_on_after(ATTEMPT_S), suppress(OSError):
                sock = self._new_socket(candidate)
                try:
                    await sock.connect(candidate.end)
                except BaseException:
                    sock.close()
                    raise
                await self._check(sock, kind, scope, False)
            await trio.sleep(pause_s)
            pause_s *= 2

    def _new_socket(self, candidate: DialCandidate) -> trio.socket.SocketType:
        """Return a socket for dialling a candidate.  Raises OSError."""
        if candidate.punched:
            if self._local_port is None:
                raise OSError("no port to dial from")
            return reusable_socket(self._local_port)
        family = trio.socket.AF_INET6 if ":" in candidate.end[0] else trio.socket.AF_INET
        return trio.socket.socket(family, trio.socket.SOCK_STREAM)

    async def _check(self, sock: trio.socket.SocketType, kind: LinkKind, scope: trio.CancelScope, has_said: bool) -> None:
        """Send our hello on a socket; make the socket the winner if the leader chooses it, else close it.

        has_said: True if the peer's hello was already read.
        """
        ours, other = (LEADS, FOLLOWS) if self._leads else (FOLLOWS, LEADS)
        try:
            await send(sock, RACE_FIRST_BYTE + self.token + ours)
            if not has_said and await receive(sock, HELLO_BYTES) != RACE_FIRST_BYTE + self.token + other:
                raise GoneAway("another peer is at that address")
            if self._leads and self._won is None:
                self._won = sock, kind  # from here on no other socket may win
                await send(sock, TAKEN)
                scope.cancel()
            elif not self._leads and await receive(sock, 1) == TAKEN and self._won is None:
                self._won = sock, kind
                scope.cancel()
        except (OSError, GoneAway, trio.ClosedResourceError) as error:
            log.debug("a socket to a meeting failed: %r", error)
            if self._won is not None and self._won[0] is sock:
                self._won = None
        finally:
            if has_said:
                self._looked_at -= 1
            if self._won is None or self._won[0] is not sock:
                sock.close()


# ------------------------------------------------------------------------------------------------------------------------
# Meetings: the offers of two peers, and the race that follows.


ANSWER_S = 6.0
"""Seconds for the other peer to ask a reflector and to answer."""
HELLO_S = 3.0
NONCE_BYTES = 16
OFFER_BYTES = NONCE_BYTES + CANDIDATES_BYTES
MAX_AT_ONCE = 32
"""Most meetings at one time that strangers asked for, and most that members asked for."""
DIALLED_FOR_MEMBERS, DIALLED_FOR_STRANGERS = Allowance(8, inf, 32), Allowance(1, inf, 64)
"""Endpoints that are dialled because all members, or all strangers, named them in meetings.  An endpoint over the allowance
is not dialled; the other peer may still dial us."""


@dataclass(frozen=True)
class Outside:
    """One of our ports.  seen: the endpoint at which our router shows the port."""

    port: int
    seen: End


class Meetings:
    """The meetings of our peer; they need `run`.

    listening: returns our endpoints that other peers may dial.  reflectors: returns endpoints of peers that can tell us
    where our router shows us.  take: serves a socket through which a peer connects to us.
    """

    def __init__(
        self,
        own: RunHost,
        listening: Callable[[], Sequence[End]],
        reflectors: Callable[[], Sequence[End]],
        take: Take,
    ) -> None:
        self._host, self._members, self._reputation = own.host, own.handlers, own.reputation
        self._connected, self._doorstep = own.connected, own.doorstep
        self._listening, self._reflectors, self._take = listening, reflectors, take
        self._protocol = own.protocol("meet")
        self._races: dict[tuple[bytes, bytes], Race] = {}
        self._shares = {True: Share(MAX_AT_ONCE, DIALLED_FOR_MEMBERS), False: Share(MAX_AT_ONCE, DIALLED_FOR_STRANGERS)}
        self._tasks = TaskGroup()
        answer_with(own.host, self._protocol, OFFER_BYTES, self._answer, ANSWER_S)

    async def run(self) -> None:
        """Keep the tasks of meetings running until cancelled."""
        async with self._tasks.open():
            await trio.sleep_forever()

    async def meet(self, peer: PeerId) -> tuple[trio.socket.SocketType, Way]:
        """Return a direct socket to a connected peer, and its `Way`.  Raises `Unreachable`."""
        with ExitStack() as held:
            outside = await self._outside(held)
            ours = self._offer(outside)
            theirs, connection = await ask(self._host, peer, self._protocol, ours, OFFER_BYTES, ANSWER_S)
            won = await self._race(token_of(ours, theirs), True, self._to_dial(peer, connection, theirs), outside)
        if won is None:
            raise Unreachable(f"no path to {short_id(peer)} without a relay")
        return won[0], Way(won[1])

    async def accept(self, sock: trio.socket.SocketType, address: str) -> None:
        """Enter an inbound socket in the race with the token that the peer sends.  Without a race, the caller closes it."""
        with self._doorstep.waits(sock, address), trio.fail_after(HELLO_S):
            hello = await receive(sock, HELLO_BYTES)
        wanted = LEADS if hello[-1:] == FOLLOWS else FOLLOWS
        race = self._races.get((hello[1:-1], wanted))
        if race is not None:
            ours = trio.socket.from_stdlib_socket(socket.socket(fileno=sock.detach()))
            if not race.has_come(ours):
                ours.close()

    async def _answer(self, peer: PeerId, connection: MuxedConnection, theirs: bytes) -> bytes:
        if not self._tasks.is_open or not self._connected(peer) or not self._reputation.spend(peer, Channel.MEETING):
            raise Unreachable("no meeting is possible now")
        with ExitStack() as held:
            held.enter_context(self._shares[self._members.has_member(peer)].place())
            outside = await self._outside(held)
            ours = self._offer(outside)
            to_dial, moved = self._to_dial(peer, connection, theirs), held.pop_all()
            if not self._tasks.start(guarded, self._follow, moved, token_of(theirs, ours), to_dial, outside):
                moved.close()
                raise Unreachable("our network is closed")
        return ours

    def _to_dial(self, peer: PeerId, connection: MuxedConnection, theirs: bytes) -> list[DialCandidate]:
        """Return the endpoints in a peer's offer that we dial, and use up allowance for them.

        connection: the connection that carried the offer.  A peer behind a relay is dialled where the relay sees it.  A
        member is also dialled elsewhere, because it may speak to the relay over IPv6, while holes are punched for IPv4.
        """
        way, is_member = way_of(connection), self._members.has_member(peer)
        seen, own = remote_end(connection) or way.seen, at_interfaces(self._listening())
        if seen is None:
            return []  # the connection has just been closed
        if is_member and way.relay is not None:
            seen = None
        named = [
            each for each in dict.fromkeys(read_candidates(theirs[NONCE_BYTES:])) if may_be_dialled(each.end, lambda: own)
        ]
        bucket = self._shares[is_member].bucket
        now = trio.current_time()
        return [each for each in at_its_addresses(named, seen) if bucket.take(now)]

    async def _follow(
        self, held: ExitStack, token: bytes, to_dial: Sequence[DialCandidate], outside: Outside | None
    ) -> None:
        """Run a race that another peer asked for.  held: resources that are released when the race is over."""
        with held:
            won = await self._race(token, False, to_dial, outside)
        if won is not None:
            await self._take(trio.SocketStream(won[0]), group_at_the_other_end(won[0]), Way(won[1]))

    async def _race(
        self, token: bytes, leads: bool, to_dial: Sequence[DialCandidate], outside: Outside | None
    ) -> tuple[trio.socket.SocketType, LinkKind] | None:
        """Return the winner among our sockets to these endpoints and the peer's sockets to us; None if none won."""
        race, name = Race(token, leads, outside.port if outside is not None else None), (token, LEADS if leads else FOLLOWS)
        self._races[name] = race
        try:
            return await race.run(to_dial)
        finally:
            del self._races[name]

    def _offer(self, outside: Outside | None) -> bytes:
        return os.urandom(NONCE_BYTES) + write_candidates(self._candidates(outside))

    def _candidates(self, outside: Outside | None) -> list[DialCandidate]:
        punched = [DialCandidate(outside.seen, True)] if outside is not None else []
        return [*punched, *map(DialCandidate, self._listening())][:MAX_CANDIDATES]

    async def _outside(self, held: ExitStack) -> Outside | None:
        """Return one of our ports for dialling, and the endpoint at which a reflector sees it; None if no reflector answers.

        held: receives the socket that the reflector saw.  The socket stays open so that the router keeps its mapping.
        """
        for reflector in [end for end in self._reflectors() if ":" not in end[0]][:2]:
            try:
                with ExitStack() as shown:
                    sock = shown.enter_context(reusable_socket())
                    outside = Outside(sock.getsockname()[1], await seen_at(sock, reflector))
                    held.push(shown.pop_all())
                    return outside
            except (OSError, trio.TooSlowError) as error:
                log.debug("%s is not a reflector: %r", reflector, error)
        return None


def token_of(asked: bytes, answered: bytes) -> bytes:
    """Return the token of a meeting's sockets, derived from the offers of both peers."""
    return hash_bytes("meeting", asked[:NONCE_BYTES] + answered[:NONCE_BYTES])[:TOKEN_BYTES]
