"""Questions and answers, one at a time on a libp2p stream, which may be kept for later questions.

This module decides size limits, deadlines, the number of one peer's questions that are answered at once, and the memory for
the questions of all peers; `answer_budget` decides when a question is answered.  The handlers give the answers; an
exception of a handler ends its stream and nothing else.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import trio

from protocol.events.events import Dropped, Event
from protocol.offload import charging
from protocol.short_id import short_id
from protocol.transport.answer_budget import AnswerBudget
from protocol.transport.dialer import OTHER_RUN
from protocol.transport.host import RunHost
from protocol.transport.interface import MAX_REQUEST_BYTES, NetworkError, Offence, Refused, Unreachable
from protocol.transport.library import Stream, peer_id_of
from protocol.transport.limits import ABANDONED, EXCESS, SLOWNESS, VIOLATION, Channel, MemoryBudget
from protocol.transport.streams import (
    BadFrame,
    EndedEarly,
    NotSpoken,
    agreement,
    ask_frame,
    discard,
    finish,
    read_exactly,
    read_length,
    write_frame,
)
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# Streams kept for later questions, because opening and closing a stream costs more than asking a question.
#
# Each answer says if the answering end waits for another question on the stream.  The answering end waits longer than the
# asking end keeps a stream, so a question is seldom sent on a stream that was just closed.  Neither end keeps a stream on
# which it received more than `KEPT_BYTES`: the library widens a stream's window as data arrives, and none of our limits
# counts the unread data in that window.


MOST_KEPT = 4
"""Most streams that each end keeps for one peer."""
KEPT_S, WAITED_S = 15.0, 45.0
"""Seconds for which the asking end keeps a stream, and seconds for which the answering end waits on it."""
KEPT_BYTES = 64 << 10
"""Most bytes that an end may have received on a stream that it keeps."""


@dataclass
class KeptStream:
    """A stream at the asking end.  brought_bytes: total size of its answers.  is_new: True before its first question."""

    stream: Stream
    is_new: bool = True
    brought_bytes: int = 0
    until: float = 0.0


class KeptStreams:
    """The streams that we keep as the asking end.  `run` closes them after `KEPT_S` without use."""

    def __init__(self) -> None:
        self._kept: dict[PeerId, list[KeptStream]] = {}
        """Streams by peer, the one to be closed next first."""

    def take(self, peer: PeerId) -> KeptStream | None:
        """Return a stream on which this peer waits for a question; None if there is none."""
        kept = self._kept.get(peer, [])
        return kept.pop() if kept and kept[-1].until > trio.current_time() else None

    def keep(self, peer: PeerId, kept: KeptStream) -> bool:
        """Keep a stream.  Return False if we keep enough streams for the peer, or received too much on this one."""
        others = self._kept.setdefault(peer, [])
        if len(others) >= MOST_KEPT or kept.brought_bytes > KEPT_BYTES:
            return False
        kept.is_new, kept.until = False, trio.current_time() + KEPT_S
        others.append(kept)
        return True

    def forget_closed(self, peer: PeerId) -> None:
        """Drop the streams of this peer whose connection is closed."""
        kept = [each for each in self._kept.pop(peer, []) if not each.stream.muxed_conn.is_closed]
        if kept:
            self._kept[peer] = kept

    async def run(self) -> None:
        """Close streams that were not used for `KEPT_S`, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(KEPT_S / 2)
                now = trio.current_time()
                for peer, kept in list(self._kept.items()):
                    for each in kept:
                        if each.until <= now:
                            nursery.start_soon(finish, each.stream)
                    kept[:] = [each for each in kept if each.until > now]
                    if not kept:
                        del self._kept[peer]


# ------------------------------------------------------------------------------------------------------------------------


BUDGET_BYTES = 64 << 20
"""Largest encoded size of all questions together, and of all answers together; strangers get half of each."""
EVENT_EVERY_S = 10.0
"""Shortest time between two events about refused questions; each counts the questions of all peers that were refused."""
ENVELOPE_BYTES, ENVELOPE_VALUES = 4096, 8
"""Room for the fields around the data, and most values of a question or an answer: three fields with their names."""
MAX_CONCURRENT_PER_PEER = 16
MAX_KIND_CHARS = 64
MAX_REASON_CHARS = 300
READ_QUESTION_S = 5.0
"""Seconds within which the first question must begin.  Reading a question may take another `READ_QUESTION_S`, plus its time
at `SLOWEST_BYTES_PER_S`."""
WRITE_ANSWER_S = 5.0
"""Seconds within which an answer must be sent, plus its time at `SLOWEST_BYTES_PER_S` or at our slower line."""
SLOWEST_BYTES_PER_S = 32 << 10
MAX_ANSWER_S = 120.0
"""Longest time spent on one question (s), even if its asker would wait longer."""

