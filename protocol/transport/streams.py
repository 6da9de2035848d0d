"""Streams of libp2p for our protocols, and frames on them: four bytes of length, then that many bytes.

The end that opens a stream names the protocol and sends its question before the other end has agreed; the library would
first wait for two round trips.  Requests and the bulk handshake share this module.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Awaitable, Callable

import trio

from protocol.short_id import short_id
from protocol.transport.interface import NetworkError, Unreachable
from protocol.transport.library import Host, HostConnections, MuxedConnection, Stream, library_id, peer_id_of
from protocol.transport.rate_limit import RateLimit
from protocol.wire.identity import PeerId

MULTISTREAM, NOT_AVAILABLE = "/multistream/1.0.0", b"\x03na\n"
"""Messages of multistream-select, with which the two ends of a stream agree on the stream's protocol."""
LARGE_BYTES = 64 << 10
"""Largest frame that never waits.  Larger frames are rate-limited."""
log = logging.getLogger(__name__)

_NO_LIMIT = RateLimit()
_LENGTH = struct.Struct(">I")


class NotSpoken(Unreachable):
    """The error for a protocol that the other end does not know."""


class EndedEarly(Unreachable):
    """The error for a stream that the other end closed before it had sent all data."""


class BadFrame(NetworkError):
    """The error for data that is not a frame, or a frame with unexpected content."""


def guard_streams(swarm: HostConnections) -> None:
    """Make sure that bad data on a stream of `swarm` ends that stream and nothing else.

    The library agrees on the protocol before our handlers begin, and does not catch every exception there, for example for a
    protocol name that is not UTF-8.  Such an exception would end the whole program.
    """
    agree_and_handle = swarm.common_stream_handler

    async def handle(stream: Stream) -> None:
        try:
            await agree_and_handle(stream)
        except Exception as error:  # noqa: BLE001 - see above
            log.debug("a stream failed: %r", error)
            await discard(stream)

    swarm.common_stream_handler = handle


async def open_stream(host: Host, peer: PeerId, protocol: str, data: bytes = b"") -> Stream:
    """Open a stream to a connected peer, ask for `protocol` and send `data`.  The caller must read `agreement` next.

    Raises any exception of the library.
    """
    stream = await host.get_network().new_stream(library_id(peer))
    try:
        await stream.write(_line(MULTISTREAM) + _line(protocol) + data)
    except BaseException:
        await discard(stream)
        raise
    return stream


async def agreement(stream: Stream, protocol: str) -> None:
    """Wait until the other end has agreed to the requested protocol.

    Raises `NotSpoken`, `BadFrame`, and any exception of `read_exactly`.
    """
    greeting, agreed = _line(MULTISTREAM), _line(protocol)
    if await read_exactly(stream, len(greeting)) != greeting:
        raise BadFrame("the other end speaks another version of multistream-select")
    answer = await read_exactly(stream, len(NOT_AVAILABLE))
    if answer == NOT_AVAILABLE:
        raise NotSpoken(f"the other end does not speak {protocol}")
    if answer + await read_exactly(stream, len(agreed) - len(answer)) != agreed:
        raise BadFrame("the other end agrees to another protocol")


def _line(text: str) -> bytes:
    """Return a message of multistream-select: the length as a varint (one byte here), the text and a line feed."""
    assert len(text) < 127
    return bytes([len(text) + 1]) + text.encode() + b"\n"


def _waits(size: int, limit: RateLimit) -> bool:
    return size > LARGE_BYTES and limit.bytes_per_s is not None


async def read_exactly(stream: Stream, size: int, limit: RateLimit = _NO_LIMIT) -> bytes:
    """Read exactly `size` bytes.  Raises any exception of the stream, and `EndedEarly` if the stream ends."""
    parts, paid = bytearray(), 0 if _waits(size, limit) else size
    while len(parts) < size:
        if len(parts) >= paid:
            piece = min(size - paid, limit.frame(LARGE_BYTES))
            await limit.pay_ahead(piece)
            paid += piece
        data = await stream.read(min(paid - len(parts), 1 << 16))
        if not data:
            raise EndedEarly("the stream ended early")
        parts += data
    return bytes(parts)


