"""Short questions on streams of their own: one question and one answer, each of a size that the protocol fixes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from protocol.network.interface import Unreachable
from protocol.network.libp2p.library import Host, MuxedConnection, Stream, peer_id_of
from protocol.network.libp2p.streams import agreement, discard, finish, open_stream, read_exactly
from protocol.short_id import short_id
from protocol.wire.identity import PeerId

log = logging.getLogger(__name__)

Answerer = Callable[[PeerId, MuxedConnection, bytes], Awaitable[bytes]]
"""Who asks, on which connection, and the question; raises anything where there is no answer."""


async def ask(
    host: Host, peer: PeerId, protocol: str, question: bytes, answer_bytes: int, deadline_s: float
) -> tuple[bytes, MuxedConnection]:
    """Ask a connected peer; its answer, and the connection on which it came.  Raises `Unreachable`."""
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
    """From now on answer such questions.  deadline_s: for the question to come, and for the answer to be taken."""

    async def serve(stream: Stream) -> None:
        """libp2p's stream handler: no exception may leave it."""
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
