"""BLAKE3 hashes and the hash tree over a sequence of chunks.

Contributions, results and checkpoints are sequences of chunks named by the root of a binary hash tree, so that a single
chunk can be checked with a proof of log2(n) hashes.  Inner nodes are hashed in a context of their own
(`derive_key_context`), so a leaf can never pass for a node.  An odd node moves up a level unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NewType

from blake3 import blake3

Hash = NewType("Hash", bytes)
"""32 bytes of BLAKE3."""

HASH_BYTES = 32
ZERO_HASH = Hash(bytes(HASH_BYTES))


def hash_bytes(context: str, data: bytes | bytearray | memoryview) -> Hash:
    """Return the hash of `data` in the domain named by `context`, e.g. "record"."""
    return Hash(blake3(data, derive_key_context=f"manyhands 1 {context}").digest())


def chunk_hash(data: bytes | bytearray | memoryview) -> Hash:
    """Return the hash of one chunk of a blob: plain BLAKE3, which releases the GIL for large chunks."""
    return Hash(blake3(data).digest())


def tree_root(leaves: Sequence[Hash]) -> Hash:
    """Return the root of the tree over `leaves` (at least one), bound to their number."""
    level = list(leaves)
    assert level, "a tree has at least one leaf"
    while len(level) > 1:
        level = _parents(level)
    return _root(level[0], len(leaves))


def tree_proof(leaves: Sequence[Hash], index: int) -> list[Hash]:
    """Return the siblings on the path from leaf `index` to the root; a node without a sibling adds none."""
    level, proof = list(leaves), []
    while len(level) > 1:
        sibling = index ^ 1
        if sibling < len(level):
            proof.append(level[sibling])
        level, index = _parents(level), index // 2
    return proof


def tree_proofs(leaves: Sequence[Hash]) -> list[list[Hash]]:
    """Return the `tree_proof` of every leaf; builds the tree only once."""
    proofs: list[list[Hash]] = [[] for _ in leaves]
    level, height = list(leaves), 0
    while len(level) > 1:
        for leaf, proof in enumerate(proofs):
            sibling = leaf >> height ^ 1
            if sibling < len(level):
                proof.append(level[sibling])
        level, height = _parents(level), height + 1
    return proofs


def verify_proof(root: Hash, count: int, index: int, leaf: Hash, proof: Sequence[Hash]) -> bool:
    """Return True if `leaf` is leaf `index` of the tree of `count` leaves with this `root`."""
    if not 0 <= index < count or any(len(node) != HASH_BYTES for node in proof):
        return False
    node, width, rest = leaf, count, list(proof)
    while width > 1:
        if index ^ 1 < width:
            if not rest:
                return False
            sibling = rest.pop(0)
            node = _parent(node, sibling) if index % 2 == 0 else _parent(sibling, node)
        width, index = (width + 1) // 2, index // 2
    return not rest and _root(node, count) == root


def _parent(left: Hash, right: Hash) -> Hash:
    return hash_bytes("tree node", left + right)


def _parents(level: Sequence[Hash]) -> list[Hash]:
    pairs = [_parent(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
    return pairs + ([level[-1]] if len(level) % 2 else [])


def _root(top: Hash, count: int) -> Hash:
    return hash_bytes("tree root", top + count.to_bytes(8, "big"))