log = logging.getLogger(__name__)


class OtherRun(Unreachable):
    """The peer is connected but does not know our run."""


class Requests:
    """The questions that we ask and answer.

    up_bytes, down_bytes: payload moved since the start.
    """

    def __init__(self, own: RunHost, emit: Callable[[Event], None]) -> None:
        self._host, self._handlers, self._reputation = own.host, own.handlers, own.reputation
        self._up, self._down = own.line.up, own.line.down
        self._questions = MemoryBudget(own.handlers, BUDGET_BYTES, BUDGET_BYTES // 2)
        self._answers = MemoryBudget(own.handlers, BUDGET_BYTES, BUDGET_BYTES // 2)
        self._emit, self._refused, self._told_at = emit, 0, -math.inf
        self._budget = AnswerBudget(own.handlers, own.handlers.has_allowance)
        self._protocol = own.protocol("request")
        self._kept = KeptStreams()
        self._open, self._waiting = Counter[PeerId](), Counter[PeerId]()
        """Number of questions being read or answered, and number of streams on which we wait for another one, by peer."""
        self.up_bytes = 0
        self.down_bytes = 0
        own.host.set_stream_handler(self._protocol, self._serve)

    async def ask(self, peer: PeerId, kind: str, data: bytes, timeout_s: float) -> bytes:
        """Ask a question and return the answer.

        Raises `Refused` with the peer's reason, `OtherRun`, `NetworkError` if the question is too large, and `Unreachable`
        for every other failure.
        """
        if len(data) > MAX_REQUEST_BYTES:
            raise NetworkError(f"a question of {len(data)} bytes is over the limit of {MAX_REQUEST_BYTES}")
        with trio.move_on_after(timeout_s) as scope:
            try:
                return await self._ask(peer, kind, data, timeout_s)
            except NotSpoken as error:
                raise OtherRun(f"{short_id(peer)}: {OTHER_RUN}") from error
            except (Refused, Unreachable):
                raise
            except Exception as error:
                raise Unreachable(f"the question '{kind}' to {short_id(peer)} failed: {error}") from error
        assert scope.cancelled_caught
        raise Unreachable(f"{short_id(peer)} did not answer '{kind}' within {timeout_s:g} s")

    async def run(self) -> None:
        """Close streams that are no longer used, and give strangers their turns, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._kept.run)
            nursery.start_soon(self._budget.run)

    def disconnected(self, peer: PeerId) -> None:
        """Forget this peer's streams whose connection has closed."""
        self._kept.forget_closed(peer)

    async def _ask(self, peer: PeerId, kind: str, data: bytes, timeout_s: float) -> bytes:
        question = encode_question(kind, data, max(1, int(timeout_s * 1000)))
        asked = await self._put(peer, question)
        try:
            size = await self._begun(asked)
            while size is None:
                await finish(asked.stream)
                asked = await self._put(peer, question)
                size = await self._begun(asked)
            raw = await read_exactly(asked.stream, size, self._down)
            self.up_bytes += len(data)
            answer, stays_open = decode_answer(raw)
        except BaseException:
            await discard(asked.stream)
            raise
        asked.brought_bytes += len(raw)
        if not stays_open or not self._kept.keep(peer, asked):
            await finish(asked.stream)
        if isinstance(answer, Refused):
            raise answer
        self.down_bytes += len(answer)
        return answer

    async def _put(self, peer: PeerId, question: bytes) -> KeptStream:
        """Send a question and return the stream on which the answer will arrive."""
        while (kept := self._kept.take(peer)) is not None:
            try:
                await write_frame(kept.stream, question, self._up)
            except Exception as error:  # noqa: BLE001 - the library raises anything; the connection may have closed
                log.debug("a stream that was kept has ended: %r", error)
                await discard(kept.stream)
            except BaseException:
                await discard(kept.stream)
                raise
            else:
                return kept
        return KeptStream(await ask_frame(self._host, peer, self._protocol, question, self._up))

    async def _begun(self, asked: KeptStream) -> int | None:
        """Return the size of the arriving answer; None if the peer closed a kept stream before it read the question."""
        from libp2p.network.stream.exceptions import StreamEOF

        try:
            if asked.is_new:
                await agreement(asked.stream, self._protocol)
            return await read_length(asked.stream, MAX_REQUEST_BYTES + ENVELOPE_BYTES)
        except (StreamEOF, EndedEarly):
            if asked.is_new:
                raise
            return None

    async def _serve(self, stream: Stream) -> None:
        """Serve a stream for libp2p.  Raises nothing, because an exception here would bring down the whole host."""
        peer = peer_id_of(stream.muxed_conn.peer_id)
        try:
            size: int | None = await self._first(peer, stream)
            brought_bytes = 0
            while size is not None:
                brought_bytes += size
                may_stay = brought_bytes <= KEPT_BYTES
                size = await self._next(peer, stream) if await self._answer(peer, stream, size, may_stay) else None
        except Exception as error:  # noqa: BLE001 - see above
            log.debug("a question of %s failed: %r", peer, error)
            if isinstance(error, Malformed | BadFrame):
                self._reputation.penalise(peer, VIOLATION, f"a malformed question: {error}")
            await discard(stream)
        else:
            await finish(stream)

    async def _first(self, peer: PeerId, stream: Stream) -> int:
        """Wait for the first question of a stream; return its size."""
        with trio.move_on_after(READ_QUESTION_S):
            return await read_length(stream, MAX_REQUEST_BYTES + ENVELOPE_BYTES)
        raise self._too_slow(peer)

    async def _next(self, peer: PeerId, stream: Stream) -> int | None:
        """Wait for another question, as our answer promised; return its size, or None if no question arrives."""
        try:
            with trio.move_on_after(WAITED_S):
                return await read_length(stream, MAX_REQUEST_BYTES + ENVELOPE_BYTES)
        except BadFrame:
            raise
        except Exception as error:  # noqa: BLE001 - the library raises anything when the other end has closed the stream
            log.debug("no further question of %s: %r", peer, error)
        finally:
            _count_down(self._waiting, peer)
        return None

    async def _answer(self, peer: PeerId, stream: Stream, size: int, may_stay: bool) -> bool:
        """Read and answer a question of `size` bytes.  Return True if we promised to wait for another one.

        may_stay: True if the stream may be kept.
        """
        if self._open[peer] >= MAX_CONCURRENT_PER_PEER:
            self._reputation.penalise(peer, EXCESS, "too many questions at once")
            raise Unreachable("too many questions at once")
        self._open[peer] += 1
        try:
            with ExitStack() as held:
                raw = await self._read_question(peer, stream, size, held)
                if not self._reputation.spend(peer, Channel.QUESTION, len(raw)):
                    raise Unreachable("the peer has used up its allowance")
                return await self._answer_it(peer, stream, raw, held, may_stay)
        finally:
            _count_down(self._open, peer)

    async def _answer_it(self, peer: PeerId, stream: Stream, raw: bytes, held: ExitStack, may_stay: bool) -> bool:
        kind, data, milliseconds = decode_question(raw)
        self.down_bytes += len(data)
        with trio.fail_after(max(0.0, min(milliseconds / 1000, MAX_ANSWER_S))) as deadline:
            await self._admit(peer, deadline)
            try:
                found = await self._find(peer, kind, data, held)
                answer: dict[str, bytes | str | bool] = {"data": found}
            except Refused as refusal:
                if isinstance(refusal, Offence):
                    self._reputation.penalise(peer, VIOLATION, str(refusal))
                found, answer = b"", {"reason": str(refusal)[:MAX_REASON_CHARS]}
            if len(found) > MAX_REQUEST_BYTES:
                answer = {"reason": f"the answer has {len(found)} bytes, more than {MAX_REQUEST_BYTES}"}
            with trio.fail_after(WRITE_ANSWER_S + len(found) / self._up.slowest(SLOWEST_BYTES_PER_S)):
                stays_open = await self._write(peer, stream, answer, may_stay)
        self.up_bytes += len(found)
        return stays_open

    async def _admit(self, peer: PeerId, deadline: trio.CancelScope) -> None:
        """Wait until the question may be answered; penalise the asker if it does not wait so long.

        Reading a question costs us processor time even if it is never answered.
        """
        try:
            await self._budget.admit(peer)
        except trio.Cancelled:
            if deadline.cancel_called:
                self._reputation.penalise(peer, ABANDONED, "questions whose answers it does not wait for")
            raise

    async def _write(self, peer: PeerId, stream: Stream, answer: dict[str, bytes | str | bool], may_stay: bool) -> bool:
        """Send an answer.  Return True if it promises that we wait for another question; `_next` then waits."""
        stays_open = may_stay and self._waiting[peer] < MOST_KEPT
        self._waiting[peer] += stays_open
        try:
            await write_frame(stream, canonical.encode({**answer, "open": stays_open}), self._up)
        except BaseException:
            if stays_open:
                _count_down(self._waiting, peer)
            raise
        return stays_open

    async def _find(self, peer: PeerId, kind: str, data: bytes, held: ExitStack) -> bytes:
        """Return the answer to a question; `held` keeps its part of the budget.

        If the budget has no room for the answer, drop the answer, wait for room and compute the answer again.  So answers
        that wait for slow readers take no memory.
        """
        found = await self._charged(peer, kind, data)
        if self._answers.has_room(peer, len(found)):
            held.enter_context(self._answers.hold(peer, len(found)))
            return found
        size = len(found)
        del found
        held.enter_context(await self._answers.room(peer, size))
        await self._budget.admit(peer)
        return await self._charged(peer, kind, data)

    async def _charged(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        """Return the answer of our handlers, whose threads and bytes are charged to the asker."""
        with charging(self._budget.payer(peer)):
            found = await self._handlers.on_request(peer, kind, data)
        self._budget.charge(peer, 0.0, len(found))
        return found

    async def _read_question(self, peer: PeerId, stream: Stream, size: int, held: ExitStack) -> bytes:
        """Read a question; `held` keeps its part of the budget.

        Raises `Unreachable` if the budget has no room.  Raises `Unreachable` and penalises the asker if the bytes arrive too
        slowly.
        """
        if not self._questions.has_room(peer, size):
            self._tell_refused(peer)
        held.enter_context(self._questions.hold(peer, size))
        with trio.move_on_after(READ_QUESTION_S + size / SLOWEST_BYTES_PER_S):
            return await read_exactly(stream, size)
        raise self._too_slow(peer)

    def _tell_refused(self, peer: PeerId) -> None:
        self._refused += 1
        now = trio.current_time()
        if now - self._told_at >= EVENT_EVERY_S:
            self._emit(Dropped(peer, "question", "too many large questions of all peers at once", self._refused))
            self._refused, self._told_at = 0, now

    def _too_slow(self, peer: PeerId) -> Unreachable:
        self._reputation.penalise(peer, SLOWNESS, "a question that did not arrive in time")
        return Unreachable("a question that did not arrive in time")


def _count_down(counter: Counter[PeerId], peer: PeerId) -> None:
    counter[peer] -= 1
    if not counter[peer]:
        del counter[peer]


def encode_question(kind: str, data: bytes, milliseconds: int) -> bytes:
    """Encode a question for the wire.  milliseconds: time for which the asker waits for the answer."""
    return canonical.encode({"kind": kind, "data": data, "ms": milliseconds})


def decode_question(raw: bytes) -> tuple[str, bytes, int]:
    """Return the kind and data of a question and the time for which the asker waits (ms).

    Raises `Malformed` or `BadFrame`.
    """
    question = canonical.decode(raw, max_bytes=MAX_REQUEST_BYTES + ENVELOPE_BYTES, max_values=ENVELOPE_VALUES)
    if not isinstance(question, dict) or set(question) != {"kind", "data", "ms"}:
        raise BadFrame("not a question")
    kind, data, milliseconds = question["kind"], question["data"], question["ms"]
    if not (isinstance(kind, str) and isinstance(data, bytes) and type(milliseconds) is int):
        raise BadFrame("not a question")
    if len(kind) > MAX_KIND_CHARS or len(data) > MAX_REQUEST_BYTES or milliseconds < 0:
        raise BadFrame("an oversized question")
    return kind, data, milliseconds


def decode_answer(raw: bytes) -> tuple[bytes | Refused, bool]:
    """Return the data of an answer or the peer's refusal with its reason, and True if the peer waits for another question.

    Raises `Malformed` or `BadFrame` for any other bytes.
    """
    answer = canonical.decode(raw, max_bytes=MAX_REQUEST_BYTES + ENVELOPE_BYTES, max_values=ENVELOPE_VALUES)
    if isinstance(answer, dict) and isinstance(stays_open := answer.pop("open", None), bool):
        if set(answer) == {"data"} and isinstance(answer["data"], bytes):
            return answer["data"], stays_open
        if set(answer) == {"reason"} and isinstance(answer["reason"], str):
            return Refused(answer["reason"][:MAX_REASON_CHARS]), stays_open
    raise BadFrame("a malformed answer")
