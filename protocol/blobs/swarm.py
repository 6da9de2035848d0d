"""SHARDCAST: all large data moves through one swarm of checked chunks.

This is a peer's part in the swarm: its fetches, its offers, and its answers to others.  A peer that fetches a blob asks
other peers which chunks they have, is told of new chunks as they receive them, and asks for chunks, which are pushed over
the bulk data plane.  Meanwhile it offers its own chunks.  Checkpoints, results and weights move in no other way.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import islice
from math import inf

import trio

from protocol.blobs.blob import (
    MAX_NEIGHBOURS,
    MAX_NEWS,
    Blob,
    BlobReply,
    BlobRequest,
    ChunkHeader,
    ChunkNews,
    ChunkSet,
    ChunksReply,
    ChunksRequest,
    LeavesRequest,
    chunks_in,
    from_bitmap,
    read_chunk_header,
    set_of,
    to_bitmap,
)
from protocol.blobs.mirrors import Mirrors
from protocol.blobs.offers import Offer, OriginOffer
from protocol.blobs.reliability import Reliability
from protocol.blobs.store import Held
from protocol.blobs.transfer import NO_BLOB, ChunkPlaces, Fetch, Purpose, Sample, Sampled, Transfer
from protocol.blobs.uploads import Uploads
from protocol.events.events import Event, TransferProgress
from protocol.offload import Offload
from protocol.transport.handlers import PeerMoment, answers, at, landed, lands
from protocol.transport.interface import Landing, Members, NetworkError, Refused, Session
from protocol.transport.task_group import TaskGroup
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.questions import LeavesReply

NEWS_S = 0.1
"""Seconds between two reports of new chunks to other peers: many small messages cost more than they gain."""
NEWS_TIMEOUT_S = 10.0
MAX_ASKERS = 64
"""Most peers remembered, for all blobs together, as fetching a blob that is here whole; they are told of each other."""


class Swarm:
    """One node's part in the swarm; call `run` once.  find: returns a blob that is on its disk (`Shelf.find`).

    is_active: tells members that are relied on from the beginning; all members by default.

    reliability: reliability of the peers that send us chunks, over all fetches.  serves: True if other peers may ask us for
    chunks; chunks that were already promised are sent even if it is False.

    withheld: blobs whose chunks nobody gets from us, not even while we fetch them; their hashes are given.
    """

    def __init__(
        self,
        session: Session,
        members: Members,
        find: Callable[[Hash], Held | None],
        offload: Offload,
        is_active: Callable[[PeerId], bool] | None = None,
        withheld: Collection[Hash] = (),
    ) -> None:
        self._session, self.members, self._find, self._offload = session, members, find, offload
        self._withheld = withheld
        self.reliability = Reliability(is_active or members.has_member)
        self._uploads = Uploads(session.network, members, self._read, self._fed)
        self._random = random.Random(session.me)
        self._fetches: dict[Hash, list[Fetch]] = {}
        self._origins: dict[Hash, OriginOffer] = {}
        self._samples: list[Sample] = []
        self._untold: dict[tuple[PeerId, Hash], ChunkSet] = {}
        """Chunks that a peer has not been told of yet; for each entry, a task is telling the peer."""
        self._tasks = TaskGroup()
        self.serves = True
        self._askers: deque[tuple[Hash, PeerId]] = deque(maxlen=MAX_ASKERS)

    @property
    def up_bytes(self) -> int:
        """Bytes of chunks that other peers got from us."""
        return self._uploads.up_bytes

    async def run(self) -> None:
        """Serve chunks and tell other peers of new chunks, until cancelled."""
        async with self._tasks.open() as nursery:  # a fetch that ends later sends no notices
            nursery.start_soon(self._uploads.run)
            while True:
                for name, offer in self._offers():
                    self._spread(name, offer, trio.current_time())
                await trio.sleep(NEWS_S)

    def gives(self, name: Hash) -> bool:
        """Return True unless the chunks of a blob are withheld from all other peers."""
        return name not in self._withheld

    def serve(self, on: bool) -> None:
        """Set whether other peers may ask us for chunks."""
        self.serves = on

    # -- fetching and offering ----------------------------------------------------------------------------------------

    async def fetch(
        self,
        blob: Blob,
        into: memoryview | ChunkPlaces,
        sources: Sequence[PeerId],
        purpose: Purpose,
        *,
        here: ChunkSet = 0,
        on_chunk: Callable[[], None] = lambda: None,
        mirrors: Mirrors | None = None,
    ) -> bool:
        """Fetch the missing chunks of a blob into `into`; return True once all are there, False if no peer has some chunk.

        into: a buffer of the blob's size, or places for the chunks that are wanted.  sources: peers to ask first; they name
        further peers.  here: chunks that are already in `into`.  mirrors: mirrors that have the blob as well.

        Raises `StoreFailed` if `into` cannot be written.
        """
        others = self._fetches.setdefault(blob.name, [])

        def tell(event: Event) -> None:
            # only one fetch of a blob reports; it is not named here, or its file would stay open when it is over
            if others[0].transfer is transfer:
                self._session.emit(event)

        places = ChunkPlaces.in_buffer(blob, into) if isinstance(into, memoryview) else into
        transfer = Transfer(purpose, blob, here, trio.current_time(), tell, places.wanted)
        fetch = Fetch(self._session, self.members, self.reliability, transfer, places, on_chunk, mirrors)
        others.append(fetch)
        try:
            return await fetch.run(sources)
        finally:
            if self.gives(blob.name):
                self._spread(blob.name, fetch.offer, inf)  # all chunks that were not told yet
            others.remove(fetch)
            if not others:
                del self._fetches[blob.name]

    async def sample(self, blob: Blob, peer: PeerId) -> Sampled:
        """Measure the speed at which a peer sends us some chunks of a blob that it should have; the chunks are discarded."""
        sample = Sample(self._session, blob, peer)
        self._samples.append(sample)
        try:
            return await sample.run()
        finally:
            self._samples.remove(sample)

    def add_sources(self, name: Hash, sources: Sequence[PeerId]) -> None:
        """Add sources to the fetches of a blob."""
        for fetch in self._fetches.get(name, []):
            fetch.add_sources(sources)

    def asked_for(self, name: Hash, chunk: int) -> list[str]:
        """Return the peers and mirrors that were asked for a chunk of a blob and have not sent it yet."""
        return [source for fetch in self._fetches.get(name, []) for source in fetch.asked_for(chunk)]

    def originate(self, name: Hash, count: int) -> None:
        """Offer this blob of `count` chunks, which only we have, in such a way that each chunk leaves us once."""
        if name not in self._origins:
            self._origins[name] = OriginOffer(count, self._random, self.members.has_member)

    def end_origin(self, name: Hash) -> None:
        """End our offer as the origin of a blob: we are about to lose the blob, or other peers have it."""
        self._origins.pop(name, None)

    def only_here(self, name: Hash) -> ChunkSet:
        """Return the chunks of a blob we originate that would be lost with us, as far as we know."""
        origin = self._origins.get(name)
        return origin.only_here if origin is not None else 0

    def transfers(self) -> list[TransferProgress]:
        """Return the progress of each blob that is being fetched now."""
        return [fetches[0].transfer.told() for fetches in self._fetches.values()]

    @at(PeerMoment.DISCONNECTED)
    def gone(self, peer: PeerId) -> None:
        """Forget a peer that is no longer connected."""
        self._uploads.forget(peer)
        for _, offer in self._offers():
            offer.leave(peer)
        for fetches in [*self._fetches.values()]:
            for fetch in [*fetches]:
                fetch.gone(peer)

    def _offers(self) -> list[tuple[Hash, Offer]]:
        fetched = [(name, fetch.offer) for name in self._fetches for fetch in self._shared_fetches(name)]
        return [*fetched, *self._origins.items()]

    def _shared_fetches(self, name: Hash) -> list[Fetch]:
        """Return the fetches of a blob whose chunks others may get from us meanwhile."""
        return self._fetches.get(name, []) if self.gives(name) else []

    def _fed(self, peer: PeerId, name: Hash, chunk: int) -> None:
        for offered, offer in self._offers():
            if offered == name:
                offer.fed(peer, chunk, trio.current_time())

    def _spread(self, name: Hash, offer: Offer, now: float) -> None:
        """Tell each peer of an offer's new chunks once it has answered the last notice: slow peers are told less often."""
        if not self.serves:
            return  # the offer keeps the new chunks for later
        for peer, chunks in offer.news(now).items():
            if (peer, name) in self._untold:
                self._untold[peer, name] |= chunks
            elif self._tasks.start(self._tell, peer, name):
                self._untold[peer, name] = chunks

    async def _tell(self, peer: PeerId, name: Hash) -> None:
        try:
            while told := list(islice(chunks_in(self._untold[peer, name]), MAX_NEWS)):
                self._untold[peer, name] &= ~set_of(told)
                news = ChunkNews(blob=name, chunks=told)
                await self._session.network.request(peer, "news", news.encode(), timeout_s=NEWS_TIMEOUT_S)
        except NetworkError:
            pass  # the peer asks us again once it knows of no chunk to get from us
        finally:
            del self._untold[peer, name]

    # -- questions of other peers -------------------------------------------------------------------------------------

    @answers("blob", BlobRequest)
    async def answer_blob(self, peer: PeerId, question: BlobRequest) -> bytes:
        """Return the chunks of a blob that the peer can get from us, and other peers that fetch the blob."""
        if not self.serves:
            raise Refused("this peer serves no chunks while it rests")
        name, now = Hash(question.blob), trio.current_time()
        held, fetches, origin = await self._held(name), self._shared_fetches(name), self._origins.get(name)
        has = from_bitmap(question.chunks, held.count)
        neighbours = [other for asked, other in self._askers if asked == name]
        if fetches:
            shown = fetches[0].offer.join(peer, has, now)
            neighbours = fetches[0].offer.guests()
            fetches[0].met(peer, has)
        elif origin is not None:
            shown = origin.join(peer, has, now)
            neighbours = origin.guests()
        else:
            shown = held.here
            if (name, peer) not in self._askers:
                self._askers.append((name, peer))
        others = [str(other) for other in neighbours if other != peer]
        self._random.shuffle(others)
        more = bool(fetches) or origin is not None
        apart = not fetches and origin is not None
        bitmap = to_bitmap(shown, held.count)
        return BlobReply(chunks=bitmap, more=more, apart=apart, neighbours=others[:MAX_NEIGHBOURS]).encode()

    @answers("news", ChunkNews)
    async def answer_news(self, peer: PeerId, news: ChunkNews) -> bytes:
        """Take note of the chunks that a peer has got."""
        name = Hash(news.blob)
        for fetch in [*self._fetches.get(name, [])]:
            if max(news.chunks) < len(fetch.blob):
                fetch.offer.got(peer, set_of(news.chunks))
                fetch.got(peer, set_of(news.chunks))
        if name in self._origins:
            self._origins[name].got(peer, set_of(news.chunks))
        return b""

    @answers("want", ChunksRequest)
    async def answer_want(self, peer: PeerId, wanted: ChunksRequest) -> bytes:
        """Queue pushes of chunks to a peer; return the chunks that it will not get."""
        name = Hash(wanted.blob)
        if not self.serves:
            return ChunksReply(chunks=list(wanted.chunks), busy=[]).encode()
        here = (await self._held(name)).here
        absent = [chunk for chunk in wanted.chunks if not here >> chunk & 1]
        at_hand, spare = [chunk for chunk in wanted.chunks if here >> chunk & 1], wanted.spare
        busy = [chunk for chunk in at_hand if not self._uploads.want(peer, name, chunk, spare=spare)]
        return ChunksReply(chunks=absent, busy=busy).encode()

    @answers("leaves", LeavesRequest)
    async def answer_leaves(self, peer: PeerId, question: LeavesRequest) -> bytes:
        """Return the hashes of a blob's chunks."""
        leaves = await self._offload((await self._held(Hash(question.blob))).leaves)
        if leaves is None:
            raise Refused("this peer does not have its hashes")
        return LeavesReply(leaves=list(leaves)).encode()

    async def _held(self, name: Hash) -> Held:
        """Return a blob that is being fetched or on the disk.  Raises `Refused` if it is not here."""
        fetches = self._fetches.get(name)
        held: Held | None = fetches[0].held if fetches else await self._offload(self._find, name)
        if held is None:
            raise Refused(NO_BLOB)
        return held if self.gives(name) else replace(held, here=0)

    async def _read(self, name: Hash, chunk: int) -> tuple[bytes, bool] | None:
        """Return the bytes of a chunk, and True if a round may wait for them; None if they are no longer here."""
        try:
            held = await self._held(name)
        except Refused:
            return None
        data = await self._offload(held.read, chunk) if held.here >> chunk & 1 else None
        return (data, held.is_urgent) if data is not None else None

    # -- pushes -------------------------------------------------------------------------------------------------------

    @lands(read_chunk_header)
    async def open_push(self, peer: PeerId, header: ChunkHeader, size: int) -> Landing | None:
        """Return memory for a chunk that we asked this peer for; None for other chunks."""
        offered = (each.landing(peer, header.chunk, size) for each in self._receivers(header))
        return next((landing for landing in offered if landing is not None), None)

    @landed(read_chunk_header)
    async def finish_push(self, peer: PeerId, header: ChunkHeader, landing: Landing | None) -> None:
        """Deliver a complete chunk to its fetches and samples.  landing: None if the push broke off."""
        for each in self._receivers(header):
            await each.landed(peer, header.chunk, landing)

    def _receivers(self, header: ChunkHeader) -> list[Fetch | Sample]:
        samples = [sample for sample in self._samples if sample.blob.name == header.blob]
        return [*self._fetches.get(Hash(header.blob), []), *samples]
