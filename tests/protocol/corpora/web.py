"""A web in memory and virtual time: names, addresses, and servers that behave well or badly."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import repeat

import trio
import trio.testing

from protocol.blobs.mirrors import WebDialer
from tests.protocol.corpora.corpora import Corpus
from tests.protocol.virtual_time import Check, given_first

PUBLIC, OTHER_PUBLIC, PRIVATE = "93.184.216.34", "2606:2800:220:1::1", "10.0.0.7"
FOREVER_S = 1e7


@dataclass
class Request:
    """A request for bytes [start, end) of a file."""

    path: str
    start: int
    end: int
    headers: dict[str, str]


@dataclass
class Exchange:
    """A request, the content of the file, and the way to answer."""

    request: Request
    content: bytes
    stream: trio.abc.Stream

    @property
    def wanted(self) -> bytes:
        return self.content[self.request.start : self.request.end]

    async def head(self, status: str = "206 Partial Content", length: int | None = None, **headers: str) -> None:
        """Send a status line and headers; underscores in names stand for hyphens."""
        start, end = self.request.start, self.request.end
        named = {"Content_Range": f"bytes {start}-{end - 1}/{len(self.content)}", **headers}
        if "Transfer_Encoding" not in named:
            named["Content_Length"] = str(len(self.wanted) if length is None else length)
        lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in named.items())]
        await self.stream.send_all(("\r\n".join(lines) + "\r\n\r\n").encode())


Manner = Callable[[Exchange], Awaitable[None]]


async def honest(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.stream.send_all(exchange.wanted)


async def chunked(exchange: Exchange) -> None:
    """Sends the range in chunks, without a length."""
    await exchange.head(Transfer_Encoding="chunked")
    for at in range(0, len(exchange.wanted), 1000):
        piece = exchange.wanted[at : at + 1000]
        await exchange.stream.send_all(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
    await exchange.stream.send_all(b"0\r\n\r\n")


async def liar(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.stream.send_all(exchange.wanted[:-1] + bytes([exchange.wanted[-1] ^ 1]))


async def silent(exchange: Exchange) -> None:
    await trio.sleep(FOREVER_S)


async def stalling(exchange: Exchange) -> None:
    """Sends three quarters and then nothing."""
    await exchange.head()
    await exchange.stream.send_all(exchange.wanted[: 3 * len(exchange.wanted) // 4])
    await trio.sleep(FOREVER_S)


async def trickling(exchange: Exchange) -> None:
    await exchange.head()
    for byte in exchange.wanted:
        await exchange.stream.send_all(bytes([byte]))
        await trio.sleep(5.0)


async def vanishing(exchange: Exchange) -> None:
    """Breaks off after three quarters."""
    await exchange.head()
    await exchange.stream.send_all(exchange.wanted[: 3 * len(exchange.wanted) // 4])


async def whole(exchange: Exchange) -> None:
    """Knows no ranges, and sends the whole file without end."""
    await exchange.head("200 OK", 1 << 40)
    for _ in repeat(None):
        await exchange.stream.send_all(exchange.content)


async def endless(exchange: Exchange) -> None:
    """Sends the range, and goes on for ever."""
    await exchange.head(Transfer_Encoding="chunked")
    for _ in repeat(None):
        await exchange.stream.send_all(f"{len(exchange.wanted):x}\r\n".encode() + exchange.wanted + b"\r\n")


async def other_range(exchange: Exchange) -> None:
    await exchange.head(Content_Range=f"bytes 0-{len(exchange.wanted) - 1}/{len(exchange.content)}")
    await exchange.stream.send_all(exchange.content[: len(exchange.wanted)])


async def short(exchange: Exchange) -> None:
    """Announces fewer bytes than were asked for."""
    await exchange.head(length=len(exchange.wanted) - 1)
    await exchange.stream.send_all(exchange.wanted[:-1])


async def missing(exchange: Exchange) -> None:
    await exchange.head("404 Not Found", 0)


async def compressing(exchange: Exchange) -> None:
    await exchange.head(Content_Encoding="gzip")
    await exchange.stream.send_all(exchange.wanted)


async def babbling(exchange: Exchange) -> None:
    await exchange.stream.send_all(b"220 mail.example ESMTP\r\n" * 9)


async def heading(exchange: Exchange) -> None:
    """Sends headers without end."""
    await exchange.stream.send_all(b"HTTP/1.1 206 Partial Content\r\n")
    for number in range(1 << 20):
        await exchange.stream.send_all(f"X-{number}: {'x' * 1000}\r\n".encode())


async def informing(exchange: Exchange) -> None:
    """Sends interim answers without end."""
    for _ in repeat(None):
        await exchange.stream.send_all(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 500)


def chunking(piece: bytes) -> Manner:
    """Sends a range in chunks that all look like this."""

    async def chunk(exchange: Exchange) -> None:
        await exchange.head(Transfer_Encoding="chunked")
        for _ in repeat(None):
            await exchange.stream.send_all(piece * (60_000 // len(piece)))

    return chunk


def redirecting(location: str) -> Manner:
    async def redirect(exchange: Exchange) -> None:
        await exchange.head("302 Found", 0, Location=location)

    return redirect


@dataclass
class Site:
    """Files at one address.  requests: in order.  sent: bytes that it could send before its visitors left."""

    files: Mapping[str, bytes]
    manner: Manner = honest
    requests: list[Request] = field(default_factory=list)
    sent: int = 0

    async def serve(self, stream: trio.abc.Stream) -> None:
        try:
            raw = b""
            while b"\r\n\r\n" not in raw:
                got = await stream.receive_some(4096)
                if not got:
                    return
                raw += got
            first, *lines = raw.decode().strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", headers["range"])
            assert match is not None and first.startswith("GET /") and first.endswith(" HTTP/1.1")
            request = Request(first.split()[1], int(match[1]), int(match[2]) + 1, headers)
            self.requests.append(request)
            content = self.files.get(request.path)
            manner = self.manner if content is not None else missing
            await manner(Exchange(request, content or b"", _Counted(stream, self)))
        except trio.BrokenResourceError:
            pass
        finally:
            await trio.aclose_forcefully(stream)


class _Counted(trio.abc.Stream):
    """A stream that waits until its reader has caught up, as a socket does."""

    def __init__(self, stream: trio.abc.Stream, site: Site) -> None:
        self._stream, self._site = stream, site

    async def send_all(self, data: bytes | memoryview) -> None:
        await self._stream.send_all(data)
        self._site.sent += len(data)
        await trio.testing.wait_all_tasks_blocked()

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()


def files_of(corpus: Corpus, base: str = "") -> dict[str, bytes]:
    """The files of a mirror, by their paths."""
    shards = {f"{base}/shards/{root.hex()}.shard": data for root, data in corpus.data.items()}
    leaves = {f"{base}/shards/{root.hex()}.leaves": b"".join(each) for root, each in corpus.leaves.items()}
    return shards | leaves


class Web(WebDialer):
    """Names with addresses, addresses with sites.  dialled: in order."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.names: dict[str, list[str]] = {}
        self.sites: dict[str, Site] = {}
        self.dialled: list[str] = []

    def add(self, name: str, ip: str, site: Site) -> Site:
        self.names.setdefault(name, []).append(ip)
        self.sites[ip] = site
        return site

    async def look_up(self, host: str, port: int) -> list[str]:
        await trio.lowlevel.checkpoint()
        if host not in self.names:
            raise OSError("no such name")
        return self.names[host]

    async def dial(self, ip: str, port: int) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        self.dialled.append(ip)
        if ip not in self.sites:
            raise OSError("connection refused")
        here, there = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self.sites[ip].serve, there)
        return here


def on_the_web(test: Check) -> Callable[..., None]:
    """Make a test of a web one that pytest runs, in virtual time."""

    def provide(check: Check) -> None:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                await check(Web(nursery))
                nursery.cancel_scope.cancel()

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    return given_first(test, provide)
