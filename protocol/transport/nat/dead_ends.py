"""Connections that are over though neither end closed them: our address has changed, or the other end no longer answers.

TCP notices that after a quarter of an hour.  Here a connection is over when our address under it is gone, or when no data
that we sent was acknowledged for a while.  That time is shorter if the peer has connected again since, as it does when its
address has changed.  A peer is connected anew before its old connection is closed, so that no part of the program takes it
for gone, and a running exchange continues.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress

import trio

from protocol.transport.ends import Socket, local_end_of, socket_of
from protocol.transport.library import Connection, HostConnections, peer_id_of
from protocol.transport.link import socket_state
from protocol.wire.identity import PeerId

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

LOOK_S = 1.0
SILENT_S = 20.0
"""Seconds without an acknowledgement after which a connection is over; also seconds for which we try to connect anew before
we close it."""
REPLACED_S = 2.0
"""Seconds without an acknowledgement after which a connection is over if its peer has connected again since."""


class Silences:
    """The time without an acknowledgement on each connection, while sent data waits for one."""

    def __init__(self) -> None:
        self._since: dict[object, tuple[int, float]] = {}

    def silent_s(self, connection: object, acked_bytes: int, unacked: int, now: float) -> float:
        """Return the seconds for which sent data on a connection was not acknowledged.

        acked_bytes: acknowledged since the connection began.  unacked: segments on their way.  now: trio time.
        """
        before = self._since.get(connection)
        if not unacked or before is None or before[0] != acked_bytes:
            before = self._since[connection] = acked_bytes, now
        return now - before[1]

    def keep(self, connections: Collection[object]) -> None:
        """Forget all connections except these."""
        self._since = {connection: since for connection, since in self._since.items() if connection in connections}


def own_addresses() -> set[Address]:
    """Return all present addresses of this computer; none if the system does not tell."""
    import psutil

    with suppress(OSError):
        return {ip for each in psutil.net_if_addrs().values() for entry in each if (ip := address_of(entry.address))}
    return set()


def address_of(text: str) -> Address | None:
    """Parse an IP address; an IPv4-mapped one becomes IPv4.  Return None for other texts, such as hardware addresses."""
    try:
        ip = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return mapped or ip


class DeadEnds:
    """The search for dead connections, while `run` runs.

    renew: connects anew to a connected peer; returns True on success.  close: ends a connection.  on_renewed: called when a
    peer's old connection is closed and a newer one exists, with True if our address under the old one was gone.
    """

    def __init__(
        self,
        swarm: HostConnections,
        renew: Callable[[PeerId], Awaitable[bool]],
        close: Callable[[Connection], Awaitable[None]],
        on_renewed: Callable[[PeerId, bool], None],
        addresses: Callable[[], Collection[Address]] = own_addresses,
    ) -> None:
        self._swarm, self._renew, self._close, self._on_renewed = swarm, renew, close, on_renewed
        self.addresses = addresses
        self._silences = Silences()
        self._ours: set[Address] = set()
        """Our addresses under connections that the system has listed: it may not list every address that it uses."""
        self._sockets: dict[Connection, Socket | None] = {}
        """The sockets of all connections: finding one under the library's layers takes longer than asking it."""
        self._ending: dict[Connection, bool] = {}
        """Connections that are over and not closed yet; True while we connect anew because our address is gone."""

    @property
    def is_moving(self) -> bool:
        """True while an address of ours is gone and not every peer under it is connected anew."""
        return any(self._ending.values())

    async def run(self) -> None:
        """Look for dead connections once a second, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(LOOK_S)
                for peer, connection, has_moved in self._over():
                    self._ending[connection] = has_moved
                    nursery.start_soon(self._end, peer, connection, has_moved)

    def _over(self) -> list[tuple[PeerId, Connection, bool]]:
        """Return the connections that are newly over, each with its peer first, and True if our address is gone."""
        now, all_of_them = trio.current_time(), list(self._all())
        self._silences.keep({connection for _, connection, _ in all_of_them})
        before = self._sockets
        self._sockets = {each: before.get(each) or socket_of(each) for _, each, _ in all_of_them}
        ends = {each: address_of(end[0]) for each, sock in self._sockets.items() if sock and (end := local_end_of(sock))}
        ours = self.addresses()
        self._ours = {ip for ip in ends.values() if ip and (ip in ours or ip in self._ours)}
        over = []
        for peer, connection, is_newest in all_of_them:
            ip = ends.get(connection)
            has_moved = bool(ours) and ip in self._ours and ip not in ours
            is_silent = self._silent_s(connection, now) > (SILENT_S if is_newest else REPLACED_S)
            if connection not in self._ending and (has_moved or is_silent):
                over.append((peer, connection, has_moved))
        return over

    def _all(self) -> Iterator[tuple[PeerId, Connection, bool]]:
        for identity, connections in self._swarm.connections.items():
            for connection in connections:
                yield peer_id_of(identity), connection, connection is connections[-1]

    def _silent_s(self, connection: Connection, now: float) -> float:
        sock = self._sockets[connection]
        state = socket_state(sock) if sock is not None else None
        if state is None:
            return 0.0
        return self._silences.silent_s(connection, state.acked_bytes, state.unacked, now)

    async def _end(self, peer: PeerId, connection: Connection, has_moved: bool) -> None:
        try:
            with trio.move_on_after(SILENT_S):
                while has_moved and not self._has_another(peer, connection) and not await self._renew(peer):
                    await trio.sleep(LOOK_S)
            self._ending[connection] = False
            has_another = self._has_another(peer, connection)
            await self._close(connection)
            if has_another:
                self._on_renewed(peer, has_moved)
        finally:
            del self._ending[connection]

    def _has_another(self, peer: PeerId, connection: Connection) -> bool:
        """Return True if the newest connection of the peer is another one."""
        return any(other == peer and newest and each is not connection for other, each, newest in self._all())
