"""One bulk socket after its handshake: encrypted frames, without blocking and without threads.

A frame is a 13-byte head (length of the ciphertext, kind, value) and AES-256-GCM ciphertext, with the head as
associated data and the frame's number as nonce.  Each direction has its own key, replaced by a derived one every
`rekey_frames` frames.  Any error on a link ends it with `LinkBroken`; so does cancelling in the middle of a frame.

Encrypting a frame takes a tenth of the time of handing it to a thread and back, so we encrypt in the event loop, and block
it for less than a tenth of a millisecond at a time.  A frame of data is small enough to stay in the processor's cache
between the cipher and the socket.  Each direction keeps one buffer for the life of the link, because fresh memory would cost
more than the cipher.  Only the used part of a buffer takes up memory, so an unused link takes none.
"""

from __future__ import annotations

import hashlib
import hmac
import mmap
import socket
import struct
import sys
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from math import inf

import trio
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from protocol.transport.interface import MAX_PUSH_HEADER_BYTES
from protocol.transport.sockets import Socket
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

FRAME_BYTES = 1 << 18
SMALL_BYTES = 8 + MAX_PUSH_HEADER_BYTES
"""Largest plaintext of a frame that is not data."""
READ_BYTES = FRAME_BYTES + (32 << 10)
"""Bytes read at once: a frame, and the beginning of the next."""
LOW_WATER_BYTES = 1 << 17
REKEY_FRAMES = 1 << 16
TAG_BYTES = 16
STALL_S = 60
"""Seconds after which the kernel ends a socket if the other end acknowledges or accepts no data."""
LOWER_EFFORT = 0x04
"""Traffic class of RFC 8622: routers that support it send all other traffic first."""
BULK_PRIORITY = 2
"""Linux's TC_PRIO_BULK: the queue of this computer sends all other traffic first."""
SO_MAX_PACING_RATE = 47
"""Linux's number of this socket option; Python has no name for it."""
UNPACED = (1 << 32) - 1
LONG_WAY_S = 0.010
"""Round-trip time from which one socket may not fill the line, because it waits for its window and retransmissions."""
QUEUE_S, QUEUE_SHARE = 0.010, 0.25
"""Increase over the shortest round trip that shows a queue: more than these seconds and this part of the shortest one."""
NONCE_BYTES = 32
TOKEN_BYTES = 16
MAC_BYTES = 32
HEAD = struct.Struct(">IBQ")
FRAME_OVERHEAD_BYTES = HEAD.size + TAG_BYTES


class LinkBroken(Exception):
    """The end of a link; the text gives the reason."""


class FrameKind(IntEnum):
    """The content of a frame, which also determines the meaning of the frame's value."""

    OPEN = 1
    """A push begins; value: its number; plaintext: size of the data (8 bytes), then the header."""
    DATA = 2
    """A piece of a push's data; value: its offset."""
    ABANDON = 3
    """The sender has read a refusal and sends no more data of push `value`."""
    ANSWER = 4
    """The receiver's answer to push `value`; plaintext: 1 if accepted and complete, or 0 and the reason."""


@dataclass(frozen=True)
class Keys:
    """The secrets that both ends derive from a handshake, whose nonces are exchanged in an authenticated libp2p stream."""

    secret: bytes
    context: bytes

    @classmethod
    def agree(cls, run: Hash, dialer: PeerId, listener: PeerId, token: bytes, nonces: bytes) -> Keys:
        """Return the keys of one bulk socket.  nonces: the dialler's nonce, then the listener's."""
        context = b"|".join((dialer.encode(), listener.encode(), bytes(run), token))
        secret = HKDF(hashes.SHA256(), 32, salt=b"manyhands bulk 1", info=context).derive(nonces)
        return cls(secret, context)

    def key(self, purpose: bytes) -> bytes:
        """Return a key of 32 bytes for one purpose."""
        return HKDFExpand(hashes.SHA256(), 32, purpose + b"|" + self.context).derive(self.secret)

    def proof(self, purpose: bytes) -> bytes:
        """Return the proof (32 bytes) by which one end of a new socket shows that it took part in the handshake."""
        return hmac.new(self.key(purpose), self.context, hashlib.sha256).digest()


class _Direction:
    def __init__(self, key: bytes, rekey_frames: int) -> None:
        self._key = key
        self._rekey_frames = rekey_frames
        self._frames = 0
        self.rekeyed = 0
        self.cipher = AESGCM(key)

    def next_nonce(self) -> bytes:
        if self._frames and self._frames % self._rekey_frames == 0:
            self._key = HKDFExpand(hashes.SHA256(), 32, b"manyhands bulk rekey").derive(self._key)
            self.cipher = AESGCM(self._key)
            self.rekeyed += 1
        nonce = self._frames.to_bytes(12, "big")
        self._frames += 1
        return nonce