async def read_length(stream: Stream, max_bytes: int) -> int:
    """Read the size of the next frame in bytes.  Raises `BadFrame` for more than `max_bytes`."""
    (size,) = _LENGTH.unpack(await read_exactly(stream, _LENGTH.size))
    if size > max_bytes:
        raise BadFrame(f"a frame of {size} bytes is over the limit of {max_bytes}")
    return int(size)


async def ask_frame(host: Host, peer: PeerId, protocol: str, data: bytes, limit: RateLimit = _NO_LIMIT) -> Stream:
    """Open a stream as `open_stream` does, with `data` as the first frame.  A small frame is sent with the opening."""
    if not _waits(len(data), limit):
        return await open_stream(host, peer, protocol, _LENGTH.pack(len(data)) + data)
    stream = await open_stream(host, peer, protocol)
    try:
        await write_frame(stream, data, limit)
    except BaseException:
        await discard(stream)
        raise
    return stream


async def write_frame(stream: Stream, data: bytes, limit: RateLimit = _NO_LIMIT) -> None:
    """Write `data` as one frame.  Raises any exception of the stream."""
    framed = _LENGTH.pack(len(data)) + data
    if not _waits(len(data), limit):
        await stream.write(framed)
        return
    step = limit.frame(LARGE_BYTES)
    for at in range(0, len(framed), step):
        piece = framed[at : at + step]
        await limit.pay_ahead(len(piece))
        await stream.write(piece)


async def discard(stream: Stream) -> None:
    """Reset a stream in any state.  Raises nothing, and takes at most two seconds."""
    with trio.CancelScope(deadline=trio.current_time() + 2, shield=True):
        try:
            await stream.reset()
        except Exception:  # noqa: BLE001 - the stream is being thrown away
            return


async def finish(stream: Stream) -> None:
    """Close a stream properly.  Raises nothing, and takes at most two seconds."""
    with trio.CancelScope(deadline=trio.current_time() + 2, shield=True):
        try:
            await stream.close()
        except Exception:  # noqa: BLE001 - the answer is already sent; the peer may be gone
            return


# ------------------------------------------------------------------------------------------------------------------------
# Short questions, each on its own stream: one question and one answer, with sizes fixed by the protocol.


Answerer = Callable[[PeerId, MuxedConnection, bytes], Awaitable[bytes]]
"""Function that answers a peer's question, given the connection.  It may raise anything; then no answer is sent."""


async def ask(
    host: Host, peer: PeerId, protocol: str, question: bytes, answer_bytes: int, deadline_s: float
) -> tuple[bytes, MuxedConnection]:
    """Ask a connected peer; return the answer and the connection that carried it.  Raises `Unreachable`."""
    with trio.move_on_after(deadline_s):
        try:
            stream = await open_stream(host, peer, protocol, question)
        except Exception as error:
            raise Unreachable(f"{short_id(peer)} cannot be asked: {error}") from error
        try:
            await agreement(stream, protocol)
            answer = await read_exactly(stream, answer_bytes)
        except Exception as error:
            await discard(stream)
            raise Unreachable(f"{short_id(peer)} does not answer: {error}") from error
        except BaseException:
            await discard(stream)
            raise
        await finish(stream)
        return answer, stream.muxed_conn
    raise Unreachable(f"{short_id(peer)} does not answer within {deadline_s:g} s")


def answer_with(host: Host, protocol: str, question_bytes: int, answer: Answerer, deadline_s: float) -> None:
    """Answer the questions of `protocol` from now on.

    deadline_s: seconds within which the question must arrive, and within which the answer must be sent.
    """

    async def serve(stream: Stream) -> None:
        """Serve a stream for libp2p.  Raises nothing."""
        try:
            with trio.fail_after(deadline_s):
                question = await read_exactly(stream, question_bytes)
            found = await answer(peer_id_of(stream.muxed_conn.peer_id), stream.muxed_conn, question)
            with trio.fail_after(deadline_s):
                await stream.write(found)
            await finish(stream)
        except Exception as error:  # noqa: BLE001 - the library raises anything
            log.debug("a question on %s failed: %r", protocol, error)
            await discard(stream)

    host.set_stream_handler(protocol, serve)
