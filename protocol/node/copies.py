"""Census of the copies of a run's data: each peer sometimes asks the others for a list of the data on their disks.

The census counts the data that the run needs to continue and that not every peer has anyway: the run's files, the weights
with which the run compares its own, and the blocks of its corpora.  (All members have the newest checkpoints and the results
since.)

An answer counts if it comes from the organiser, or from a live peer that a record names or that was admitted: in an open
run, one person could have a thousand peers that claim data which they lack.  Other peers are also asked, but their answers
only keep this peer from counting a block as lost.  One answer is a bitmap of at most 32 KiB; a peer asks `MAX_ASKED` others
at a time, and pauses until its questions cost less than `ANSWER_BYTES_PER_S`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import trio

from protocol.blobs.blob import ChunkSet, from_bitmap, to_bitmap
from protocol.corpora.copies import COPIES, BlockNumbers, CopyCounts, OtherCopies
from protocol.corpora.manifest import Block
from protocol.corpora.store import RunCorpora
from protocol.events.events import Dropped
from protocol.events.status import CopiesStatus
from protocol.membership.liveness import Membership
from protocol.offload import Offload
from protocol.run.manifest import Admission
from protocol.transport.handlers import answers
from protocol.transport.interface import NetworkError, Refused, Session
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import decode_body
from protocol.wire.identity import PeerId
from protocol.wire.questions import HoldingsReply, HoldingsRequest

MAX_ASKED, AT_ONCE = 16, 8
"""Most peers that are asked in turn, and at the same time."""
ASK_S, CALM_S, URGENT_S = 15.0, 120.0, 3.0
"""Seconds between two counts: usually, once there are enough copies of everything, and while this peer hands data over."""
ANSWER_BYTES_PER_S = 4096
TIMEOUT_S = 10.0
OWN_S = 2.0
"""Seconds for which the list of our own blocks is not read again."""
MAX_REMEMBERED = 64
"""Most peers whose last answers are remembered, also of peers that are gone."""


@dataclass(frozen=True)
class Holdings:
    """Data at a peer.  files, start: as in `HoldingsReply`.  blocks: the counted blocks.  at: trio time of its answer."""

    files: bool
    start: bool
    blocks: ChunkSet
    at: float


@dataclass(frozen=True)
class ShownBlocks:
    """Counted blocks that peers show.  numbers: None if we do not know, or if there are mirrors."""

    numbers: BlockNumbers | None
    blocks: ChunkSet = 0

    def lacks(self, block: Block) -> bool:
        """Return True if a counted block is at no peer."""
        if self.numbers is None:
            return False
        number = self.numbers.number(block)
        return number < self.numbers.counted and not self.blocks >> number & 1


class CopyCensus:
    """Census at one peer; call `run` once.

    has_files, has_start: return True if the run's files, and the weights with which it compares its own, are here.
    membership: the peers of the run.
    """

    def __init__(
        self,
        session: Session,
        corpora: RunCorpora,
        membership: Membership,
        offload: Offload,
        has_files: Callable[[], bool],
        has_start: Callable[[], bool],
    ) -> None:
        self._session, self._corpora, self.membership, self._offload = session, corpora, membership, offload
        self._has_files, self._has_start = has_files, has_start
        manifest = corpora.manifest
        self._is_open = manifest.admission is Admission.OPEN
        begins = bool(manifest.initial_bytes) and manifest.genesis is not None
        base = manifest.base
        elsewhere = base.size_bytes if base is not None and (base.mirrors or not base.share) else 0
        self._files_bytes = sum(file.size for file in manifest.files.values()) - elsewhere
        self._start_bytes = manifest.reference_bytes or (manifest.state_bytes if begins else 0)
        """Size of the weights with which the run compares its own; 0 if there are none."""
        self._numbers: BlockNumbers | None = None
        self._answers: dict[PeerId, Holdings] = {}
        """The last answers; the peer that was asked longest ago comes first."""
        self._ours = Holdings(False, False, 0, -inf)
        self._number = 0
        self._is_urgent = False
        self._wake = trio.Event()
        self.counted = trio.Event()
        """Set, and replaced, at each count."""

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Count again and again, until cancelled."""
        while True:
            self._wake = wake = trio.Event()
            await self._count()
            size = MAX_ASKED * (self._numbers.counted // 8 if self._numbers is not None else 0)
            status = self.status()
            is_calm = status is not None and not status.short_bytes and not status.missing_bytes
            pause_s = max(CALM_S if is_calm else ASK_S, size / ANSWER_BYTES_PER_S)
            with trio.move_on_after(URGENT_S if self._is_urgent else pause_s):
                await wake.wait()

    def hurry(self, on: bool) -> None:
        """Count often while `on`, because this peer then hands data over."""
        self._is_urgent = on
        self._wake.set()

    async def _count(self) -> None:
        if self._numbers is None and self._corpora.store is not None:
            self._numbers = await self._offload(BlockNumbers, self._corpora.store.shards)
        await self._own()
        connected = {*self._session.network.connected()}
        counted = {*self.peers()}
        ages = {peer: place for place, peer in enumerate(self._answers)}
        live = sorted(connected & {*self.membership.live_peers()}, key=lambda peer: ages.get(peer, -1))
        known, strangers = [peer for peer in live if peer in counted], [peer for peer in live if peer not in counted]
        asked = [*known[: MAX_ASKED - min(len(strangers), MAX_ASKED // 2)], *strangers][:MAX_ASKED]
        limit = trio.CapacityLimiter(AT_ONCE)
        async with trio.open_nursery() as nursery:
            for peer in asked:
                nursery.start_soon(self._ask, peer, limit)
        self._number += 1
        self.counted.set()
        self.counted = trio.Event()

    async def _own(self) -> Holdings:
        """Return our own data, as they were at most `OWN_S` ago."""
        if trio.current_time() - self._ours.at >= OWN_S:
            store = self._corpora.store
            blocks = await self._offload(self._numbers.here, store) if self._numbers is not None and store is not None else 0
            start = not self._start_bytes or await self._offload(self._has_start)
            self._ours = Holdings(self._has_files(), start, blocks, trio.current_time())
        return self._ours

    async def _ask(self, peer: PeerId, limit: trio.CapacityLimiter) -> None:
        async with limit:
            try:
                question = HoldingsRequest().encode()
                raw = await self._session.network.request(peer, "holdings", question, timeout_s=TIMEOUT_S)
                reply = decode_body(HoldingsReply, raw)
                blocks = from_bitmap(reply.blocks, self._numbers.counted) if self._numbers is not None else 0
            except Malformed as error:
                self._session.emit(Dropped(peer, "list of its data", str(error)))
                return
            except NetworkError:
                return
        self._answers.pop(peer, None)
        self._answers[peer] = Holdings(reply.files, reply.start, blocks, trio.current_time())
        if len(self._answers) > MAX_REMEMBERED:
            live = set(self.peers())
            del self._answers[next((other for other in self._answers if other not in live), next(iter(self._answers)))]

    @answers("holdings", HoldingsRequest)
    async def answer_holdings(self, peer: PeerId, question: HoldingsRequest) -> bytes:
        """Return a list of the run's data that we have."""
        if self._numbers is None and self._corpora.manifest.data.corpora:
            raise Refused("this peer has not opened the run's data yet")
        ours = await self._own()
        blocks = to_bitmap(ours.blocks, self._numbers.counted) if self._numbers is not None else b""
        return HoldingsReply(files=ours.files, start=ours.start, blocks=blocks).encode()

    # -- results ------------------------------------------------------------------------------------------------------

    def peers(self) -> list[PeerId]:
        """Return the other live peers whose copies count."""
        live = self.membership.live_peers()
        organiser = self._corpora.manifest.organiser
        return [peer for peer in live if not self._is_open or self.membership.has_member(peer) or peer == organiser]

    def others(self) -> OtherCopies:
        """Return the copies of blocks at other peers."""
        peers = self.peers()
        known = [self._answers[peer].blocks for peer in peers if peer in self._answers]
        shown = self.shown()
        blocks = shown.blocks if shown.numbers is not None else None
        return OtherCopies(tuple(peers), CopyCounts.among(known), blocks, self._number)

    def shown(self) -> ShownBlocks:
        """Return the blocks that any live peer shows."""
        if self._numbers is None or not self._number or self._corpora.manifest.data.mirrors:
            return ShownBlocks(None)
        shown = 0
        for peer, each in self._answers.items():
            shown |= each.blocks if self.membership.is_live(peer) else 0
        return ShownBlocks(self._numbers, shown)

    def last_holders(self, block: Block) -> list[PeerId]:
        """Return the peers that have shown a block, the most recent first; they may be gone."""
        if self._numbers is None or (number := self._numbers.number(block)) >= self._numbers.counted:
            return []
        found = [(each.at, peer) for peer, each in self._answers.items() if each.blocks >> number & 1]
        return [peer for _, peer in sorted(found, reverse=True)]

    def status(self, fetched_bytes: int = 0) -> CopiesStatus | None:
        """Return the copies for people; None before we know our own data.

        fetched_bytes: bytes that we fetched to keep them for others.
        """
        if not self._number or (self._numbers is None and self._corpora.manifest.data.corpora):
            return None
        peers, numbers = self.peers(), self._numbers
        known = [self._ours, *(self._answers[peer] for peer in peers if peer in self._answers)]
        wanted = min(COPIES, 1 + len(peers))
        counts = CopyCounts.among(each.blocks for each in known)
        one, two, _ = counts.at_least

        def size(blocks: ChunkSet, are_meant: Callable[[int, bool], bool]) -> int:
            """Return the size of these blocks, and of all other data for which `are_meant(copies, here)` returns True."""
            files = are_meant(sum(each.files for each in known), self._ours.files) * self._files_bytes
            start = are_meant(sum(each.start for each in known), self._ours.start) * self._start_bytes
            return files + start + (numbers.bytes_of(blocks) if numbers is not None else 0)

        every = numbers.all if numbers is not None else 0
        return CopiesStatus(
            peers=1 + len(peers),
            answered=len(known),
            wanted=wanted,
            total_bytes=size(every, lambda copies, here: True),
            missing_bytes=size(every & ~one, lambda copies, here: copies == 0),
            lone_bytes=size(one & ~two, lambda copies, here: copies == 1),
            here_only_bytes=size(one & ~two & self._ours.blocks, lambda copies, here: copies == 1 and here),
            short_bytes=size(every & ~counts.at_least[wanted - 1], lambda copies, here: copies < wanted),
            fetched_bytes=fetched_bytes,
            mirrors=len(self._corpora.manifest.data.mirrors),
        )
