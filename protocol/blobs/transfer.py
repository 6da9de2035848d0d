"""Transfers: the fetch of one blob, its progress, and samples of a peer's speed.

`Fetch` is the trio shell around `protocol.blobs.download.Download`.  A chunk is received into memory, checked, and only then
written to its place.  From that moment on it is offered to others.  A fetch may be of some chunks of a blob only: the blocks
of a corpus are fetched so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from protocol.blobs.blob import (
    MAX_WANTED,
    Blob,
    BlobReply,
    BlobRequest,
    ChunkSet,
    ChunksReply,
    ChunksRequest,
    chunks_in,
    from_bitmap,
    set_of,
    to_bitmap,
)
from protocol.blobs.download import MOST_OWED_BYTES, MOST_SOURCES, Download, Wants
from protocol.blobs.mirrors import Mirrors
from protocol.blobs.offers import Offer
from protocol.blobs.reliability import Reliability
from protocol.blobs.store import Held
from protocol.disk import StoreFailed, let_go
from protocol.events.events import Dropped, Event, TransferEnded, TransferProgress
from protocol.transport.interface import Landing, Members, NetworkError, Refused, Session
from protocol.transport.task_group import TaskGroup
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import decode_body
from protocol.wire.hashes import chunk_hash
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# The places of the chunks that are fetched.


@dataclass(frozen=True)
class ChunkPlaces:
    """Destination of the chunks of a fetch, from which they are also read to serve them.

    wanted: the chunks to fetch.  write: writes a chunk whose bytes are right, with the name of its source; raises
    `StoreFailed`.  read: returns the bytes of a chunk that was written, or was here; None if they are no longer here;
    blocking.
    """

    wanted: ChunkSet
    write: Callable[[int, memoryview, str], Awaitable[None]]
    read: Callable[[int], bytes | None]

    @classmethod
    def in_buffer(cls, blob: Blob, buffer: memoryview) -> ChunkPlaces:
        """Return the places of all chunks in one buffer of the size of the blob."""

        async def write(chunk: int, data: memoryview, source: str) -> None:
            buffer[blob.span(chunk)] = data
            let_go(buffer[blob.span(chunk)])

        return cls(blob.all, write, lambda chunk: bytes(buffer[blob.span(chunk)]))


# ------------------------------------------------------------------------------------------------------------------------
# Progress of a blob on its way to us: its chunks, its rate, and the time that is left.


EVERY_S = 1.0
MEMORY = 0.3
MOST_CELLS = 256
"""Most cells of a blob's map, which is reported once a second; a blob may have tens of thousands of chunks."""


@dataclass(frozen=True)
class Purpose:
    """Purpose of a blob.

    what: checkpoint, result, file, rollouts, tasks, reference or blocks.  number: number of the round, version, file or
    shard.  spare: True if nobody waits for the blob: other peers then send it after all that somebody waits for.
    """

    what: str
    number: int
    spare: bool = False


