"""Who averages which chunk: the layout of a contribution, chunk owners, and who follows a dead owner.

Pure functions that every member computes alike.

The load to balance: with N members and payload P, an owner of the share f of the chunks sends (1 - f) P of its own parts
and f P (N - 1) results, so equal shares give everybody 2 (N - 1)/N P up and down, which is the least possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels.codec import encoded_bytes
from protocol.hashes import Hash, chunk_hash, hash_bytes
from protocol.identity import PeerId
from protocol.messages import Plan


@dataclass(frozen=True)
class ChunkSpan:
    """Chunk of a contribution: parameters [start, start + count), codec bytes [offset, offset + size)."""

    start: int
    count: int
    offset: int
    size: int


def chunk_layout(parameters: int, chunk_parameters: int) -> tuple[ChunkSpan, ...]:
    """The chunks of a contribution of `parameters` values, the last one shorter."""
    spans, offset = [], 0
    for start in range(0, parameters, chunk_parameters):
        count = min(chunk_parameters, parameters - start)
        spans.append(ChunkSpan(start, count, offset, encoded_bytes(count)))
        offset += encoded_bytes(count)
    return tuple(spans)


def payload_bytes(layout: Sequence[ChunkSpan]) -> int:
    """Codec bytes of a whole contribution or result."""
    return layout[-1].offset + layout[-1].size


def contribution_leaves(data: memoryview, layout: Sequence[ChunkSpan]) -> list[Hash]:
    """The hash of each chunk of a contribution; their tree root is what READY commits to."""
    return [chunk_hash(data[span.offset : span.offset + span.size]) for span in layout]


def assign_owners(tip: Hash, members: Sequence[PeerId], chunks: int) -> bytes:
    """One byte a chunk: the index of its owner.  Round-robin from a place drawn by the tip, so shares differ by one at
    most and the odd chunks do not always fall to the same peer."""
    first = int.from_bytes(hash_bytes("owners", tip)[:4], "big") % len(members)
    return bytes((first + chunk) % len(members) for chunk in range(chunks))


def plan_hash(plan: Plan) -> Hash:
    """The name of an exchange."""
    return hash_bytes("plan", plan.encode())


def takeover_order(plan: Hash, chunk: int, members: Sequence[PeerId], owner: PeerId) -> list[PeerId]:
    """The owner of a chunk, then who follows it, in rendezvous order."""
    others = [peer for peer in members if peer != owner]
    others.sort(key=lambda peer: hash_bytes("takeover", plan + chunk.to_bytes(4, "big") + peer.encode()))
    return [owner, *others]


def mask_of(indices: Sequence[int], members: int) -> bytes:
    """The mask with these members in: bit i of byte i // 8."""
    bits = sum(1 << index for index in indices)
    return bits.to_bytes((members + 7) // 8, "little")
