"""One blob on its way to us: the trio shell around `protocol.blobs.download.Download`.

A chunk is received into memory, checked, and only then written to its place.  From that moment on it is offered to others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from protocol.blobs.blob import Blob, ChunkSet, chunks_in, from_bitmap, set_of, to_bitmap
from protocol.blobs.download import (
    MOST_OWED_BYTES,
    MOST_SOURCES,
    Busy,
    Came,
    Download,
    DownloadEvent,
    SourceGone,
    SourceGot,
    SourceHas,
    Tick,
    TurnedDown,
    Unanswered,
    Want,
    Wrong,
)
from protocol.blobs.messages import BlobReply, BlobRequest, ChunksReply, ChunksRequest
from protocol.blobs.offers import OpenOffer
from protocol.blobs.transfer import Purpose, Transfer
from protocol.events.events import Dropped, Event
from protocol.transport.interface import Landing, Members, NetworkError, Session
from protocol.wire.body import decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash, chunk_hash
from protocol.wire.identity import PeerId

TICK_S = 0.25
ASK_TIMEOUT_S = 10.0
ASK_AGAIN_S = 5.0
"""Until a peer that did not answer, or had nothing, is asked again what it has."""
ASK_SOON_S = 0.5
"""The same, while nobody has what is missing: in a round it comes to others at the same time as to us."""
HOPE_S = 3.0
"""A download of which nobody has what is missing, and nobody fetches it either, is given up after so long."""
PROMISE_S = 20.0
"""That others fetch it is a hope for so long only: they may hope for each other, and nobody has it any more."""
PATIENCE_S, SLOWEST_BYTES_PER_S = 60.0, 32 << 10
"""It is given up after so long without a chunk, whatever others say that they have; those that are under way get the time
that they take at this rate.  To begin one is no progress: a liar could begin for ever."""
MOST_LANDING_BYTES = 2 * MOST_OWED_BYTES
"""Chunks under way to us, of one blob; those of one peer a quarter of it."""


class Fetch:
    """Fetches the chunks of `blob` that are missing into `into`.  here: those that are there.

    on_chunk: called for each that comes.  tell: told how far it is.
    """

    def __init__(
        self,
        session: Session,
        members: Members,
        blob: Blob,
        into: memoryview,
        here: ChunkSet,
        purpose: Purpose,
        on_chunk: Callable[[], None],
        tell: Callable[[Event], None],
    ) -> None:
        self.blob, self.offer = blob, OpenOffer(len(blob), here, members.has_member)
        self._session, self._into, self._on_chunk = session, into, on_chunk
        self.transfer = Transfer(purpose, blob, here, trio.current_time(), tell)
        self._download = Download(blob, here, session.me.encode() + blob.name)
        self._asked: dict[PeerId, float] = {}
        self._unanswered: set[PeerId] = set()
        """Peers that were asked what they have, and have not answered yet."""
        self._promising: set[PeerId] = set()
        """Peers that say that more will come to them."""
        self._apart: set[PeerId] = set()
        """Origins: they show us chunks that they show nobody else."""
        self._landings: dict[tuple[PeerId, int], Landing] = {}
        self._moved_at = self._hoped_at = trio.current_time()
        self._over = trio.Event()
        self._nursery: trio.Nursery | None = None

    # -- what is here (`protocol.blobs.shelf.Held`) -----------------------------------------------------------------

    @property
    def count(self) -> int:
        """Chunks of the whole blob."""
        return len(self.blob)

    @property
    def here(self) -> ChunkSet:
        """Those that can be read."""
        return self._download.here

    @property
    def is_urgent(self) -> bool:
        """Nobody waits for us to pass it on."""
        return False

    def leaves(self) -> Sequence[Hash]:
        """The hashes of all chunks."""
        return self.blob.leaves

    def read(self, chunk: int) -> bytes | None:
        """The bytes of a chunk that is here."""
        return bytes(self._into[self.blob.span(chunk)]) if self.here >> chunk & 1 else None

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self, sources: Sequence[PeerId]) -> bool:
        """Until all is here, or nobody has what is missing; whether all is here."""
        self._moved_at = self._hoped_at = trio.current_time()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for peer in sources[:MOST_SOURCES]:
                    self._ask(peer)
                while self._download.missing and not self._is_hopeless():
                    with trio.move_on_after(TICK_S):
                        await self._over.wait()
                    self._handle(Tick())
                    self.transfer.update(self.here, self._download.sources, trio.current_time())
                    self._ask_again()
                nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
            self.transfer.update(self.here, self._download.sources, trio.current_time())
            self.transfer.end(trio.current_time())
        return not self._download.missing

    def _is_hopeless(self) -> bool:
        now = trio.current_time()
        if self._download.has_hope() or (self._promising and now - self._moved_at < PROMISE_S):
            self._hoped_at = now
        landing_bytes = sum(len(landing.buffer) for landing in self._landings.values())
        patience_s = PATIENCE_S + landing_bytes / SLOWEST_BYTES_PER_S
        return now - self._hoped_at > HOPE_S or now - self._moved_at > patience_s

    # -- sources ------------------------------------------------------------------------------------------------------

    def met(self, peer: PeerId, chunks: ChunkSet) -> None:
        """A peer asks us for this blob, and has some of it itself."""
        if peer not in self._asked and self._has_room():
            self._ask(peer)  # so that it tells us what comes to it, too
        if chunks:
            self._handle(SourceHas(peer, chunks))

    def add_sources(self, peers: Sequence[PeerId]) -> None:
        """Ask these, too, what they have."""
        for peer in peers:
            if peer not in self._asked and self._has_room():
                self._ask(peer)

    def got(self, peer: PeerId, chunks: ChunkSet) -> None:
        """A source has these, too, now."""
        self._handle(SourceGot(peer, chunks))

    def gone(self, peer: PeerId) -> None:
        """A peer is not connected any more."""
        self._asked.pop(peer, None)
        self._promising.discard(peer)
        self._apart.discard(peer)
        self._handle(SourceGone(peer))

    def _has_room(self) -> bool:
        """Whether one more peer may be asked what it has; one that was of no use makes room."""
        if len(self._asked) < MOST_SOURCES:
            return True
        now = trio.current_time()
        for peer, at in self._asked.items():
            if now - at > ASK_TIMEOUT_S and not self._download.has_use_of(peer):
                self.gone(peer)
                return True
        return False

    def _ask(self, peer: PeerId) -> None:
        if self._nursery is not None and peer != self._session.me and peer not in self._download.barred:
            self._asked[peer] = trio.current_time()
            self._nursery.start_soon(self._ask_what_it_has, peer)

    def _ask_again(self) -> None:
        now, pause_s = trio.current_time(), ASK_AGAIN_S if self._download.has_hope() else ASK_SOON_S
        for peer, at in list(self._asked.items()):
            if now - at > pause_s and peer not in self._unanswered and not self._download.has_use_of(peer):
                self._ask(peer)

    async def _ask_what_it_has(self, peer: PeerId) -> None:
        question = BlobRequest(blob=self.blob.name, chunks=to_bitmap(self.here, self.count))
        try:
            self._unanswered.add(peer)
            raw = await self._session.network.request(peer, "blob", question.encode(), timeout_s=ASK_TIMEOUT_S)
            reply = decode_body(BlobReply, raw)
            chunks = from_bitmap(reply.chunks, self.count)
        except (NetworkError, Malformed) as error:
            self._promising.discard(peer)
            if isinstance(error, Malformed):
                self._session.emit(Dropped(peer, "answer about a blob", str(error)))
            return
        finally:
            self._unanswered.discard(peer)
        if peer not in self._asked:
            return  # it is gone meanwhile
        (self._promising.add if reply.more else self._promising.discard)(peer)
        (self._apart.add if reply.apart else self._apart.discard)(peer)
        self._handle(SourceHas(peer, chunks))
        connected = self._session.network.connected()
        for other in map(PeerId, reply.neighbours):
            if other in connected and other not in self._asked and self._has_room():
                self._ask(other)

    # -- chunks -------------------------------------------------------------------------------------------------------

    def landing(self, peer: PeerId, chunk: int, size: int) -> Landing | None:
        """Memory for a chunk that we asked this peer for; None for others."""
        if chunk >= self.count or size != self.blob.sizes[chunk] or not self._download.expects(peer, chunk):
            return None
        sizes = [(other, len(landing.buffer)) for (other, _), landing in self._landings.items()]
        from_it = sum(bytes_ for other, bytes_ in sizes if other == peer)
        if (peer, chunk) in self._landings or (from_it and from_it + size > MOST_LANDING_BYTES // 4):
            return None
        if sum(bytes_ for _, bytes_ in sizes) + size > MOST_LANDING_BYTES:
            return None
        self._landings[peer, chunk] = landing = Landing(memoryview(bytearray(size)), chunk_hash)
        return landing

    def broke_off(self, peer: PeerId, chunk: int) -> None:
        """The rest of a chunk does not come."""
        self._landings.pop((peer, chunk), None)

    def landed(self, peer: PeerId, chunk: int, landing: Landing) -> None:
        """A chunk has arrived; it is written to its place if it is right, and not here yet."""
        self._landings.pop((peer, chunk), None)
        if landing.found != self.blob.leaves[chunk]:
            self._session.emit(Dropped(peer, "chunk", "its bytes are not those that were certified"))
            self._handle(Wrong(peer, chunk))
        elif not self.here >> chunk & 1:
            self._into[self.blob.span(chunk)] = landing.buffer
            self._moved_at = trio.current_time()
            self.offer.add(chunk, is_first=peer in self._apart)
            self._handle(Came(peer, chunk))
            self._on_chunk()

    def _handle(self, event: DownloadEvent) -> None:
        wants = self._download.handle(event, trio.current_time())
        if self._nursery is not None:
            for want in wants:
                self._nursery.start_soon(self._want, want)
        if not self._download.missing:
            self._over.set()

    async def _want(self, want: Want) -> None:
        question = ChunksRequest(blob=self.blob.name, chunks=list(want.chunks))
        try:
            raw = await self._session.network.request(want.peer, "want", question.encode(), timeout_s=ASK_TIMEOUT_S)
            reply = decode_body(ChunksReply, raw)
            refused, busy = (set_of(chunks) & set_of(want.chunks) for chunks in (reply.chunks, reply.busy))
        except (NetworkError, Malformed):
            self._handle(Unanswered(want.peer, want.chunks))
            return
        if refused:
            self._handle(TurnedDown(want.peer, tuple(chunks_in(refused))))
        if busy:
            self._handle(Busy(want.peer, tuple(chunks_in(busy & ~refused))))
