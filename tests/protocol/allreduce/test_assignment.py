"""Owners and their successors: shares that make the slowest member as fast as can be, and do not follow noise or lies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.codecs.ladder import LADDER
from kernels.layout import Layout, chunk_layouts
from protocol.allreduce.assignment import (
    ALIKE,
    LARGEST,
    assign_owners,
    contribution_leaves,
    is_committed,
    share_out,
    takeover_order,
)
from protocol.formats.adapter import AdapterConfig, adapter_parameters
from protocol.formats.model import ModelConfig
from protocol.wire.hashes import Hash, chunk_hash, hash_bytes, tree_proof, tree_root
from protocol.wire.identity import PeerId
from tests.protocol.members import a_member
from tests.protocol.peers import ANN, BOB

TIP = hash_bytes("record", b"a tip")
tips = st.binary(max_size=8).map(lambda data: hash_bytes("record", data))
speeds = st.floats(1e4, 1e9)


def peers(count: int) -> list[PeerId]:
    return [PeerId(f"peer {number}") for number in range(count)]


def shares_of(tip: Hash, bandwidths: Sequence[float], chunks: int) -> list[int]:
    owned = Counter(assign_owners(tip, peers(len(bandwidths)), chunks, bandwidths))
    return [owned[index] for index in range(len(bandwidths))]


def slowest(counts: Sequence[int], bandwidths: Sequence[float]) -> float:
    """The time of the slowest member, in chunks' time at one byte a second."""
    chunks, members = sum(counts), len(counts)
    return max((chunks + (members - 2) * count) / speed for count, speed in zip(counts, bandwidths, strict=True))


def divisions(chunks: int, members: int) -> Iterator[tuple[int, ...]]:
    if members == 1:
        yield (chunks,)
        return
    for first in range(chunks + 1):
        for rest in divisions(chunks - first, members - 1):
            yield (first, *rest)


@given(st.lists(speeds, min_size=3, max_size=4), st.integers(1, 9))
def test_no_division_of_the_chunks_is_faster(bandwidths: list[float], chunks: int) -> None:
    median = sorted(bandwidths)[len(bandwidths) // 2]
    counted = [min(speed, LARGEST * median) for speed in bandwidths]
    counts = share_out(bandwidths, chunks)
    assert sum(counts) == chunks
    if chunks >= 2 * len(bandwidths) and max(bandwidths) > ALIKE * min(bandwidths):
        best = min(slowest(division, counted) for division in divisions(chunks, len(bandwidths)))
        assert slowest(counts, counted) <= best * (1 + 1e-9)


@given(tips, st.integers(1, 40), st.integers(1, 200))
def test_shares_are_equal_when_nothing_is_known(tip: Hash, members: int, chunks: int) -> None:
    for bandwidths in ([], [0.0] * members):
        owned = Counter(assign_owners(tip, peers(members), chunks, bandwidths))
        assert sum(owned.values()) == chunks
        assert max(owned.values()) - min(owned[index] for index in range(members)) <= 1


@given(tips, st.lists(st.floats(1.0, ALIKE), min_size=3, max_size=12), speeds, st.integers(1, 100))
def test_what_may_be_noise_changes_nothing(tip: Hash, factors: list[float], speed: float, chunks: int) -> None:
    bandwidths = [factor * speed for factor in factors]
    if max(bandwidths) <= ALIKE * min(bandwidths):
        assert assign_owners(tip, peers(len(factors)), chunks, bandwidths) == assign_owners(tip, peers(len(factors)), chunks)


def test_who_is_not_known_counts_as_the_median() -> None:
    assert shares_of(TIP, [0.0, 1e7, 1e7, 3e7], 99) == shares_of(TIP, [1e7, 1e7, 1e7, 3e7], 99)


@pytest.mark.slow
@given(st.floats(1e9, 1e15))
def test_a_boast_does_not_make_an_owner_of_everything(claim: float) -> None:
    counts = shares_of(TIP, [1e6, 1e6, 1e6, 1e6, 1e6, 1e6, 1e6, claim], 800)
    assert counts == shares_of(TIP, [1e6] * 7 + [LARGEST * 1e6], 800)


@given(tips, st.integers(1, 12), st.integers(0, 4095))
def test_the_owner_of_a_chunk_is_followed_by_every_other_member(plan: Hash, members: int, chunk: int) -> None:
    known = peers(members)
    owner = known[chunk % members]
    order = takeover_order(plan, chunk, known, owner)
    assert order[0] == owner and sorted(order) == sorted(known)
    assert takeover_order(plan, chunk, list(reversed(known)), owner) == order, "everybody computes the same"


def test_the_chunks_of_a_dead_owner_fall_to_several_members() -> None:
    known = peers(8)
    successors = Counter(takeover_order(TIP, chunk, known, known[0])[1] for chunk in range(140))
    assert set(successors) == set(known[1:]) and max(successors.values()) <= 40


def test_a_member_is_committed_to_its_parts_alone() -> None:
    layout = chunk_layouts(LADDER["int4"], 2500, 1024).contribution
    data = memoryview(bytearray(layout.payload_bytes))
    for span in layout:
        layout.format.encode(np.full(span.count, span.start, np.float32), data[span.encoded])
    leaves = contribution_leaves(ANN.peer_id, data, layout)
    assert len(set(leaves)) == len(layout) == 3 and not {*leaves} & {*contribution_leaves(BOB.peer_id, data, layout)}
    member = a_member(ANN.peer_id, root=tree_root(leaves))
    for chunk, span in enumerate(layout):
        assert is_committed(member, 3, chunk, chunk_hash(data[span.encoded]), tree_proof(leaves, chunk))
        assert not is_committed(member, 3, chunk, chunk_hash(b"another"), tree_proof(leaves, chunk))


def test_a_contribution_of_another_rank_fits_no_commitment_or_no_chunk() -> None:
    """Its length is another one; `test_a_part_is_taken_if_the_plan_has_it` refuses chunks of another size."""
    model = ModelConfig(vocab=256, dim=8, layers=1, heads=1, kv_heads=1, ffn=8)

    def layout_of(rank: int) -> Layout:
        return chunk_layouts(LADDER["int4"], adapter_parameters(model, AdapterConfig(rank=rank)), 1024).contribution

    ours = layout_of(16)
    for rank, chunks in ((17, 2), (20, 3), (4, 1)):
        theirs = layout_of(rank)
        data = memoryview(bytearray(theirs.payload_bytes))
        leaves = contribution_leaves(ANN.peer_id, data, theirs)
        member = a_member(ANN.peer_id, root=tree_root(leaves))
        usable = [
            chunk
            for chunk in range(min(len(ours), len(theirs)))
            if is_committed(member, len(ours), chunk, chunk_hash(data[theirs[chunk].encoded]), tree_proof(leaves, chunk))
            and theirs[chunk].size == ours[chunk].size
        ]
        assert len(theirs) == chunks and usable == ([0] if chunks == len(ours) else []), "a whole chunk is as good as any"
