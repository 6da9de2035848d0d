"""Mirrors: web servers from which the chunks of blobs are read by ranges of files.

A mirror is trusted no more than a peer: every chunk is checked against its hash.  `Mirrors` decides which mirror is asked:

* **Order.**  A hash of our peer ID and the blob draws the order in which the mirrors are asked, so that the load spreads
  over them.
* **Absence.**  A mirror that lacks a blob is not asked for it for a while; it may have other blobs.
* **Backoff.**  A mirror that fails is not asked for a while, twice as long each time, until a read from it succeeds.
* **Set aside.**  A mirror that sends wrong bytes, or breaks a rule of the client, is not asked again until this peer's next
  start.

`RangeClient.read` asks one server for one range, and gives the bytes piece by piece.  It trusts neither the server nor the
names that lead to it:

* A name is looked up, each of its addresses must be public or in a network that the user allows, and exactly these addresses
  are dialled, so that a second look-up cannot lead elsewhere.  With TLS, the certificate must be for the name.
* At most three redirects are followed.  Each one is judged as the first address was; none leads from https to http.
* Connecting, the first byte and the progress after it have deadlines.
* No more bytes than asked for are read.  An answer that is not the range is not read at all.  Compression is not accepted.
  Everything around the range, such as interim answers and the sizes of chunks, is bounded, and counts as traffic.
* Settings of the environment (proxies, cookies, passwords) are not used.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from urllib.parse import urljoin, urlsplit

import h11
import trio

from protocol.blobs.blob import Blob
from protocol.bounds import Backoff, BoundedDict
from protocol.events.events import Event, Notice
from protocol.transport.addresses import Address, Reach, address_of, reach_of
from protocol.wire.hashes import HASH_BYTES, Hash, chunk_hash, hash_bytes, tree_root
from protocol.wire.identity import PeerId

MAX_MIRRORS = 16
FIRST_REST_S, MOST_REST_S = 2.0, 300.0
ABSENT_S, MAX_ABSENT = 300.0, 1024
"""Seconds until a mirror is asked again for a blob that it lacked; most such blobs remembered for a mirror."""
TOLD_FAILURES = 3
"""Number of failures in a row after which the user is told."""

Receive = Callable[[bytes], Awaitable[None]]
"""Receiver of each piece of a range."""


@dataclass
class _Mirror:
    """A mirror.

    rests_until: the trio time at which its rest ends.  failures: number of failures in a row.  absent: the time at which it
    lacked each blob.
    """

    url: str
    rests_until: float = -inf
    failures: int = 0
    rest: Backoff = field(default_factory=lambda: Backoff(FIRST_REST_S, MOST_REST_S))
    absent: BoundedDict[Hash, float] = field(default_factory=lambda: BoundedDict(MAX_ABSENT))


class Mirrors:
    """Mirrors of blobs.  urls: the URLs of folders with the files <name>.shard, a blob, and <name>.leaves, its hashes.

    me: our peer ID.  names: names of blobs' files in the folders, if they are published under other names, without hashes.
    """

    def __init__(
        self,
        urls: Sequence[str],
        client: RangeClient,
        me: PeerId,
        emit: Callable[[Event], None] = lambda event: None,
        names: Mapping[Hash, str] | None = None,
    ) -> None:
        self._names = names or {}
        self._mirrors = {url: _Mirror(url) for url in [*dict.fromkeys(urls)][:MAX_MIRRORS]}
        self._client, self._me, self._emit = client, me, emit

    def ready(self, blob: Hash) -> list[str]:
        """Return the mirrors that may be asked for a blob now, by their URLs, in the order in which to ask them."""
        now, drawn = trio.current_time(), self._me.encode() + blob
        ready = [
            mirror.url
            for mirror in self._mirrors.values()
            if mirror.rests_until <= now and now - mirror.absent.get(blob, -inf) >= ABSENT_S
        ]
        return sorted(ready, key=lambda url: hash_bytes("mirror of a blob", drawn + url.encode()))

    async def read_leaves(self, blob: Hash, count: int) -> list[Hash] | None:
        """Return the hashes of a blob's `count` chunks; None if no mirror gives them."""
        leaves: list[Hash] = []

        async def check(raw: bytes) -> None:
            leaves[:] = [Hash(raw[at : at + HASH_BYTES]) for at in range(0, len(raw), HASH_BYTES)]
            if tree_root(leaves) != blob:
                raise RangeForbidden("sends hashes that do not have the root in the corpus's manifest")

        for url in self.ready(blob):
            if await self._read(url, blob, "leaves", 0, [HASH_BYTES * count], check):
                return leaves
        return None

    async def read_chunks(self, url: str, blob: Blob, chunks: range, keep: Callable[[int, bytes], Awaitable[None]]) -> bool:
        """Read consecutive chunks of a blob from one mirror; return False if it does not give them all.

        keep: called with each chunk that is right.  Raises what `keep` raises.
        """
        left = [*reversed(chunks)]

        async def check(data: bytes) -> None:
            if chunk_hash(data) != blob.leaves[left[-1]]:
                raise RangeForbidden(f"sends wrong bytes of {self._name(blob.name, 'shard')}")
            await keep(left.pop(), data)

        sizes = [blob.sizes[chunk] for chunk in chunks]
        return await self._read(url, blob.name, "shard", blob.offsets[chunks.start], sizes, check)

    def _name(self, blob: Hash, ending: str) -> str:
        return self._names.get(blob, f"{blob.hex()}.{ending}")

    async def _read(self, url: str, blob: Hash, ending: str, start: int, sizes: Sequence[int], receive: Receive) -> bool:
        """Read a range of a file of a mirror; return False if it fails."""
        mirror, name, host = self._mirrors[url], self._name(blob, ending), host_of(url)
        try:
            await self._client.read(f"{url}/{name}", start, sizes, receive)
        except RangeForbidden as error:
            mirror.rests_until = inf
            text = f"the mirror {host} {error}: it is not asked again; please tell the organiser"
            self._emit(Notice("warning", text))
        except RangeAbsent:
            mirror.absent.renew(blob, trio.current_time())
            self._emit(Notice("debug", f"the mirror {host} does not have {name}"))
        except RangeFailed as error:
            mirror.failures += 1
            rest_s = mirror.rest.failed(trio.current_time())
            mirror.rests_until = mirror.rest.until
            level = "warning" if mirror.failures == TOLD_FAILURES else "debug"
            self._emit(Notice(level, f"the mirror {host} {error}: it is asked again in {rest_s:.0f} s"))
        else:
            mirror.failures = 0
            mirror.rest.reset()
            return True
        return False