class Link:
    """One end of a bulk socket.  At most one task sends and one task receives at a time.

    why: the reason for the link's end.  way_s: the shortest round trip (s) of the libp2p connection to the same peer;
    infinite if unknown.
    """

    def __init__(self, sock: socket.socket, keys: Keys, *, dialled: bool, rekey_frames: int = REKEY_FRAMES) -> None:
        _tune(sock)
        self._sock = sock
        there, back = keys.key(b"dialer to listener"), keys.key(b"listener to dialer")
        self._out = _Direction(there if dialled else back, rekey_frames)
        self._in = _Direction(back if dialled else there, rekey_frames)
        self._out_buffer = _buffer(2 * (HEAD.size + TAG_BYTES) + SMALL_BYTES + FRAME_BYTES)
        self._out_size = 0
        self._in_buffer = _buffer(READ_BYTES)
        self._in_start = self._in_end = 0
        self._low_water = 1
        self._reads_ahead = True
        self._pace = UNPACED
        self._broken = False
        self.way_s = inf
        self.why = ""

    @property
    def broken(self) -> bool:
        """True once the link has ended."""
        return self._broken

    @property
    def between_frames(self) -> bool:
        """True if no part of another frame has been read."""
        return self._in_start == self._in_end

    @property
    def rekeyed(self) -> tuple[int, int]:
        """The number of key replacements, out and in."""
        return self._out.rekeyed, self._in.rekeyed

    @property
    def state(self) -> SocketState | None:
        """The kernel's measurements of the socket; None if the kernel has none, and after the link's end.

        The least round trip is `way_s` at most, because a socket opened on a full line has never seen an empty queue.
        """
        state = socket_state(self._sock) if not self._broken else None
        return replace(state, least_rtt_s=min(state.least_rtt_s, self.way_s)) if state is not None else None

    def pace(self, bytes_per_s: float) -> None:
        """Limit the rate of sending, if the kernel can."""
        pace = max(1, int(min(bytes_per_s, UNPACED)))  # 0 would mean no limit
        if pace != self._pace and not self._broken and sys.platform == "linux":
            self._sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=I", pace))
            self._pace = pace

    def hold_back(self, buffer_bytes: int) -> None:
        """Let the socket hold at most `buffer_bytes` of unread data, and read nothing ahead."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self._reads_ahead = False

    def abort(self, why: str) -> None:
        """End the link: tasks that wait on the socket raise `LinkBroken`.  The descriptor stays open until `close`."""
        if not self._broken:
            self._broken = True
            self.why = why
            try:
                self._sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # the other end has already closed the connection

    def close(self) -> None:
        """End the link and close the socket; no task may be waiting on it."""
        self.abort("closed")
        self._sock.close()

    # -- sending ------------------------------------------------------------------------------------------------------

    def put(self, kind: FrameKind, value: int, data: memoryview | bytes) -> None:
        """Encrypt a frame for the next `flush`.  The buffer has room for one small frame and one of data."""
        self._out_size += self._seal(kind, value, data, self._out_buffer[self._out_size :])

    async def flush(self) -> None:
        """Send the frames added by `put`.  Raises `LinkBroken`."""
        view, self._out_size = self._out_buffer[: self._out_size], 0
        while len(view):
            try:
                view = view[self._guard(partial(self._sock.send, view)) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._sock.fileno())
        await trio.lowlevel.checkpoint()  # give other flows a turn

    def send_small(self, kind: FrameKind, value: int, data: bytes) -> None:
        """Send a small frame without waiting.  Raises `LinkBroken` if the peer has not read the earlier ones."""
        frame = memoryview(bytearray(HEAD.size + len(data) + TAG_BYTES))
        self._seal(kind, value, data, frame)
        try:
            sent = self._guard(lambda: self._sock.send(frame))
        except BlockingIOError:
            sent = 0
        if sent != len(frame):
            raise self._break("the peer does not read our answers")

    def _seal(self, kind: FrameKind, value: int, data: memoryview | bytes, into: memoryview) -> int:
        size = HEAD.size + len(data) + TAG_BYTES
        HEAD.pack_into(into, 0, len(data) + TAG_BYTES, kind, value)
        nonce = self._out.next_nonce()
        self._out.cipher.encrypt_into(nonce, data, bytes(into[: HEAD.size]), into[HEAD.size : size])
        return size

    # -- receiving ----------------------------------------------------------------------------------------------------

    async def receive_small(self) -> tuple[FrameKind, int, bytes]:
        """Return kind, value and plaintext of the next frame, which must not be data."""
        kind, value, size = await self.receive_head()
        if kind is FrameKind.DATA or size > SMALL_BYTES:
            raise self._break("an unexpected frame of data")
        plain = bytearray(size)
        await self.receive_body(memoryview(plain))
        return kind, value, bytes(plain)

    async def receive_head(self) -> tuple[FrameKind, int, int]:
        """Return kind, value and plaintext size of the next frame.  The caller must receive or skip its body next."""
        await self._have(HEAD.size)
        length, kind, value = HEAD.unpack_from(self._in_buffer, self._in_start)
        if not TAG_BYTES <= length <= FRAME_BYTES + TAG_BYTES or kind not in _KINDS:
            raise self._break("a malformed frame")
        return _KINDS[kind], value, length - TAG_BYTES

    async def has_come(self, size: int) -> None:
        """Wait until `size` bytes of the frame's body have arrived.  The frame's head must have been received."""
        await self._have(HEAD.size + size)

    async def receive_body(self, dest: memoryview) -> None:
        """Decrypt the frame's plaintext into `dest`, which must have exactly the size of the plaintext."""
        size = HEAD.size + len(dest) + TAG_BYTES
        await self._have(size)
        frame = self._in_buffer[self._in_start : self._in_start + size]
        self._in_start += size
        nonce = self._in.next_nonce()
        try:
            self._in.cipher.decrypt_into(nonce, frame[HEAD.size :], bytes(frame[: HEAD.size]), dest)
        except InvalidTag as error:
            raise self._break("a frame was altered on the way") from error

    async def skip_body(self, size: int) -> None:
        """Read past the body of a frame."""
        await self._have(HEAD.size + size + TAG_BYTES)
        self._in_start += HEAD.size + size + TAG_BYTES
        self._in.next_nonce()

    async def _have(self, size: int) -> None:
        """Wait until `size` bytes are in the buffer."""
        if self._in_start == self._in_end:
            self._in_start = self._in_end = 0
        elif self._in_start + size > len(self._in_buffer):
            rest = self._in_end - self._in_start
            self._in_buffer[:rest] = self._in_buffer[self._in_start : self._in_end]
            self._in_start, self._in_end = 0, rest
        while (missing := size - (self._in_end - self._in_start)) > 0:
            end = len(self._in_buffer) if self._reads_ahead else self._in_end + missing
            try:
                got = self._guard(partial(self._sock.recv_into, self._in_buffer[self._in_end : end]))
            except BlockingIOError:
                self._wake_at(min(missing, LOW_WATER_BYTES))
                await trio.lowlevel.wait_readable(self._sock.fileno())
                continue
            if got == 0:
                raise self._break("the peer closed the connection")
            self._in_end += got

    def _wake_at(self, size: int) -> None:
        """Wake this process only for at least `size` bytes, or for the end of the connection."""
        if size != self._low_water:
            self._low_water = size
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def _guard(self, call: Callable[[], int]) -> int:
        if self._broken:
            raise LinkBroken(self.why)
        try:
            return call()
        except BlockingIOError:
            raise
        except OSError as error:
            raise self._break(str(error.strerror or error)) from error

    def _break(self, why: str) -> LinkBroken:
        self.abort(why)
        return LinkBroken(self.why)