class Transfer:
    """Progress of one blob.  here: chunks that are here.  now: trio time.  emit: called once every `EVERY_S`.

    wanted: the chunks to fetch; None for all.  Other chunks do not count.  Call `update` often, even when no chunk comes:
    the rate is measured over the last seconds.
    """

    def __init__(
        self,
        purpose: Purpose,
        blob: Blob,
        here: ChunkSet,
        now: float,
        emit: Callable[[Event], None],
        wanted: ChunkSet | None = None,
    ) -> None:
        self.purpose, self.blob, self._emit = purpose, blob, emit
        self.here, self._sources = here, 0
        self.wanted = blob.all if wanted is None else wanted
        self._whole = self._size(self.wanted)
        self._bytes_left = self._size(self.wanted & ~here)
        self._begun_at = self._told_at = now
        self._began_with = self._told_left = self._bytes_left
        self._rate = 0.0

    def update(self, here: ChunkSet, sources: int, now: float) -> None:
        """Note the chunks that are here now, and the number of peers that have some of the blob."""
        self._bytes_left -= self._size(here & ~self.here & self.wanted)
        self.here, self._sources = here, sources
        passed_s, arrived = now - self._told_at, self._told_left - self._bytes_left
        if passed_s >= EVERY_S:
            self._rate += (MEMORY if self._rate else 1.0) * (arrived / passed_s - self._rate)
            self._told_at, self._told_left = now, self._bytes_left
            self._emit(self.told())

    def end(self, now: float) -> None:
        """End the transfer: all chunks are here, nobody has the rest, or the fetch was abandoned."""
        if self._began_with:
            arrived = self._began_with - self._bytes_left
            complete, seconds = not self._bytes_left, now - self._begun_at
            self._emit(TransferEnded(**self._named(), fetched_bytes=arrived, seconds=seconds, complete=complete))

    def told(self) -> TransferProgress:
        """Return the progress as an event."""
        return TransferProgress(
            **self._named(),
            done=(self.here & self.wanted).bit_count(),
            total=self.wanted.bit_count(),
            size_bytes=self._whole,
            chunks=cells(self.here, len(self.blob)),
            down_bytes_per_s=self._rate,
            sources=self._sources,
            left_s=self._bytes_left / self._rate if self._rate >= 1 else None,
        )

    def _named(self) -> dict[str, Any]:
        return {"what": self.purpose.what, "number": self.purpose.number, "blob": self.blob.name.hex()}

    def _size(self, chunks: ChunkSet) -> int:
        return sum(self.blob.sizes[chunk] for chunk in chunks_in(chunks))


def cells(here: ChunkSet, count: int, most: int = MOST_CELLS) -> str:
    """Return a map of a blob's chunks in at most `most` cells: "#" for cells with all chunks here, "+" some, "." none."""
    number, line = min(most, count), ""
    for cell in range(number):
        first, end = cell * count // number, (cell + 1) * count // number
        found = (here >> first & ((1 << (end - first)) - 1)).bit_count()
        line += "#" if found == end - first else "+" if found else "."
    return line


# ------------------------------------------------------------------------------------------------------------------------
# Samples of a peer's speed: a few chunks of a blob that it shares, requested as usual, checked, and discarded.
#
# The sampled peer sees ordinary requests: it sends the chunks in turns with chunks for other peers, behind all urgent
# chunks.  So a stranger that measures costs no more than a stranger that fetches.


SAMPLE_BYTES = 4 << 20
"""Bytes asked of one peer."""
SAMPLE_S = 4.0
BUSY_S = 0.2
"""Seconds until a busy peer is asked again."""


@dataclass(frozen=True)
class Sampled:
    """Outcome of a sample.

    seconds: time from the beginning of the first chunk to the end of the last one.  problem: the reason why no chunk came,
    in a few words.
    """

    peer: PeerId
    down_bytes: int
    seconds: float
    problem: str = ""

    @property
    def bytes_per_s(self) -> float:
        """Rate of the sample; 0 if no chunk came."""
        return self.down_bytes / self.seconds if self.down_bytes and self.seconds > 0 else 0.0


class Sample:
    """Sample of one peer; call `run` once.  Its chunks arrive through `landing` and `landed`."""

    def __init__(self, session: Session, blob: Blob, peer: PeerId) -> None:
        self.blob, self.peer = blob, peer
        self._session = session
        self._left = set_of(_first_chunks(blob.sizes))
        self._expected = 0
        self._coming: dict[int, Landing] = {}
        self._began_at: float | None = None
        self._ended_at = 0.0
        self._bytes = 0
        self._changed = trio.Event()

    async def run(self) -> Sampled:
        """Take the sample within `SAMPLE_S`."""
        problem = "it sent nothing in time"
        with trio.move_on_after(SAMPLE_S):
            try:
                problem = await self._fetch()
            except (NetworkError, Malformed) as error:
                problem = str(error)
        self._expected = 0
        begun = self._began_at if self._began_at is not None else self._ended_at
        return Sampled(self.peer, self._bytes, max(0.0, self._ended_at - begun), "" if self._bytes else problem)

    async def _fetch(self) -> str:
        """Fetch until all chunks have come or were refused; return the reason to report if no chunk came."""
        while self._left:
            wanted = [*chunks_in(self._left)]
            self._expected = self._left
            question = ChunksRequest(blob=self.blob.name, chunks=wanted).encode()
            raw = await self._session.network.request(self.peer, "want", question, timeout_s=SAMPLE_S)
            reply = decode_body(ChunksReply, raw)
            self._left &= ~set_of(reply.chunks)
            coming = self._left & ~set_of(reply.busy)
            while coming & self._left:
                await self._changed.wait()
            if not coming and self._left:
                await trio.sleep(BUSY_S)
        return "it does not have what we asked for"

    def landing(self, peer: PeerId, chunk: int, size: int) -> Landing | None:
        """Return memory for a chunk that we asked this peer for; None for other chunks."""
        expected = peer == self.peer and chunk < len(self.blob) and self._expected >> chunk & 1
        if not expected or size != self.blob.sizes[chunk] or chunk in self._coming:
            return None
        if self._began_at is None:
            self._began_at = trio.current_time()
        landing = self._coming[chunk] = Landing(memoryview(bytearray(size)), chunk_hash)
        return landing

    async def landed(self, peer: PeerId, chunk: int, landing: Landing | None) -> None:
        """Count a chunk that is complete.  landing: None if the transfer broke off."""
        if peer != self.peer or self._coming.pop(chunk, None) is None:
            return
        self._left &= ~(1 << chunk)
        if landing is not None and landing.found == self.blob.leaves[chunk]:
            self._bytes += len(landing.buffer)
            self._ended_at = trio.current_time()
        self._changed.set()
        self._changed = trio.Event()