def host_of(url: str) -> str:
    """Return a mirror's name for people."""
    return urlsplit(url).netloc


# ------------------------------------------------------------------------------------------------------------------------
# The client.


MAX_REDIRECTS = 3
MAX_URL_CHARS = 4000
"""Longest address of a file; Hugging Face redirects to addresses with signatures, of some 1500 characters."""
MAX_DIALLED = 4
"""Most addresses of one name that are tried."""
READ_BYTES = 64 << 10
MAX_FRAMING_BYTES = 128 << 10
"""Most bytes of an answer besides the range, and besides a sixteenth of the range for chunked encoding."""
CONNECT_S, ANSWER_S, PROGRESS_S = 10.0, 15.0, 10.0
"""Longest waits for name, connection and TLS, for the head of the answer, and between two arrivals of bytes."""
LEAST_BYTES_PER_S = 16 << 10
"""A range may take `PROGRESS_S` and the time that it takes at this rate."""
REDIRECTS = (301, 302, 303, 307, 308)
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")

AddressNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


class RangeFailed(Exception):
    """A range that could not be read; the text is a clause about the server.  It may be tried again later."""


class RangeAbsent(RangeFailed):
    """A file that a server does not have."""


class RangeForbidden(RangeFailed):
    """A server that breaks a rule, and is not worth asking again."""


class WebDialer:
    """The client's way to the network, which tests replace."""

    async def look_up(self, host: str, port: int) -> list[str]:
        """Return the IP addresses of a name.  Raises `OSError`."""
        found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
        return list(dict.fromkeys(str(end[0]) for *_, end in found))

    async def dial(self, ip: str, port: int) -> trio.abc.Stream:
        """Connect to an address.  Raises `OSError`."""
        return await trio.open_tcp_stream(ip, port)

    def tls(self, stream: trio.abc.Stream, host: str) -> trio.SSLStream:
        """Return the stream with TLS, which the server must prove to be `host`."""
        return trio.SSLStream(stream, self._context, server_hostname=host, https_compatible=True)

    @cached_property
    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context()