def states_of(links: Iterable[Link]) -> dict[Hashable, SocketState]:
    """Return the kernel's measurements of these links; leave out links without measurements."""
    return {link: state for link in links if (state := link.state) is not None}


_KINDS = {int(kind): kind for kind in FrameKind}


def _buffer(size: int) -> memoryview:
    """Return a buffer of zeros whose pages take no memory until they are written."""
    return memoryview(mmap.mmap(-1, size))


def _tune(sock: socket.socket) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, LOWER_EFFORT)
    if hasattr(socket, "SO_PRIORITY"):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, BULK_PRIORITY)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALL_S * 1000)


@dataclass(frozen=True)
class SocketState:
    """The kernel's measurements of a connection."""

    rtt_s: float
    acked_bytes: int
    received_bytes: int
    unacked: int = 0
    """Segments that were sent and not acknowledged."""
    least_rtt_s: float = 0.0
    """The shortest recent round trip, an estimate of the time without queues."""
    busy_s: float = 0.0
    """Time during which data waited to be sent or to be acknowledged."""
    held_back_s: float = 0.0
    """The part of `busy_s` during which the other end's window was full."""

    @property
    def queued(self) -> bool:
        """True if packets wait in a queue on the path, as on a full line."""
        waited = self.rtt_s - self.least_rtt_s
        return waited > QUEUE_S and waited > QUEUE_SHARE * self.least_rtt_s

    @property
    def is_far(self) -> bool:
        """True if a round trip takes so long that a socket needs seconds to reach the rate of the line."""
        return self.least_rtt_s >= LONG_WAY_S


_TCP_INFO = struct.Struct("=24xI40xI48xQQ12xI16xQQ")
"""Segments not acknowledged; round-trip time; bytes acknowledged by the other end; bytes received; the least round-trip
time; time with data to send; time during which the other end's window was full (Linux's struct tcp_info, microseconds)."""


def socket_state(sock: Socket) -> SocketState | None:
    """Return the kernel's measurements of a socket; None if it has none."""
    if not hasattr(socket, "TCP_INFO"):
        return None
    try:
        raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except OSError:
        return None
    if len(raw) < _TCP_INFO.size:
        return None
    unacked, rtt_us, acked, received, least_rtt_us, busy_us, held_back_us = _TCP_INFO.unpack(raw)
    return SocketState(rtt_us / 1e6, acked, received, unacked, least_rtt_us / 1e6, busy_us / 1e6, held_back_us / 1e6)
