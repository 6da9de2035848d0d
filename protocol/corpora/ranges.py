"""HTTP(S) client for ranges of files, which trusts neither the server nor the names that lead to it.

`RangeClient.read` asks one server for one range, and gives the bytes piece by piece.  Its rules:

* A name is looked up, each of its addresses must be allowed (`AddressPolicy`), and exactly these addresses are dialled, so
  that a second look-up cannot lead elsewhere.  With TLS, the certificate must be for the name.
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
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urljoin, urlsplit

import h11
import trio

from protocol.transport.addresses import Address, Reach, address_of, reach_of

MAX_REDIRECTS = 3
MAX_URL_CHARS = 500
MAX_DIALLED = 4
"""Most addresses of one name that are tried."""
READ_BYTES = 64 << 10
MAX_FRAMING_BYTES = 128 << 10
"""Bytes of an answer beside the range, and beside a sixteenth of the range for chunks."""
REDIRECTS = (301, 302, 303, 307, 308)
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")

AddressNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


class RangeFailed(Exception):
    """A range that could not be read; the text is a clause about the server.  It may be tried again later."""


class RangeAbsent(RangeFailed):
    """A file that a server does not have."""


class RangeForbidden(RangeFailed):
    """A server that breaks a rule, and is not worth asking again."""


@dataclass(frozen=True)
class AddressPolicy:
    """Addresses that may be dialled: public ones, and those in networks that the user allows."""

    networks: Sequence[AddressNetwork] = ()

    def allows(self, ip: Address) -> bool:
        """Return True if this address may be dialled.  ip: not an IPv4-mapped address."""
        return (ip.is_global and reach_of(ip) is Reach.INTERNET) or any(ip in network for network in self.networks)


@dataclass(frozen=True)
class Deadlines:
    """Longest waits of a client, in seconds, and the least rate.

    connect: for name, connection and TLS.  first: from the request to the answer's head.  progress: between two arrivals of
    bytes.  The whole answer may take `progress_s` and the time that it takes at `least_bytes_per_s`.
    """

    connect_s: float = 10.0
    first_s: float = 15.0
    progress_s: float = 10.0
    least_bytes_per_s: float = 16 << 10


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
    """The server and file of a URL."""

    is_tls: bool
    host: str
    port: int
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
        return cls(parts.scheme == "https", host, port or (443 if parts.scheme == "https" else 80), path)

    @property
    def authority(self) -> str:
        """Value of the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"


def _joined(url: str, location: str) -> str:
    """Return the address to which a server redirects.  Raises `RangeForbidden`."""
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise RangeForbidden("redirects to a malformed address") from error


