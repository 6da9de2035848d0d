"""Mirrors of a corpus on loopback, honest and bad ones, each in a thread of its own."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self, cast

import trio

from protocol.corpora.manifest import SHARDS
from tests.protocol.corpora.web import Exchange, Manner, Site, honest, liar, redirecting, stalling, vanishing

PRIVATE_ADDRESS = "http://10.254.254.1"
VANISHES_AT = 3
"""Number of the answer in whose middle a mirror vanishes."""


class MappedShards(Mapping[str, bytes]):
    """Files of the shards of a corpus by their paths on a web server, mapped when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / SHARDS

    def __getitem__(self, path: str) -> bytes:
        file = self._folder / Path(path).name
        if path != f"/{SHARDS}/{file.name}" or not file.is_file() or not file.stat().st_size:
            raise KeyError(path)
        with file.open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        return cast(bytes, mapped)  # slices of it are bytes

    def __iter__(self) -> Iterator[str]:
        return (f"/{SHARDS}/{file.name}" for file in self._folder.iterdir())

    def __len__(self) -> int:
        return sum(1 for _ in self)


class MirrorServer:
    """Mirror of the corpus in a folder.  A context.  vanishes_at: number of the answer with which it stops listening."""

    def __init__(self, folder: Path, manner: Manner = honest, vanishes_at: int | None = None) -> None:
        self._manner, self._vanishes_at, self._answers = manner, vanishes_at, 0
        self.site = Site(MappedShards(folder), self._answer)
        self.port = 0
        self._listens = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._serve,), daemon=True)

    async def _answer(self, exchange: Exchange) -> None:
        self._answers += 1
        if self._vanishes_at is None or self._answers == self._vanishes_at:
            await self._manner(exchange)
        else:
            await honest(exchange)

    async def _serve(self) -> None:
        self._token, self._listening = trio.lowlevel.current_trio_token(), trio.CancelScope()
        self._all = trio.CancelScope()
        with self._all:
            async with trio.open_nursery() as nursery:
                with self._listening:
                    (listener,) = await nursery.start(
                        partial(trio.serve_tcp, self._take, 0, host="127.0.0.1", handler_nursery=nursery)
                    )
                    self.port = listener.socket.getsockname()[1]
                    self._listens.set()
                    await trio.sleep_forever()
                nursery.cancel_scope.cancel()

    async def _take(self, stream: trio.SocketStream) -> None:
        await self.site.serve(stream)
        if self._vanishes_at is not None and self._answers >= self._vanishes_at:
            self._listening.cancel()

    @property
    def host(self) -> str:
        """Its name in the sentences of peers."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listens.wait(10.0), "the mirror does not listen"
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._all.cancel)
        self._thread.join(10.0)


def honest_mirror(folder: Path) -> MirrorServer:
    return MirrorServer(folder)


def lying_mirror(folder: Path) -> MirrorServer:
    return MirrorServer(folder, liar)


def stalling_mirror(folder: Path) -> MirrorServer:
    return MirrorServer(folder, stalling)


def redirecting_mirror(folder: Path) -> MirrorServer:
    return MirrorServer(folder, redirecting(PRIVATE_ADDRESS))


def vanishing_mirror(folder: Path) -> MirrorServer:
    return MirrorServer(folder, vanishing, VANISHES_AT)


MIRRORS = {
    "honest": (honest_mirror, ""),
    "lies": (lying_mirror, "sends wrong bytes of"),
    "stalls": (stalling_mirror, ""),
    "redirects to a private address": (redirecting_mirror, "leads to an address that is not public"),
    "vanishes in the middle": (vanishing_mirror, "does not accept connections"),
}
"""Mirrors by their manner, each with a part of the sentence with which a peer sets it aside; "" if it need not, because
others give what the mirror owes before it is found to have failed."""
