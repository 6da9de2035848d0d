"""One bulk socket after its handshake: encrypted frames in blocking calls, made by worker threads.

A frame is a 13-byte head (length of the ciphertext, kind, value) and AES-256-GCM ciphertext, with the head as
associated data and the frame's number as nonce.  Each direction has its own key, replaced by a derived one every
`REKEY_FRAMES` frames.  Anything wrong on a link ends it: `LinkBroken`.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

import trio
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from protocol.hashes import Hash
from protocol.identity import PeerId

FRAME_BYTES = 1 << 20
REKEY_FRAMES = 1 << 16
TAG_BYTES = 16
STALL_S = 20
"""A socket that moves nothing for so long in the middle of a frame is broken."""
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
    def __init__(self, key: bytes) -> None:
        self._key = key
        self._frames = 0
        self.cipher = AESGCM(key)

    def next_nonce(self) -> bytes:
        if self._frames and self._frames % REKEY_FRAMES == 0:
            self._key = HKDFExpand(hashes.SHA256(), 32, b"manyhands bulk rekey").derive(self._key)
            self.cipher = AESGCM(self._key)
        nonce = self._frames.to_bytes(12, "big")
        self._frames += 1
        return nonce


class Link:
    """The methods that block are for worker threads, through `in_worker`.  One sender and one receiver at a time."""

    def __init__(self, sock: socket.socket, keys: Keys, *, dialled: bool) -> None:
        sock.setblocking(True)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stall = struct.pack("ll", STALL_S, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, stall)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, stall)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALL_S * 1000)
        self._sock = sock
        there, back = keys.key(b"dialer to listener"), keys.key(b"listener to dialer")
        self._out = _Direction(there if dialled else back)
        self._in = _Direction(back if dialled else there)
        self._broken = False
        self.why = ""

    @property
    def broken(self) -> bool:
        return self._broken

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

    async def readable(self) -> None:
        """Wait, without a thread, until the next frame begins or the link ends."""
        if self._broken:
            raise LinkBroken(self.why)
        await trio.lowlevel.wait_readable(self._sock.fileno())

    def send(self, kind: FrameKind, value: int, data: memoryview | bytes, scratch: bytearray) -> None:
        """Blocks.  `scratch` must have room for the frame."""
        size = HEAD.size + len(data) + TAG_BYTES
        view = memoryview(scratch)[:size]
        HEAD.pack_into(view, 0, len(data) + TAG_BYTES, kind, value)
        nonce = self._out.next_nonce()
        self._out.cipher.encrypt_into(nonce, data, bytes(view[: HEAD.size]), view[HEAD.size :])
        self._guard(lambda: self._sock.sendall(view))

    def send_small(self, kind: FrameKind, value: int, data: bytes) -> None:
        """Never blocks: a peer that does not read a few bytes of answers is cut off."""
        scratch = bytearray(HEAD.size + len(data) + TAG_BYTES)
        HEAD.pack_into(scratch, 0, len(data) + TAG_BYTES, kind, value)
        nonce = self._out.next_nonce()
        head = bytes(scratch[: HEAD.size])
        self._out.cipher.encrypt_into(nonce, data, head, memoryview(scratch)[HEAD.size :])
        if self._guard(lambda: self._sock.send(scratch, socket.MSG_DONTWAIT)) != len(scratch):
            self.abort("the peer does not read our answers")
            raise LinkBroken(self.why)

    def receive_head(self) -> tuple[FrameKind, int, int, bytes]:
        """Kind, value, plaintext size, and the head's own bytes.  Blocks."""
        head = bytearray(HEAD.size)
        self._fill(memoryview(head))
        length, kind, value = HEAD.unpack(head)
        if not TAG_BYTES <= length <= FRAME_BYTES + TAG_BYTES or kind not in list(FrameKind):
            self.abort("a frame that is none")
            raise LinkBroken(self.why)
        return FrameKind(kind), value, length - TAG_BYTES, bytes(head)

    def receive_body(self, head: bytes, dest: memoryview, scratch: bytearray) -> None:
        """Decrypt the frame's plaintext into `dest`, which has exactly its size.  Blocks."""
        view = memoryview(scratch)[: len(dest) + TAG_BYTES]
        self._fill(view)
        nonce = self._in.next_nonce()
        try:
            self._in.cipher.decrypt_into(nonce, view, head, dest)
        except InvalidTag as error:
            self.abort("a frame was altered on the way")
            raise LinkBroken(self.why) from error

    def _fill(self, view: memoryview) -> None:
        got = 0
        while got < len(view):
            size = self._guard(partial(self._sock.recv_into, view[got:]))
            if size == 0:
                self.abort("the peer closed the connection")
                raise LinkBroken(self.why)
            got += size

    def _guard(self, call: Callable[[], int | None]) -> int:
        try:
            return call() or 0
        except BlockingIOError as error:
            self.abort(f"nothing moved for {STALL_S} s")
            raise LinkBroken(self.why) from error
        except OSError as error:
            self.abort(self.why or str(error.strerror or error))
            raise LinkBroken(self.why) from error


async def in_worker(link: Link, limiter: trio.CapacityLimiter, work: Callable[[], None]) -> None:
    """Run blocking `work` on the link in a thread; cancelling this breaks the link, which releases the thread."""
    problem: LinkBroken | None = None
    finished = False

    async def watch(task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            if not finished:
                link.abort("cancelled")

    async with trio.open_nursery() as nursery:
        await nursery.start(watch)
        try:
            await trio.to_thread.run_sync(work, limiter=limiter)
        except LinkBroken as error:
            problem = error
        finished = True
        nursery.cancel_scope.cancel()
    if problem is not None:
        raise problem