class RangeClient:
    """Reader of ranges of files from any static web server.

    pay: waits until some received bytes fit the user's limit on traffic, such as `Network.receive_elsewhere`.
    """

    def __init__(
        self,
        policy: AddressPolicy | None = None,
        deadlines: Deadlines | None = None,
        dialer: WebDialer | None = None,
        pay: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self._policy, self._deadlines = policy or AddressPolicy(), deadlines or Deadlines()
        self._dialer, self._pay = dialer or WebDialer(), pay

    async def read(self, url: str, start: int, sizes: Sequence[int], receive: Callable[[bytes], Awaitable[None]]) -> None:
        """Read consecutive pieces of a file, from byte `start` on.

        sizes: of the pieces.  receive: called with each piece once it is complete; an exception of it ends the reading.
        Raises `RangeFailed`, after any number of pieces.
        """
        wanted = _Wanted(start, sizes, receive)
        for _ in range(1 + MAX_REDIRECTS):
            target = _Target.of(url)
            stream = await self._connect(target)
            try:
                location = await self._ask(stream, target, wanted)
            finally:
                await trio.aclose_forcefully(stream)
            if location is None:
                return
            url = _joined(url, location)
            if target.is_tls and not _Target.of(url).is_tls:
                raise RangeForbidden("redirects from https to http")
        raise RangeForbidden(f"redirects more than {MAX_REDIRECTS} times")

    # -- connecting ---------------------------------------------------------------------------------------------------

    async def _connect(self, target: _Target) -> trio.abc.Stream:
        with trio.move_on_after(self._deadlines.connect_s):
            try:
                found = [address_of(text) for text in await self._dialer.look_up(target.host, target.port)]
            except (OSError, UnicodeError) as error:
                raise RangeFailed("has a name that is not found") from error
            if not found or not all(ip is not None and self._policy.allows(ip) for ip in found):
                raise RangeForbidden("leads to an address that is not public" if found else "has a name without an address")
            for ip in found[:MAX_DIALLED]:
                stream = await self._dial(target, str(ip))
                if stream is not None:
                    return stream
            raise RangeFailed("does not accept connections")
        raise RangeFailed("does not accept a connection in time")

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

    # -- asking -------------------------------------------------------------------------------------------------------

    async def _ask(self, stream: trio.abc.Stream, target: _Target, wanted: _Wanted) -> str | None:
        """Ask for the range and read it; return the place to which the server redirects instead, if it does."""
        answer = _Answer(stream, self._deadlines, self._pay)
        try:
            head = await answer.head(target, wanted)
            await answer.pay()
            if head.status_code in REDIRECTS:
                return _header(head, b"location")
            _check_head(head, wanted)
            await answer.body(wanted)
        except (h11.ProtocolError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise RangeFailed("breaks off, or does not speak HTTP") from error
        return None


@dataclass(frozen=True)
class _Wanted:
    """Pieces of a file, and the receiver of each one."""

    start: int
    sizes: Sequence[int]
    receive: Callable[[bytes], Awaitable[None]]

    @property
    def size(self) -> int:
        """Bytes of all pieces."""
        return sum(self.sizes)


class _Answer:
    """The answer to one request, as it comes from a stream."""

    def __init__(self, stream: trio.abc.Stream, deadlines: Deadlines, pay: Callable[[int], Awaitable[None]] | None) -> None:
        self._stream, self._deadlines, self._pay = stream, deadlines, pay
        self._left_bytes, self._unpaid_bytes = MAX_FRAMING_BYTES, 0
        self._connection = h11.Connection(h11.CLIENT)

    async def head(self, target: _Target, wanted: _Wanted) -> h11.Response:
        """Send the request and return the head of the answer."""
        headers = [
            ("Host", target.authority),
            ("Range", f"bytes={wanted.start}-{wanted.start + wanted.size - 1}"),
            ("Accept-Encoding", "identity"),
            ("User-Agent", "manyhands"),
            ("Connection", "close"),
        ]
        request = h11.Request(method="GET", target=target.path, headers=headers)
        with trio.move_on_after(self._deadlines.first_s):
            sent = (self._connection.send(request) or b"") + (self._connection.send(h11.EndOfMessage()) or b"")
            await self._stream.send_all(sent)
            while True:
                event = await self._event()
                if isinstance(event, h11.Response):
                    return event
                if not isinstance(event, h11.InformationalResponse):
                    raise RangeFailed("closes the connection without an answer")
        raise RangeFailed("does not answer in time")

    async def body(self, wanted: _Wanted) -> None:
        """Read the pieces."""
        piece, sizes = bytearray(), [*reversed(wanted.sizes)]
        self._left_bytes += wanted.size + wanted.size // 16
        ends_at = trio.current_time() + self._deadlines.progress_s + wanted.size / self._deadlines.least_bytes_per_s
        while sizes:
            data = b""
            with trio.move_on_at(min(ends_at, trio.current_time() + self._deadlines.progress_s)):
                event = await self._event()
                if not isinstance(event, h11.Data):
                    raise RangeFailed("sends fewer bytes than it announced")
                data = bytes(event.data)
            if not data:
                raise RangeFailed("is too slow")
            await trio.lowlevel.checkpoint()  # thousands of tiny chunks may have come together
            before = trio.current_time()
            await self.pay()
            while data and sizes:
                room = sizes[-1] - len(piece)
                piece += data[:room]
                data = data[room:]
                if len(piece) == sizes[-1]:
                    sizes.pop()
                    complete, piece = bytes(piece), bytearray()
                    await wanted.receive(complete)
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

    async def pay(self) -> None:
        """Wait until the bytes that came since the last call fit the user's limit."""
        size, self._unpaid_bytes = self._unpaid_bytes, 0
        if self._pay is not None and size:
            await self._pay(size)


def _header(head: h11.Response, name: bytes) -> str:
    """Return the value of a header; "" if there is none."""
    return next((value.decode("latin-1") for key, value in head.headers if key == name), "")


def _check_head(head: h11.Response, wanted: _Wanted) -> None:
    """Raise `RangeFailed` unless the body is the range, or a whole file that begins with it."""
    if _header(head, b"content-encoding") not in ("", "identity"):
        raise RangeForbidden("compresses what must not be compressed")
    if head.status_code == 200 and wanted.start == 0:
        return
    if head.status_code == 200:
        raise RangeForbidden("sends whole files instead of ranges")
    if head.status_code in (404, 410):
        raise RangeAbsent("does not have the file")
    if head.status_code != 206:
        raise RangeFailed(f"answers with status {head.status_code}")
    match = _CONTENT_RANGE.fullmatch(_header(head, b"content-range"))
    if match is None or (int(match[1]), int(match[2])) != (wanted.start, wanted.start + wanted.size - 1):
        raise RangeFailed("sends another range than it was asked for")