@dataclass(frozen=True)
class _Target:
    """The server and file of a URL.  authority: value of the header Host."""

    is_tls: bool
    host: str
    port: int
    authority: str
    path: str

    @classmethod
    def of(cls, url: str) -> _Target:
        """Parse a URL.  Raises `RangeForbidden`."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            url.encode("ascii")  # names in other alphabets have an ASCII form
        except ValueError as error:
            raise RangeForbidden("names a malformed address") from error
        is_right = parts.scheme in ("http", "https") and host and parts.username is None and len(url) <= MAX_URL_CHARS
        if not is_right or not url.isprintable() or " " in url:
            raise RangeForbidden("names an address that is not a plain http or https address")
        usual = 443 if parts.scheme == "https" else 80
        authority = f"[{host}]" if ":" in host else host
        if port not in (None, usual):
            authority += f":{port}"
        return cls(parts.scheme == "https", host, port or usual, authority, path)


class RangeClient:
    """Reader of ranges of files from any static web server.

    networks: addresses that may be dialled, besides public ones.  pay: waits until some received bytes fit the user's limit
    on traffic, such as `Network.receive_elsewhere`.
    """

    def __init__(
        self,
        networks: Sequence[AddressNetwork] = (),
        dialer: WebDialer | None = None,
        pay: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self._networks, self._dialer, self._pay = networks, dialer or WebDialer(), pay

    async def read(self, url: str, start: int, sizes: Sequence[int], receive: Receive) -> None:
        """Read consecutive pieces of a file, from byte `start` on.

        sizes: the sizes of the pieces.  receive: called with each piece once it is complete; an exception from it ends the
        reading.  Raises `RangeFailed`, after any number of pieces.
        """
        for _ in range(1 + MAX_REDIRECTS):
            target = _Target.of(url)
            stream = await self._connect(target)
            try:
                location = await _Answer(stream, self._pay).read(target, start, sizes, receive)
            except (h11.ProtocolError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise RangeFailed("breaks off, or does not speak HTTP") from error
            finally:
                await trio.aclose_forcefully(stream)
            if location is None:
                return
            try:
                url = urljoin(url, location)
            except ValueError as error:
                raise RangeForbidden("redirects to a malformed address") from error
            if target.is_tls and not _Target.of(url).is_tls:
                raise RangeForbidden("redirects from https to http")
        raise RangeForbidden(f"redirects more than {MAX_REDIRECTS} times")

    async def _connect(self, target: _Target) -> trio.abc.Stream:
        with trio.move_on_after(CONNECT_S):
            try:
                found = [address_of(text) for text in await self._dialer.look_up(target.host, target.port)]
            except (OSError, UnicodeError) as error:
                raise RangeFailed("has a name that is not found") from error
            if not found:
                raise RangeForbidden("has a name without an address")
            if not all(ip is not None and self._may_dial(ip) for ip in found):
                raise RangeForbidden("leads to an address that is not public")
            for ip in found[:MAX_DIALLED]:
                stream = await self._dial(target, str(ip))
                if stream is not None:
                    return stream
            raise RangeFailed("does not accept connections")
        raise RangeFailed("does not accept a connection in time")

    def _may_dial(self, ip: Address) -> bool:
        is_public = ip.is_global and reach_of(ip) is Reach.INTERNET
        return is_public or any(ip in network for network in self._networks)

    async def _dial(self, target: _Target, ip: str) -> trio.abc.Stream | None:
        try:
            stream = await self._dialer.dial(ip, target.port)
        except OSError:
            return None
        if not target.is_tls:
            return stream
        try:
            secured = self._dialer.tls(stream, target.host)
            await secured.do_handshake()
            return secured
        except (trio.BrokenResourceError, ssl.SSLError) as error:
            await trio.aclose_forcefully(stream)
            cause = error if isinstance(error, ssl.SSLError) else error.__cause__
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise RangeForbidden("does not prove its name with a valid certificate") from error
            return None
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise


class _Answer:
    """The answer to one request, as it comes from a stream."""

    def __init__(self, stream: trio.abc.Stream, pay: Callable[[int], Awaitable[None]] | None) -> None:
        self._stream, self._pay = stream, pay
        self._left_bytes, self._unpaid_bytes = MAX_FRAMING_BYTES, 0
        self._connection = h11.Connection(h11.CLIENT)

    async def read(self, target: _Target, start: int, sizes: Sequence[int], receive: Receive) -> str | None:
        """Ask for the range and read it; return the place to which the server redirects instead, if it does."""
        head = await self._head(target, start, sum(sizes))
        await self._settle()
        headers = {key: value.decode("latin-1") for key, value in reversed(head.headers)}
        if head.status_code in REDIRECTS:
            return headers.get(b"location", "")
        if headers.get(b"content-encoding", "identity") not in ("", "identity"):
            raise RangeForbidden("compresses what must not be compressed")
        if head.status_code == 200 and start:
            raise RangeForbidden("sends whole files instead of ranges")
        if head.status_code in (404, 410):
            raise RangeAbsent("does not have the file")
        if head.status_code == 206:
            match = _CONTENT_RANGE.fullmatch(headers.get(b"content-range", ""))
            if match is None or (int(match[1]), int(match[2])) != (start, start + sum(sizes) - 1):
                raise RangeFailed("sends another range than it was asked for")
        elif head.status_code != 200:  # a whole file begins with a range from 0 on
            raise RangeFailed(f"answers with status {head.status_code}")
        await self._body(sizes, receive)
        return None

    async def _head(self, target: _Target, start: int, size: int) -> h11.Response:
        """Send the request and return the head of the answer."""
        headers = [
            ("Host", target.authority),
            ("Range", f"bytes={start}-{start + size - 1}"),
            ("Accept-Encoding", "identity"),
            ("User-Agent", "manyhands"),
            ("Connection", "close"),
        ]
        request = h11.Request(method="GET", target=target.path, headers=headers)
        with trio.move_on_after(ANSWER_S):
            sent = (self._connection.send(request) or b"") + (self._connection.send(h11.EndOfMessage()) or b"")
            await self._stream.send_all(sent)
            while isinstance(event := await self._event(), h11.InformationalResponse):
                pass
            if isinstance(event, h11.Response):
                return event
            raise RangeFailed("closes the connection without an answer")
        raise RangeFailed("does not answer in time")

    async def _body(self, sizes: Sequence[int], receive: Receive) -> None:
        """Read the pieces."""
        piece, left, size = bytearray(), [*reversed(sizes)], sum(sizes)
        self._left_bytes += size + size // 16
        ends_at = trio.current_time() + PROGRESS_S + size / LEAST_BYTES_PER_S
        while left:
            data = b""
            with trio.move_on_at(min(ends_at, trio.current_time() + PROGRESS_S)):
                event = await self._event()
                if not isinstance(event, h11.Data):
                    raise RangeFailed("sends fewer bytes than it announced")
                data = bytes(event.data)
            if not data:
                raise RangeFailed("is too slow")
            await trio.lowlevel.checkpoint()  # thousands of tiny chunks may have come together
            before = trio.current_time()
            await self._settle()
            while data and left:
                room = left[-1] - len(piece)
                piece += data[:room]
                data = data[room:]
                if len(piece) == left[-1]:
                    left.pop()
                    complete, piece = bytes(piece), bytearray()
                    await receive(complete)
            ends_at += trio.current_time() - before  # the server is not to blame for our own limits

    async def _event(self) -> object:
        while (event := self._connection.next_event()) is h11.NEED_DATA:
            data = await self._stream.receive_some(READ_BYTES)
            self._unpaid_bytes += len(data)
            self._left_bytes -= len(data)
            if self._left_bytes < 0:
                raise RangeForbidden("sends far more than the range that it was asked for")
            self._connection.receive_data(data)
        return event

    async def _settle(self) -> None:
        """Wait until the bytes that came since the last call fit the user's limit."""
        size, self._unpaid_bytes = self._unpaid_bytes, 0
        if self._pay is not None and size:
            await self._pay(size)
