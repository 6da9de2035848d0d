"""The assignment of chunks to owners and their successors, and the leaves of a contribution.

Pure functions of the plan or the manifest, with the same results at every member.

The load to balance: with N members and payload P, an owner with a share f of the chunks sends (1 - f) P of its own parts and
f P (N - 1) of results, and receives as much: P (1 + (N - 2) f).  With equal shares every member sends 2 (N - 1)/N P.  If
bandwidths b differ, shares minimise the time of the slowest, max P (1 + (N - 2) f)/b; a member that is too slow owns no
chunk.  Measurements are rough and may be lies.  So bandwidths within a factor of `ALIKE` count as equal, and no bandwidth
counts for more than `LARGEST` times the median.  If there are fewer than two chunks for each member, all bandwidths count as
equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from math import inf

from kernels.layout import Layout
from protocol.disk import in_turn
from protocol.wire.hashes import Hash, chunk_hash, hash_bytes, verify_proof
from protocol.wire.identity import PeerId
from protocol.wire.messages import Member, Plan

ALIKE = 1.25
LARGEST = 4.0


def contribution_leaves(author: PeerId, data: memoryview, layout: Layout) -> list[Hash]:
    """Return the leaf of each chunk of a contribution; the root of the tree over these leaves is the commitment in READY."""
    return [_part_leaf(author, chunk_hash(part)) for part in in_turn(data, (span.encoded for span in layout))]


def is_committed(member: Member, chunks: int, chunk: int, hash: Hash, proof: Sequence[bytes]) -> bool:
    """Return True if the READY of `member` commits to a part with this hash.

    chunks: number of chunks of a contribution.  chunk: the part's chunk.  proof: the part's tree proof.
    """
    leaf = _part_leaf(PeerId(member.peer), hash)
    return verify_proof(Hash(member.root), chunks, chunk, leaf, [Hash(node) for node in proof])


def _part_leaf(author: PeerId, hash: Hash) -> Hash:
    """Return the leaf of a part with this hash.

    It names the author.  Otherwise a peer could repeat another member's root, which it need not understand, and show that
    member's parts as its own once it has received them.
    """
    return hash_bytes("part", hash + author.encode())


def assign_owners(
    tip: Hash, members: Sequence[PeerId], chunks: int, bandwidths: Sequence[float] = (), most: int | None = None
) -> bytes:
    """Return one byte for each chunk: the index of the chunk's owner.

    bandwidths: bytes per second of each member, the lower of upload and download; 0 if unknown.  most: the most chunks that
    one member may own.  The chunks of an owner are spread evenly.  The order starts at a place drawn by the tip, so the
    remainder of the division does not always go to the same peers.
    """
    first = int.from_bytes(hash_bytes("owners", tip)[:4], "big") % len(members)
    order = [(first + place) % len(members) for place in range(len(members))]
    counts = share_out([bandwidths[index] for index in order] if bandwidths else [0.0] * len(members), chunks, most)
    given = [0] * len(members)
    owners = bytearray()
    for chunk in range(chunks):
        place = max(range(len(members)), key=lambda place: counts[place] * (chunk + 1) - given[place] * chunks)
        given[place] += 1
        owners.append(order[place])
    return bytes(owners)


def share_out(bandwidths: Sequence[float], chunks: int, most: int | None = None) -> list[int]:
    """Return the number of chunks for each member that lets the slowest member finish as early as possible.

    bandwidths: bytes per second of each member, 0 if unknown.  most: the most chunks that one member may own, at least an
    equal share.
    """
    members, known = len(bandwidths), sorted(bandwidth for bandwidth in bandwidths if bandwidth > 0)
    if members <= 2 or chunks < 2 * members or not known or known[-1] <= ALIKE * known[0]:
        return [chunks // members + (place < chunks % members) for place in range(members)]
    median = known[len(known) // 2]
    speeds = [min(bandwidth, LARGEST * median) if bandwidth > 0 else median for bandwidth in bandwidths]
    counts = [0] * members
    loads = [(chunks + members - 2) / speed for speed in speeds]  # load with one more chunk, in units of one chunk's time
    heap = [(load, place) for place, load in enumerate(loads)]
    heapify(heap)
    for _ in range(chunks):
        _, place = heap[0]
        counts[place] += 1
        load = (chunks + (members - 2) * (counts[place] + 1)) / speeds[place]
        heapreplace(heap, (load if most is None or counts[place] < most else inf, place))
    return counts


def plan_hash(plan: Plan) -> Hash:
    """Return the hash of a plan, which identifies its exchange."""
    return hash_bytes("plan", plan.encode())


def takeover_order(plan: Hash, chunk: int, members: Sequence[PeerId], owner: PeerId) -> list[PeerId]:
    """Return the owner of a chunk, then its successors in rendezvous order."""
    others = [peer for peer in members if peer != owner]
    others.sort(key=lambda peer: hash_bytes("takeover", plan + chunk.to_bytes(4, "big") + peer.encode()))
    return [owner, *others]
