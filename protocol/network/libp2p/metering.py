"""Counts what libp2p connections carry at their sockets: gossip, requests, and all that the library says by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from protocol.network.libp2p.library import LibraryId, Swarm

if TYPE_CHECKING:
    from libp2p.abc import ISecureConn
    from libp2p.io.abc import ReadWriteCloser
    from libp2p.network.connection.raw_connection import RawConnection


class Meter:
    """up_bytes, down_bytes: since the start."""

    def __init__(self) -> None:
        self.up_bytes = 0
        self.down_bytes = 0

    def watch(self, swarm: Swarm) -> None:
        """From now on count every new connection of `swarm`, from its handshake on."""
        upgrade = swarm.upgrader.upgrade_security

        async def counted(raw_conn: RawConnection, is_initiator: bool, peer_id: LibraryId | None = None) -> ISecureConn:
            raw_conn.stream = cast("ReadWriteCloser", _Metered(raw_conn.stream, self))
            return await upgrade(raw_conn, is_initiator, peer_id)

        swarm.upgrader.upgrade_security = counted  # type: ignore[method-assign]


class _Metered:
    """A stream that is counted; all else is as it was."""

    def __init__(self, stream: ReadWriteCloser, meter: Meter) -> None:
        self._inner, self._meter = stream, meter

    async def write(self, data: bytes) -> None:
        self._meter.up_bytes += len(data)
        await self._inner.write(data)

    async def read(self, n: int | None = None) -> bytes:
        data = await self._inner.read(n)
        self._meter.down_bytes += len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