def _first_chunks(sizes: Sequence[int]) -> list[int]:
    """Return the first chunks that together have at most `SAMPLE_BYTES`, but at least one chunk."""
    chunks, total = [0], sizes[0]
    for chunk in range(1, min(len(sizes), MAX_WANTED)):
        total += sizes[chunk]
        if total > SAMPLE_BYTES:
            break
        chunks.append(chunk)
    return chunks


# ------------------------------------------------------------------------------------------------------------------------
# The fetch of one blob.


TICK_S = 0.25
ASK_TIMEOUT_S = 10.0
ASK_AGAIN_S = 5.0
"""Seconds until a peer that did not answer, or had no chunk for us, is asked again about its chunks."""
ASK_SOON_S = 0.5
"""The same interval while nobody has the missing chunks: in a round, other peers get them at the same time as we do."""
HOPE_S = 3.0
"""Seconds after which a download is abandoned if no peer has the missing chunks and no peer is fetching them."""
PROMISE_S = 20.0
"""Longest wait for chunks that other peers are fetching (s): once nobody has the blob, they may wait for each other."""
PATIENCE_S, SLOWEST_BYTES_PER_S = 60.0, 32 << 10
"""Seconds without a chunk after which a download is abandoned, whatever chunks other peers claim to have.  Chunks under way
extend it by the time that they take at this rate.  The beginning of a chunk is not progress: a liar could begin chunks for
ever."""
MAX_WAITING = 256
"""Most peers that wait for a place among the sources."""
MOST_LANDING_BYTES = 2 * MOST_OWED_BYTES
"""Most bytes of chunks of one blob under way to us; at most a quarter of them from one peer."""


NO_BLOB = "this peer does not have that blob"
"""Refusal of a peer that does not have a blob, or no longer has it."""


@dataclass
class _Contact:
    """A peer that was asked about its chunks.

    is_silent: True until it has answered.  promises: True if it says that more chunks will come to it.  is_origin: True if
    it shows us chunks that it shows to no other peer.
    """

    asked_at: float
    is_silent: bool = True
    promises: bool = False
    is_origin: bool = False


