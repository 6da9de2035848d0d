"""One bulk socket after its handshake: encrypted frames, data in blocking calls made by worker threads.

A frame is a 13-byte head (length of the ciphertext, kind, value) and AES-256-GCM ciphertext, with the head as
associated data and the frame's number as nonce.  Each direction has its own key, replaced by a derived one every
`rekey_frames` frames.  Anything wrong on a link ends it: `LinkBroken`.

A frame of data is small enough to stay in the processor's cache between the cipher and the socket, and each direction
has one buffer for as long as the link lives: fresh memory would cost more than the cipher.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

import trio
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from protocol.hashes import Hash
from protocol.identity import PeerId
from protocol.network import MAX_PUSH_HEADER_BYTES

FRAME_BYTES = 1 << 18
SMALL_BYTES = 8 + MAX_PUSH_HEADER_BYTES
"""Plaintext of a frame that is not data."""
REKEY_FRAMES = 1 << 16
TAG_BYTES = 16
STALL_S = 60
"""A socket that moves nothing for so long in the middle of a push is broken.  Longer than a receiver may look for room."""
LOWER_EFFORT = 0x04
"""The traffic class of RFC 8622: routers that know it let everything else go first."""
BULK_PRIORITY = 2
"""Linux's TC_PRIO_BULK: this computer's own queue lets everything else go first."""
NONCE_BYTES = 32
TOKEN_BYTES = 16
MAC_BYTES = 32
HEAD = struct.Struct(">IBQ")


class LinkBroken(Exception):
    """The link is no more; the text says why."""


class FrameKind(IntEnum):
    OPEN = 1
    """A push begins; value: its number; plaintext: size of the data (8 bytes), then the header."""
    DATA = 2
    """value: offset in the data."""
    ABANDON = 3
    """The sender read a refusal and sends no more data of push `value`."""
    ANSWER = 4
    """From the receiver, about push `value`; plaintext: 1 accepted and complete, or 0 and the reason."""


@dataclass(frozen=True)
class Keys:
    """What both ends derive from the handshake; the two nonces travelled inside an authenticated libp2p stream."""

    secret: bytes
    context: bytes

    @classmethod
    def agree(cls, run: Hash, dialer: PeerId, listener: PeerId, token: bytes, nonces: bytes) -> Keys:
        context = b"|".join((dialer.encode(), listener.encode(), bytes(run), token))
        secret = HKDF(hashes.SHA256(), 32, salt=b"manyhands bulk 1", info=context).derive(nonces)
        return cls(secret, context)

    def key(self, purpose: bytes) -> bytes:
        return HKDFExpand(hashes.SHA256(), 32, purpose + b"|" + self.context).derive(self.secret)

    def proof(self, purpose: bytes) -> bytes:
        """What one end shows on the fresh socket: that it took part in the handshake."""
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
    """The methods that block are for worker threads, through `in_worker`.  One sender and one receiver at a time."""

    def __init__(self, sock: socket.socket, keys: Keys, *, dialled: bool, rekey_frames: int = REKEY_FRAMES) -> None:
        sock.setblocking(True)
        _tune(sock)
        self._sock = sock
        there, back = keys.key(b"dialer to listener"), keys.key(b"listener to dialer")
        self._out = _Direction(there if dialled else back, rekey_frames)
        self._in = _Direction(back if dialled else there, rekey_frames)
        self._out_buffer = memoryview(bytearray(2 * (HEAD.size + TAG_BYTES) + SMALL_BYTES + FRAME_BYTES))
        self._out_size = 0
        self._in_buffer = memoryview(bytearray(HEAD.size + FRAME_BYTES + TAG_BYTES))
        self._broken = False
        self.why = ""

    @property
    def broken(self) -> bool:
        return self._broken

    @property
    def rekeyed(self) -> tuple[int, int]:
        """How often the key was replaced, out and in."""
        return self._out.rekeyed, self._in.rekeyed

    @property
    def state(self) -> SocketState | None:
        return socket_state(self._sock) if not self._broken else None

    def abort(self, why: str) -> None:
        """Release whoever is blocked on the socket.  The descriptor stays until `close`, so it cannot be reused."""
        if not self._broken:
            self._broken = True
            self.why = why
            try:
                self._sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # the other end was faster

    def close(self) -> None:
        """Only when no worker and no waiter is on the socket."""
        self.abort("closed")
        self._sock.close()

    def put(self, kind: FrameKind, value: int, data: memoryview | bytes) -> None:
        """Encrypt a frame for the next `flush`.  There is room for a small one and one of data."""
        self._out_size += self._seal(kind, value, data, self._out_buffer[self._out_size :])

    def flush(self) -> None:
        """Send what was put.  Blocks."""
        size, self._out_size = self._out_size, 0
        if size:
            self._guard(lambda: self._sock.sendall(self._out_buffer[:size]))

    def send_small(self, kind: FrameKind, value: int, data: bytes) -> None:
        """Never blocks: a peer that does not read a few bytes of answers is cut off."""
        frame = memoryview(bytearray(HEAD.size + len(data) + TAG_BYTES))
        self._seal(kind, value, data, frame)
        if self._guard(lambda: self._sock.send(frame, socket.MSG_DONTWAIT)) != len(frame):
            raise self._break("the peer does not read our answers")

    async def receive_small(self) -> tuple[FrameKind, int, bytes]:
        """Kind, value and plaintext of the next frame, which must not be data: no thread is needed for it."""
        await self._fill_as_it_comes(0, HEAD.size)
        kind, value, size = self._read_head()
        if kind is FrameKind.DATA or size > SMALL_BYTES:
            raise self._break("data where there should be none")
        await self._fill_as_it_comes(HEAD.size, size + TAG_BYTES)
        plain = bytearray(size)
        self._open(memoryview(plain))
        return kind, value, bytes(plain)

    def receive_head(self) -> tuple[FrameKind, int, int]:
        """Kind, value and plaintext size of the next frame.  Blocks."""
        self._fill(self._in_buffer[: HEAD.size])
        return self._read_head()

    def receive_body(self, dest: memoryview) -> None:
        """Decrypt the frame's plaintext into `dest`, which has exactly its size.  Blocks."""
        self._fill(self._in_buffer[HEAD.size : HEAD.size + len(dest) + TAG_BYTES])
        self._open(dest)

    def skip_body(self, size: int) -> None:
        """Read past a frame that nobody wants.  Blocks."""
        self._fill(self._in_buffer[HEAD.size : HEAD.size + size + TAG_BYTES])
        self._in.next_nonce()

    # -- the inside ---------------------------------------------------------------------------------------------------

    def _seal(self, kind: FrameKind, value: int, data: memoryview | bytes, into: memoryview) -> int:
        size = HEAD.size + len(data) + TAG_BYTES
        HEAD.pack_into(into, 0, len(data) + TAG_BYTES, kind, value)
        nonce = self._out.next_nonce()
        self._out.cipher.encrypt_into(nonce, data, bytes(into[: HEAD.size]), into[HEAD.size : size])
        return size

    def _read_head(self) -> tuple[FrameKind, int, int]:
        length, kind, value = HEAD.unpack_from(self._in_buffer)
        if not TAG_BYTES <= length <= FRAME_BYTES + TAG_BYTES or kind not in _KINDS:
            raise self._break("a frame that is none")
        return _KINDS[kind], value, length - TAG_BYTES

    def _open(self, dest: memoryview) -> None:
        sealed = self._in_buffer[HEAD.size : HEAD.size + len(dest) + TAG_BYTES]
        nonce = self._in.next_nonce()
        try:
            self._in.cipher.decrypt_into(nonce, sealed, bytes(self._in_buffer[: HEAD.size]), dest)
        except InvalidTag as error:
            raise self._break("a frame was altered on the way") from error

    async def _fill_as_it_comes(self, start: int, size: int) -> None:
        view = self._in_buffer[start : start + size]
        while len(view):
            if self._broken:
                raise LinkBroken(self.why)
            try:
                got = self._sock.recv_into(view, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._sock.fileno())
                continue
            except OSError as error:
                raise self._break(self.why or str(error.strerror or error)) from error
            view = self._after(view, got)

    def _fill(self, view: memoryview) -> None:
        while len(view):
            view = self._after(view, self._guard(partial(self._sock.recv_into, view, 0, socket.MSG_WAITALL)))

    def _after(self, view: memoryview, got: int) -> memoryview:
        if got == 0:
            raise self._break("the peer closed the connection")
        return view[got:]

    def _guard(self, call: Callable[[], int | None]) -> int:
        try:
            return call() or 0
        except BlockingIOError as error:
            raise self._break(f"nothing moved for {STALL_S} s") from error
        except OSError as error:
            raise self._break(self.why or str(error.strerror or error)) from error

    def _break(self, why: str) -> LinkBroken:
        self.abort(why)
        return LinkBroken(self.why)


