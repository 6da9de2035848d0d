"""One question, one answer, on a libp2p stream that may carry further ones afterwards.

Decides size limits, deadlines and how many questions of one peer are answered at once; `memory_budget` decides how much
memory those of all peers take.  The handlers give the answers; an exception of theirs ends the one stream and nothing else.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import trio

from protocol.events.events import Dropped, Event
from protocol.short_id import short_id
from protocol.transport.attempts import OTHER_RUN
from protocol.transport.interface import MAX_REQUEST_BYTES, Handlers, Members, NetworkError, Offence, Refused, Unreachable
from protocol.transport.library import Host, Stream, peer_id_of
from protocol.transport.rate_limit import RateLimit
from protocol.transport.reputation import EXCESS, SLOWNESS, VIOLATION, Channel, Reputation
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
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# Streams on which a question was answered, kept for the next ones: to open and close one costs more than to ask.
#
# The end that answers says whether it waits for a further question.  It waits longer than the end that asks keeps a stream,
# so that questions seldom meet a stream that has just been closed.  Neither keeps one that brought it more than a little:
# the library widens the window of a stream with what comes, and no limit of ours counts what waits there unread.


MOST_KEPT = 4
"""Of one peer, at either end."""
KEPT_S, WAITED_S = 15.0, 45.0
"""How long the end that asks keeps a stream, and the other one waits."""
KEPT_BYTES = 64 << 10
"""A stream that brought more than this is not kept by the end that it came to."""


@dataclass
class KeptStream:
    """A stream of the end that asks.  brought_bytes: by all answers.  is_new: nothing was asked on it before."""

    stream: Stream
    is_new: bool = True
    brought_bytes: int = 0
    until: float = 0.0


class KeptStreams:
    """Those of the end that asks; `run` closes them in time."""

    def __init__(self) -> None:
        self._kept: dict[PeerId, list[KeptStream]] = {}
        """The next to end first."""

    def take(self, peer: PeerId) -> KeptStream | None:
        """A stream on which this peer waits for a question, if there is one."""
        kept = self._kept.get(peer, [])
        return kept.pop() if kept and kept[-1].until > trio.current_time() else None

    def keep(self, peer: PeerId, kept: KeptStream) -> bool:
        """Keep a stream; False when there are enough, or it brought too much."""
        others = self._kept.setdefault(peer, [])
        if len(others) >= MOST_KEPT or kept.brought_bytes > KEPT_BYTES:
            return False
        kept.is_new, kept.until = False, trio.current_time() + KEPT_S
        others.append(kept)
        return True

    def forget_closed(self, peer: PeerId) -> None:
        """A connection to this peer is closed: so are the streams on it."""
        kept = [each for each in self._kept.pop(peer, []) if not each.stream.muxed_conn.is_closed]
        if kept:
            self._kept[peer] = kept

    async def run(self) -> None:
        """Close, until cancelled, what nobody has used for a while."""
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
# The memory for questions that are being read or answered, and for answers that are being sent: a budget over all peers.
#
# Strangers together get half of it, so that members always have the other half.  A peer may hold as much as is left free
# after it: one peer gets half of the room, two get a third each, and a few more find a share of what is left.  What is
# small is not counted: everybody can greet and catch up while the budget is used up.


BUDGET_BYTES = 64 << 20
"""Of questions, or answers, as they travel."""
SMALL_BYTES = 4 << 10
"""What is at most this large is not counted."""
EVENT_EVERY_S = 10.0


class MemoryBudget:
    """Grants room for questions, or for answers.

    members: tells members from strangers.  emit: gets a `Dropped` for refused questions, at most one in `EVENT_EVERY_S`; its
    `times` counts those of all peers.
    """

    def __init__(self, members: Members, emit: Callable[[Event], None], total_bytes: int = BUDGET_BYTES) -> None:
        self._members, self._emit, self._total = members, emit, total_bytes
        self._held: Counter[PeerId] = Counter()
        self._released = trio.Event()
        self._refused = 0
        self._last_event_at = -math.inf

    @property
    def held_bytes(self) -> int:
        """Of all peers."""
        return self._held.total()

    @contextmanager
    def hold(self, peer: PeerId, size: int) -> Iterator[None]:
        """Room for `size` bytes, for the length of the block.  Raises `Unreachable` when there is none."""
        if size <= SMALL_BYTES:
            yield
            return
        if not self.has_room(peer, size):
            self._refuse(peer)
            raise Unreachable("no room for another question")
        self._held[peer] += size
        try:
            yield
        finally:
            self._held[peer] -= size
            if not self._held[peer]:
                del self._held[peer]
            self._released.set()

    def has_room(self, peer: PeerId, size: int) -> bool:
        """Whether `hold` would find room now."""
        return size <= SMALL_BYTES or self._held[peer] + size <= self._free(peer)

    async def room(self, peer: PeerId, size: int) -> AbstractContextManager[None]:
        """`hold`, when there is room: it may take until the caller's deadline."""
        while not self.has_room(peer, size):
            if self._released.is_set():
                self._released = trio.Event()
            await self._released.wait()
        return self.hold(peer, size)

    def _free(self, peer: PeerId) -> int:
        """Bytes that are left for members, or for strangers, whichever `peer` is."""
        free = self._total - self.held_bytes
        if self._members.has_member(peer):
            return free
        of_strangers = sum(size for holder, size in self._held.items() if not self._members.has_member(holder))
        return min(free, self._total // 2 - of_strangers)

    def _refuse(self, peer: PeerId) -> None:
        self._refused += 1
        now = trio.current_time()
        if now - self._last_event_at < EVENT_EVERY_S:
            return
        self._emit(Dropped(peer, "question", "too many large questions of all peers at once", self._refused))
        self._refused, self._last_event_at = 0, now


# ------------------------------------------------------------------------------------------------------------------------


ENVELOPE_BYTES = 4096
"""For the fields around the data."""
MAX_CONCURRENT_PER_PEER = 16
MAX_KIND_CHARS = 64
MAX_REASON_CHARS = 300
READ_QUESTION_S = 5.0
"""Until the first question begins; the rest of it may take what it takes at `SLOWEST_BYTES_PER_S`."""
WRITE_ANSWER_S = 5.0
"""Until an answer is taken, and as much more as it takes at `SLOWEST_BYTES_PER_S`."""
SLOWEST_BYTES_PER_S = 32 << 10
MAX_ANSWER_S = 120.0
"""The longest time spent on one question, however long its asker would wait."""

log = logging.getLogger(__name__)


class OtherRun(Unreachable):
    """The peer is connected, and does not know our run."""


class Requests:
    """The questions that we ask and answer.  up, down: the limits that large ones keep to.

    up_bytes, down_bytes: of payload, since the start.
    """

    def __init__(
        self,
        host: Host,
        run: Hash,
        handlers: Handlers,
        reputation: Reputation,
        up: RateLimit,
        down: RateLimit,
        emit: Callable[[Event], None],
    ) -> None:
        self._host = host
        self._handlers = handlers
        self._reputation = reputation
        self._up, self._down = up, down
        self._questions, self._answers = MemoryBudget(handlers, emit), MemoryBudget(handlers, emit)
        self._protocol = f"/manyhands/1/{bytes(run).hex()[:16]}/request"
        self._kept = KeptStreams()
        self._open, self._waiting = Counter[PeerId](), Counter[PeerId]()
        """Questions that are being read or answered; streams on which we wait for a further one."""
        self.up_bytes = 0
        self.down_bytes = 0
        host.set_stream_handler(self._protocol, self._serve)

    async def ask(self, peer: PeerId, kind: str, data: bytes, timeout_s: float) -> bytes:
        """Ask a question and return the answer.

        Raises `Refused` with the peer's reason, `OtherRun`, `NetworkError` when the question is too large, and `Unreachable`
        for everything else that can go wrong.
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
        """Close the streams that nobody uses any more, until cancelled."""
        await self._kept.run()

    def disconnected(self, peer: PeerId) -> None:
        """A connection to this peer has closed, and the streams on it with it."""
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
        """Send a question; the stream on which it is answered."""
        while (kept := self._kept.take(peer)) is not None:
            try:
                await write_frame(kept.stream, question, self._up)
            except Exception as error:  # noqa: BLE001 - the library raises anything; its connection may be closed, and another open
                log.debug("a stream that was kept has ended: %r", error)
                await discard(kept.stream)
            except BaseException:
                await discard(kept.stream)
                raise
            else:
                return kept
        return KeptStream(await ask_frame(self._host, peer, self._protocol, question, self._up))

    async def _begun(self, asked: KeptStream) -> int | None:
        """The size of the answer that comes; None when the other end had closed a stream that was kept, and read nothing."""
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
        """libp2p's stream handler: an exception here would bring down the whole host, so none leaves."""
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
                self._reputation.penalise(peer, VIOLATION, f"a question that is none: {error}")
            await discard(stream)
        else:
            await finish(stream)

    async def _first(self, peer: PeerId, stream: Stream) -> int:
        """Wait for the first question of a stream; its size."""
        with trio.move_on_after(READ_QUESTION_S):
            return await read_length(stream, MAX_REQUEST_BYTES + ENVELOPE_BYTES)
        raise self._too_slow(peer)

    async def _next(self, peer: PeerId, stream: Stream) -> int | None:
        """Wait for a further one, as was promised; None when none comes."""
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
        """Answer a question of which `size` bytes are to come; whether we wait for another one, if it `may_stay` open."""
        if self._open[peer] >= MAX_CONCURRENT_PER_PEER:
            self._reputation.penalise(peer, EXCESS, "too many questions at once")
            raise Unreachable("too many questions at once")
        self._open[peer] += 1
        try:
            with ExitStack() as held:
                raw = await self._read_question(peer, stream, size, held)
                if not self._reputation.spend(peer, Channel.QUESTION, len(raw)):
                    raise Unreachable("over its allowance")
                return await self._answer_it(peer, stream, raw, held, may_stay)
        finally:
            _count_down(self._open, peer)

    async def _answer_it(self, peer: PeerId, stream: Stream, raw: bytes, held: ExitStack, may_stay: bool) -> bool:
        kind, data, milliseconds = decode_question(raw)
        self.down_bytes += len(data)
        with trio.fail_after(max(0.0, min(milliseconds / 1000, MAX_ANSWER_S))):
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

    async def _write(self, peer: PeerId, stream: Stream, answer: dict[str, bytes | str | bool], may_stay: bool) -> bool:
        """Send an answer; whether we promised with it to wait for another question, which `_next` does."""
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
        """The answer to a question; `held` keeps the room for it.

        Where there is none, the answer is given up, and found again when there is: what waits for slow readers takes no
        memory.
        """
        found = await self._handlers.on_request(peer, kind, data)
        if self._answers.has_room(peer, len(found)):
            held.enter_context(self._answers.hold(peer, len(found)))
            return found
        size = len(found)
        del found
        held.enter_context(await self._answers.room(peer, size))
        return await self._handlers.on_request(peer, kind, data)

    async def _read_question(self, peer: PeerId, stream: Stream, size: int, held: ExitStack) -> bytes:
        """Read a question; `held` keeps the room for it.

        Raises `Unreachable` when there is no room, and, at a penalty for its asker, when its bytes come too slowly.
        """
        held.enter_context(self._questions.hold(peer, size))
        with trio.move_on_after(READ_QUESTION_S + size / SLOWEST_BYTES_PER_S):
            return await read_exactly(stream, size)
        raise self._too_slow(peer)

    def _too_slow(self, peer: PeerId) -> Unreachable:
        self._reputation.penalise(peer, SLOWNESS, "a question that did not come to its end")
        return Unreachable("a question that did not come to its end")


def _count_down(counter: Counter[PeerId], peer: PeerId) -> None:
    counter[peer] -= 1
    if not counter[peer]:
        del counter[peer]


def encode_question(kind: str, data: bytes, milliseconds: int) -> bytes:
    """A question in its form on the wire.  milliseconds: how long the asker waits for the answer."""
    return canonical.encode({"kind": kind, "data": data, "ms": milliseconds})


def decode_question(raw: bytes) -> tuple[str, bytes, int]:
    """Kind, data, and how long the asker waits (ms).  Raises `Malformed` or `BadFrame`."""
    question = canonical.decode(raw, max_bytes=MAX_REQUEST_BYTES + ENVELOPE_BYTES)
    if not isinstance(question, dict) or set(question) != {"kind", "data", "ms"}:
        raise BadFrame("not a question")
    kind, data, milliseconds = question["kind"], question["data"], question["ms"]
    if not (isinstance(kind, str) and isinstance(data, bytes) and type(milliseconds) is int):
        raise BadFrame("not a question")
    if len(kind) > MAX_KIND_CHARS or len(data) > MAX_REQUEST_BYTES or milliseconds < 0:
        raise BadFrame("an oversized question")
    return kind, data, milliseconds


def decode_answer(raw: bytes) -> tuple[bytes | Refused, bool]:
    """The data of an answer, or the refusal with the peer's reason; and whether it waits for another question.

    Raises `Malformed` or `BadFrame` if it is not an answer.
    """
    answer = canonical.decode(raw, max_bytes=MAX_REQUEST_BYTES + ENVELOPE_BYTES)
    if isinstance(answer, dict) and isinstance(stays_open := answer.pop("open", None), bool):
        if set(answer) == {"data"} and isinstance(answer["data"], bytes):
            return answer["data"], stays_open
        if set(answer) == {"reason"} and isinstance(answer["reason"], str):
            return Refused(answer["reason"][:MAX_REASON_CHARS]), stays_open
    raise BadFrame("an answer that is none")