class Fetch:
    """Fetch of the chunks that a transfer lacks; they are written to `places`.

    on_chunk: called for each chunk that comes.  mirrors: mirrors that have the blob as well; None if there are none.
    """

    def __init__(
        self,
        session: Session,
        members: Members,
        reliability: Reliability,
        transfer: Transfer,
        places: ChunkPlaces,
        on_chunk: Callable[[], None],
        mirrors: Mirrors | None,
    ) -> None:
        self.transfer, self.blob = transfer, transfer.blob
        self.offer = Offer(len(self.blob), transfer.here, members.has_member)
        self._session, self._reliability = session, reliability
        self._places, self._on_chunk, self._mirrors = places, on_chunk, mirrors
        self._reading = trio.Lock()
        """Held while a range is read from a mirror."""
        self._download = Download(
            self.blob, transfer.here, session.me.encode() + self.blob.name, transfer.wanted, reliability
        )
        self._failure: StoreFailed | None = None
        self._contacts: dict[PeerId, _Contact] = {}
        self._waiting: dict[PeerId, None] = {}
        """Peers that may have chunks, and will be asked when there is a place for them."""
        self._landings: dict[tuple[PeerId, int], Landing] = {}
        self._moved_at = self._hoped_at = trio.current_time()
        self._over = trio.Event()
        self._tasks = TaskGroup()

    @property
    def here(self) -> ChunkSet:
        """Chunks that can be read."""
        return self._download.here

    @property
    def held(self) -> Held:
        """Chunks that are here, for others to fetch."""
        here = self.here

        def read(chunk: int) -> bytes | None:
            return self._places.read(chunk) if here >> chunk & 1 else None

        return Held(len(self.blob), here, read, lambda: self.blob.leaves)

    def asked_for(self, chunk: int) -> list[str]:
        """Return the sources that were asked for a chunk and have not sent it yet."""
        return self._download.asked_for(chunk)

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self, sources: Sequence[PeerId]) -> bool:
        """Fetch until all wanted chunks are here, or nobody has the missing ones; return True if all are here.

        Raises `StoreFailed` if a chunk cannot be written.
        """
        self._moved_at = self._hoped_at = trio.current_time()
        try:
            async with self._tasks.open() as nursery:
                self.add_sources(sources)
                while self._download.missing and self._failure is None and not self._is_hopeless():
                    with trio.move_on_after(TICK_S):
                        await self._over.wait()
                    self._send(self._download.tick(trio.current_time()))
                    self.transfer.update(self.here, len(self._download.sources), trio.current_time())
                    self._ask_again()
                    self._ask_waiting()
                    self._use_mirror()
                nursery.cancel_scope.cancel()
        finally:
            self.transfer.update(self.here, len(self._download.sources), trio.current_time())
            self.transfer.end(trio.current_time())
        if self._failure is not None:
            raise self._failure
        return not self._download.missing

    def _is_hopeless(self) -> bool:
        now = trio.current_time()
        promises = any(contact.promises for contact in self._contacts.values())
        if self._download.has_hope() or (promises and now - self._moved_at < PROMISE_S):
            self._hoped_at = now
        landing_bytes = sum(len(landing.buffer) for landing in self._landings.values())
        landing_bytes += self.blob.sizes[0] if self._reading.locked() else 0
        patience_s = PATIENCE_S + landing_bytes / SLOWEST_BYTES_PER_S
        return now - self._hoped_at > HOPE_S or now - self._moved_at > patience_s

    # -- sources ------------------------------------------------------------------------------------------------------

    def met(self, peer: PeerId, chunks: ChunkSet) -> None:
        """Note that a peer has asked us for this blob and already has these chunks of it."""
        self._consider(peer)  # so that it tells us about further chunks that it gets
        if chunks:
            self._send(self._download.has(peer, chunks, trio.current_time()))

    def add_sources(self, peers: Sequence[PeerId]) -> None:
        """Ask these peers about their chunks as well."""
        for peer in self._reliability.in_order(peers):
            self._consider(peer)

    def got(self, peer: PeerId, chunks: ChunkSet) -> None:
        """Note that a source now has these chunks as well."""
        self._send(self._download.got(peer, chunks, trio.current_time()))

    def gone(self, peer: PeerId) -> None:
        """Forget a peer that is no longer connected."""
        self._waiting.pop(peer, None)
        self._drop(peer)

    def _drop(self, peer: PeerId) -> None:
        self._contacts.pop(peer, None)
        self._send(self._download.gone(peer, trio.current_time()))

    def _has_room(self, newcomer: PeerId) -> bool:
        """Return True if one more peer may be asked about its chunks; drop another peer to make room.

        A peer is dropped if it is useless, or withholds all that it claims, or if it has no merit and the newcomer has some.
        It then waits for another place, unless it is useless.
        """
        if len(self._contacts) < MOST_SOURCES:
            return True
        now, sending = trio.current_time(), {peer for peer, _ in self._landings}
        may_displace = self._reliability.is_proven(newcomer)
        for peer in reversed(self._reliability.in_order(self._contacts)):
            is_withholding = self._download.is_withholding(peer) and peer not in sending
            is_displaced = may_displace and peer not in sending and not self._reliability.is_proven(peer)
            is_useless = now - self._contacts[peer].asked_at > ASK_TIMEOUT_S and not self._download.has_use_of(peer)
            if is_withholding or is_displaced or is_useless:
                self._drop(peer)
                if is_withholding or is_displaced:
                    self._wait(peer)
                return True
        return False

    def _consider(self, peer: PeerId) -> None:
        """Ask a peer about its chunks now, or when there is a place for it."""
        if peer not in self._contacts and peer not in self._waiting:
            if not self._waiting and self._has_room(peer):
                self._ask(peer)
            else:
                self._wait(peer)

    def _wait(self, peer: PeerId) -> None:
        """Let a peer wait for a place; if too many wait, the least reliable of them leaves."""
        self._waiting[peer] = None
        if len(self._waiting) > MAX_WAITING:
            del self._waiting[self._reliability.in_order(self._waiting)[-1]]

    def _ask_waiting(self) -> None:
        """Give free places to the most reliable peers that wait, among equals to those that have waited longest."""
        for peer in self._reliability.in_order(self._waiting):
            if not self._has_room(peer):
                return
            del self._waiting[peer]
            self._ask(peer)

    def _ask(self, peer: PeerId) -> None:
        may_ask = peer != self._session.me and peer not in self._download.barred
        if may_ask and self._tasks.start(self._ask_what_it_has, peer):
            contact = self._contacts.setdefault(peer, _Contact(0.0))
            contact.asked_at, contact.is_silent = trio.current_time(), True

    def _ask_again(self) -> None:
        now, pause_s = trio.current_time(), ASK_AGAIN_S if self._download.has_hope() else ASK_SOON_S
        for peer, contact in list(self._contacts.items()):
            if now - contact.asked_at > pause_s and not contact.is_silent and not self._download.has_use_of(peer):
                self._ask(peer)

    async def _ask_what_it_has(self, peer: PeerId) -> None:
        question = BlobRequest(blob=self.blob.name, chunks=to_bitmap(self.here, len(self.blob)))
        try:
            raw = await self._session.network.request(peer, "blob", question.encode(), timeout_s=ASK_TIMEOUT_S)
            reply = decode_body(BlobReply, raw)
            chunks = from_bitmap(reply.chunks, len(self.blob))
        except (NetworkError, Malformed) as error:
            if (contact := self._contacts.get(peer)) is not None:
                contact.promises = contact.is_silent = False
            self._note_gone(peer, error)
            if isinstance(error, Malformed):
                self._session.emit(Dropped(peer, "answer about a blob", str(error)))
            return
        if (contact := self._contacts.get(peer)) is None:
            return  # the peer left meanwhile
        contact.is_silent, contact.promises, contact.is_origin = False, reply.more, reply.apart
        self._send(self._download.has(peer, chunks, trio.current_time()))
        self._use_mirror()
        connected = self._session.network.connected()
        for other in map(PeerId, reply.neighbours):
            if other in connected:
                self._consider(other)

    def _note_gone(self, peer: PeerId, error: Exception) -> None:
        """Forget what a source has shown if it refuses because it has removed the blob."""
        if isinstance(error, Refused) and str(error) == NO_BLOB and self._download.has_use_of(peer):
            self._send(self._download.has(peer, 0, trio.current_time()))

    # -- chunks -------------------------------------------------------------------------------------------------------

    def landing(self, peer: PeerId, chunk: int, size: int) -> Landing | None:
        """Return memory for a chunk that we asked this peer for; None for other chunks."""
        if chunk >= len(self.blob) or size != self.blob.sizes[chunk] or not self._download.expects(peer, chunk):
            return None
        sizes = [(other, len(landing.buffer)) for (other, _), landing in self._landings.items()]
        from_it = sum(bytes_ for other, bytes_ in sizes if other == peer)
        if (peer, chunk) in self._landings or (from_it and from_it + size > MOST_LANDING_BYTES // 4):
            return None
        if sum(bytes_ for _, bytes_ in sizes) + size > MOST_LANDING_BYTES:
            return None
        self._landings[peer, chunk] = landing = Landing(memoryview(bytearray(size)), chunk_hash)
        return landing

    async def landed(self, peer: PeerId, chunk: int, landing: Landing | None) -> None:
        """Check a chunk that has arrived, and write it to its place if it is right and not here yet.

        landing: None if the transfer broke off.
        """
        try:
            if landing is None or chunk >= len(self.blob) or len(landing.buffer) != self.blob.sizes[chunk]:
                return
            if landing.found == self.blob.leaves[chunk]:
                await self._keep(chunk, landing.buffer, peer)
            else:
                self._session.emit(Dropped(peer, "chunk", "its bytes differ from the certified bytes"))
                self._send(self._download.wrong(peer, trio.current_time()))
        finally:
            self._landings.pop((peer, chunk), None)

    async def _keep(self, chunk: int, data: memoryview, source: str) -> None:
        """Write a chunk that is right to its place, unless it is here."""
        try:
            if not self.here >> chunk & 1:
                await self._places.write(chunk, data, source)
        except StoreFailed as error:
            self._failure = error
            self._over.set()
            return
        if not self.here >> chunk & 1:
            self._moved_at = trio.current_time()
            sender = self._contacts.get(PeerId(source))
            self.offer.add(chunk, is_first=sender is not None and sender.is_origin)
            self._send(self._download.came(source, chunk, trio.current_time()))
            self._on_chunk()

    def _send(self, wants: Wants) -> None:
        """Ask the sources for chunks; end the fetch if nothing is missing."""
        for source, chunks in wants.items():
            if self._download.sources[source].is_mirror:
                self._tasks.start(self._read, source, chunks)
            else:
                self._tasks.start(self._want, PeerId(source), chunks)
        if not self._download.missing:
            self._over.set()

    async def _want(self, peer: PeerId, chunks: list[int]) -> None:
        question = ChunksRequest(blob=self.blob.name, chunks=chunks, spare=self.transfer.purpose.spare)
        try:
            raw = await self._session.network.request(peer, "want", question.encode(), timeout_s=ASK_TIMEOUT_S)
            reply = decode_body(ChunksReply, raw)
            refused, busy = (set_of(each) & set_of(chunks) for each in (reply.chunks, reply.busy))
        except (NetworkError, Malformed) as error:
            self._send(self._download.unanswered(peer, chunks, trio.current_time()))
            self._note_gone(peer, error)
            return
        if refused:
            self._send(self._download.turned_down(peer, [*chunks_in(refused)], trio.current_time()))
        if busy:
            self._send(self._download.busy(peer, [*chunks_in(busy & ~refused)], trio.current_time()))

    # -- mirrors ------------------------------------------------------------------------------------------------------

    def _use_mirror(self) -> None:
        """Make the first mirror that may be asked a source, unless another mirror is a source already."""
        if self._mirrors is not None and not any(known.is_mirror for known in self._download.sources.values()):
            for url in self._mirrors.ready(self.blob.name)[:1]:
                self._send(self._download.has(url, self.blob.all, trio.current_time(), is_mirror=True))

    async def _read(self, mirror: str, chunks: list[int]) -> None:
        """Read chunks from a mirror, in one range for each run of consecutive ones; use another mirror if it fails."""
        assert self._mirrors is not None

        async def keep(chunk: int, data: bytes) -> None:
            await self._keep(chunk, memoryview(data), mirror)

        async with self._reading:  # a range that is overdue continues
            for run in _runs([chunk for chunk in chunks if not self.here >> chunk & 1]):
                if mirror not in self._download.sources:
                    return
                if not await self._mirrors.read_chunks(mirror, self.blob, run, keep):
                    self._send(self._download.gone(mirror, trio.current_time()))
                    self._use_mirror()


def _runs(chunks: Sequence[int]) -> list[range]:
    """Return ranges of consecutive chunks."""
    runs: list[range] = []
    for chunk in sorted(chunks):
        start = runs.pop().start if runs and runs[-1].stop == chunk else chunk
        runs.append(range(start, chunk + 1))
    return runs
