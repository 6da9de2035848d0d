"""A socket in a folder here that leads to the control socket of a peer elsewhere (`peer.control.remote`).

Whatever talks to peers on this computer talks to that one through it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from peer.control.client import ControlError, socket_address
from peer.control.remote import call, join
from protocol.wire.identity import Identity

log = logging.getLogger(__name__)


@asynccontextmanager
async def bridge(folder: Path, address: str, identity: Identity) -> AsyncIterator[None]:
    """For the length of the block.  folder: private to this user.  Raises ControlError when nobody is there at the start."""
    await trio.aclose_forcefully(await call(address, identity))
    listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    with listener, socket_address(folder) as path:
        await listener.bind(path)
        listener.listen(16)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_accept, listener, address, identity, nursery)
            yield
            nursery.cancel_scope.cancel()


async def _accept(listener: trio.socket.SocketType, address: str, identity: Identity, nursery: trio.Nursery) -> None:
    while True:
        connection, _ = await listener.accept()
        nursery.start_soon(_lead, trio.SocketStream(connection), address, identity)


async def _lead(inside: trio.SocketStream, address: str, identity: Identity) -> None:
    """One connection, to its end; closed at once when nobody is there, which whoever opened it sees."""
    async with inside:
        try:
            outside = await call(address, identity)
        except ControlError as error:
            log.debug("%s", error)
            return
        try:
            await join(inside, outside)
        finally:
            await trio.aclose_forcefully(outside)