_KINDS = {int(kind): kind for kind in FrameKind}


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stall = struct.pack("ll", STALL_S, 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, stall)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, stall)
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, LOWER_EFFORT)
    if hasattr(socket, "SO_PRIORITY"):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, BULK_PRIORITY)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALL_S * 1000)


@dataclass(frozen=True)
class SocketState:
    """What the kernel knows of a connection."""

    rtt_s: float
    acked_bytes: int
    received_bytes: int


_TCP_INFO = struct.Struct("=68xI48xQQ")
"""Round-trip time in microseconds; bytes acknowledged by the other end; bytes received (Linux's struct tcp_info)."""


def socket_state(sock: socket.socket) -> SocketState | None:
    """None where the kernel does not tell."""
    if not hasattr(socket, "TCP_INFO"):
        return None
    try:
        raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except OSError:
        return None
    if len(raw) < _TCP_INFO.size:
        return None
    rtt_us, acked, received = _TCP_INFO.unpack(raw)
    return SocketState(rtt_us / 1e6, acked, received)


async def in_worker(link: Link, limiter: trio.CapacityLimiter, work: Callable[[], None]) -> None:
    """Run blocking `work` on the link in a thread; cancelling this breaks the link, which releases the thread."""
    turn, ended = threading.Lock(), threading.Event()

    def in_turn() -> None:
        if turn.acquire(blocking=False):
            try:
                work()
            finally:
                ended.set()

    try:
        await trio.to_thread.run_sync(in_turn, abandon_on_cancel=True, limiter=limiter)  # type: ignore[call-arg]  # stale stubs
    except trio.Cancelled:
        link.abort("cancelled")
        if not turn.acquire(blocking=False):  # it runs: wait until it no longer uses anything of ours
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(ended.wait)
        raise
