"""Trees of hashes: each leaf can be proved, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.wire.hashes import Hash, chunk_hash, hash_bytes, tree_proof, tree_proofs, tree_root, verify_proof

sizes = st.integers(1, 40)


def leaves_of(count: int) -> list[Hash]:
    return [chunk_hash(bytes([number])) for number in range(count)]


@given(sizes, st.data())
def test_every_leaf_has_a_proof_that_holds_for_it_alone(count: int, data: st.DataObject) -> None:
    leaves = leaves_of(count)
    index = data.draw(st.integers(0, count - 1))
    root, proof = tree_root(leaves), tree_proof(leaves, index)
    assert verify_proof(root, count, index, leaves[index], proof)
    assert tree_proofs(leaves)[index] == proof
    assert not verify_proof(root, count, index, chunk_hash(b"other"), proof)
    other = data.draw(st.integers(-1, count))
    assert verify_proof(root, count, other, leaves[index], proof) == (other == index)
    assert not verify_proof(root, count + 1, index, leaves[index], proof)
    assert not verify_proof(root, count, index, leaves[index], [*proof, root])
    assert not proof or not verify_proof(root, count, index, leaves[index], proof[:-1])
    assert not proof or not verify_proof(root, count, index, leaves[index], [Hash(b"short"), *proof[1:]])


@given(sizes, sizes)
def test_roots_of_different_sequences_differ(first: int, second: int) -> None:
    assert (tree_root(leaves_of(first)) == tree_root(leaves_of(second))) == (first == second)


def test_order_counts() -> None:
    assert tree_root(leaves_of(3)) != tree_root(leaves_of(3)[::-1])


def test_contexts_separate() -> None:
    assert hash_bytes("record", b"x") != hash_bytes("index", b"x")
