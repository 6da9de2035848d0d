"""The door for connections from outside: accepts them, and does what `visitors` decides.

Takes the place of the library's own handling of inbound connections.  Version 0.8.1 takes a token of a limiter (256) for
each of them and then waits for the whole swarm to end: a token came back only when the peer stopped, and after 256
connections in its life it accepted nobody.  Here a connection is one task, from the socket to the end of the connection;
whatever ends it, its place is free and its socket closed.
"""

from __future__ import annotations

import ipaddress
import itertools
import logging
import math
import socket
from collections.abc import Callable
from typing import Any

import trio

from protocol.events import StrangersClosed
from protocol.network.libp2p.conduct import Conduct
from protocol.network.libp2p.tally import Tally
from protocol.network.libp2p.visitors import Places, Stage, Visitors
from protocol.wire.identity import PeerId

PAUSE_PER_CALLER_S = 50e-6
"""Between two looks at the door: a look costs 1 or 2 us for each that stands there."""
LATE_S = 0.1
"""Whoever sleeps and is woken later than this competes with others for the processor."""
SHORT_S = 1.0
"""For so long after that, strangers get less of it."""
_TCP_ESTABLISHED = 1

log = logging.getLogger(__name__)


class _Caller:
    """The task of one connection: `enter` lets it shake hands, its scope ends it."""

    def __init__(self, sock: Any) -> None:
        self.sock = sock
        self.enter = trio.Event()
        self.scope = trio.CancelScope()


class Door:
    """The inbound connections of one swarm.  `attach`, then `run`.  on_closed: told of who was turned away, in sums."""

    def __init__(self, conduct: Conduct, places: Places, on_closed: Callable[[StrangersClosed], None]) -> None:
        self._conduct, self._on_closed = conduct, on_closed
        self._tally = Tally()
        self._visitors = Visitors(places, trio.current_time(), self._tally.count)
        self._callers: dict[int, _Caller] = {}
        self._numbers = itertools.count()
        self._changed = trio.Event()
        self._swarm: Any = None

    def attach(self, swarm: Any) -> None:
        """From now on the connections that `swarm` accepts come here."""
        self._swarm = swarm
        swarm._handle_inbound_connection = self._receive

    async def run(self) -> None:
        """Until cancelled."""
        short_until = -math.inf
        while True:
            self._changed = trio.Event()
            self._miss_those_gone()
            moves = self._visitors.step(trio.current_time(), trio.current_time() < short_until)
            for number in moves.leave:
                self._callers[number].scope.cancel()
            for number in moves.enter:
                self._callers[number].enter.set()
            event = self._tally.take(trio.current_time())
            if event is not None:
                self._on_closed(event)
            until = trio.current_time() + PAUSE_PER_CALLER_S * len(self._callers)
            await trio.sleep_until(until)
            if trio.current_time() > until + LATE_S:
                short_until = trio.current_time() + SHORT_S
            with trio.move_on_at(min(moves.again_at, self._tally.due_at)):
                await self._changed.wait()

    def _miss_those_gone(self) -> None:
        """Who has hung up while it waited shall not get a turn."""
        for number, caller in self._callers.items():
            if not caller.enter.is_set() and _has_hung_up(caller.sock):
                caller.scope.cancel()
                self._visitors.left(number)

    def welcome(self, peer: PeerId) -> None:
        """A peer has greeted us well."""
        self._visitors.welcome(peer)
        self._changed.set()

    def unwelcome(self, peer: PeerId) -> None:
        self._visitors.unwelcome(peer)

    def is_welcome(self, peer: PeerId) -> bool:
        return self._visitors.is_welcome(peer)

    def count(self, *stages: Stage) -> int:
        return self._visitors.count(*stages)

    async def _receive(self, stream: Any, listening_at: Any) -> None:
        """The library's handler of an accepted connection."""
        address = neighbourhood(_remote(stream.stream.socket))
        number, caller = next(self._numbers), _Caller(stream.stream.socket)
        try:
            if self._conduct.admits_connection(address):
                self._callers[number] = caller
                self._visitors.arrived(number, address, trio.current_time())
                self._changed.set()
                with caller.scope:
                    await self._attend(number, caller, stream, listening_at)
        except Exception as error:  # noqa: BLE001 - the library raises anything; a connection that failed is over
            log.debug("a connection from %s failed: %r", address, error)
        finally:
            self._callers.pop(number, None)
            self._visitors.left(number)
            self._changed.set()
            await trio.aclose_forcefully(stream.stream)

    async def _attend(self, number: int, caller: _Caller, stream: Any, listening_at: Any) -> None:
        """From the first byte to the end of the connection."""
        from libp2p.network.connection.raw_connection import RawConnection

        if not await stream.stream.socket.recv(1, socket.MSG_PEEK):
            return
        self._visitors.spoke(number, trio.current_time())
        self._changed.set()
        await caller.enter.wait()
        connection = await self._swarm.upgrade_inbound_raw_conn(RawConnection(stream, False), listening_at)
        self._visitors.proved(number, PeerId(connection.peer_id.to_base58()), trio.current_time())
        self._changed.set()
        await connection.ended.wait()


def _remote(sock: Any) -> tuple[Any, ...] | None:
    """Asked of the socket: the library knows no IPv6 here."""
    try:
        address: tuple[Any, ...] = sock.getpeername()
    except OSError:
        return None  # gone already
    return address


def _has_hung_up(sock: Any) -> bool:
    """Whether the other end has closed a connection from which not everything was read; False where nobody can tell."""
    if not hasattr(socket, "TCP_INFO"):
        return False
    try:
        state: bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except OSError:
        return True
    return state[0] != _TCP_ESTABLISHED


def neighbourhood(address: tuple[Any, ...] | None) -> str:
    """What counts as one address: of IPv6 the network, for whoever has one address of it has all."""
    if address is None:
        return "unknown"
    try:
        ip = ipaddress.ip_address(address[0].partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)
