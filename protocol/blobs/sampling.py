"""Samples of a peer's speed: a few chunks that it has anyway, requested as usual, checked, and thrown away.

The peer that is asked notices nothing new: it sends chunks of a blob that it shares, in turns with others' chunks, behind
all urgent ones.  So a stranger that measures costs no more than one that fetches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from protocol.blobs.blob import Blob, chunks_in, set_of
from protocol.blobs.messages import MAX_WANTED, ChunksReply, ChunksRequest
from protocol.transport.interface import Landing, NetworkError, Session
from protocol.wire.body import decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import chunk_hash
from protocol.wire.identity import PeerId

SAMPLE_BYTES = 4 << 20
"""Bytes asked of one peer."""
SAMPLE_S = 4.0
BUSY_S = 0.2
"""Seconds until a busy peer is asked again."""


@dataclass(frozen=True)
class Sampled:
    """Outcome of a sample.

    seconds: from the beginning of the first chunk to the end of the last one.  problem: the reason why nothing came, in a
    few words.
    """

    peer: PeerId
    down_bytes: int
    seconds: float
    problem: str = ""

    @property
    def bytes_per_s(self) -> float:
        """Rate of the sample; 0 if nothing came."""
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
        """Fetch until all chunks have come, or no more will; return the reason why nothing came, if nothing did."""
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

    def landed(self, peer: PeerId, chunk: int, landing: Landing | None) -> None:
        """Take a chunk that is complete.  landing: None if it broke off."""
        if peer != self.peer or self._coming.pop(chunk, None) is None:
            return
        self._left &= ~(1 << chunk)
        if landing is not None and landing.found == self.blob.leaves[chunk]:
            self._bytes += len(landing.buffer)
            self._ended_at = trio.current_time()
        self._changed.set()
        self._changed = trio.Event()


def _first_chunks(sizes: Sequence[int]) -> list[int]:
    """Return the first chunks that together have at most `SAMPLE_BYTES`; at least one."""
    chunks, total = [0], sizes[0]
    for chunk in range(1, min(len(sizes), MAX_WANTED)):
        total += sizes[chunk]
        if total > SAMPLE_BYTES:
            break
        chunks.append(chunk)
    return chunks
