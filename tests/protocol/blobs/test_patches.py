"""Patches between versions of the weights give the new version to the bit, and a hostile one raises `Malformed`."""

from __future__ import annotations

import random

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from protocol.versions import making
from protocol.versions.making import apply_patch, make_patch
from protocol.wire.canonical import Malformed

Values = np.ndarray[tuple[int], np.dtype[np.uint16]]


def bf16(count: int, seed: int) -> Values:
    """Random weights as the upper halves of fp32 numbers."""
    values = np.random.default_rng(seed).standard_normal(count, dtype=np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def changed(old: Values, share: float, seed: int) -> Values:
    new = old.copy()
    places = np.random.default_rng(seed).random(len(old)) < share
    new[places] ^= 1
    return new


def patch_of(old: Values, new: Values) -> bytes:
    return b"".join(make_patch(old.data.cast("B"), new.data.cast("B")))


def applied(old: Values, patch: bytes) -> Values:
    into = bytearray(old.nbytes)
    apply_patch(old.data.cast("B"), memoryview(patch), memoryview(into))
    return np.frombuffer(into, np.uint16)


@pytest.mark.parametrize("share", [0.0, 1e-5, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("count", [1, 255, 256, 70_000, 2_100_000])
def test_the_new_version_comes_out_to_the_bit(count: int, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "BLOCK", 1 << 20)
    old = bf16(count, 1)
    new = changed(old, share, 2)
    patch = patch_of(old, new)
    assert np.array_equal(applied(old, patch), new)
    in_place = old.copy()
    view = in_place.data.cast("B")
    apply_patch(view, memoryview(patch), view)
    assert np.array_equal(in_place, new)


def test_one_changed_weight_in_a_hundred_takes_a_fiftieth_of_the_bytes() -> None:
    old = bf16(1 << 20, 1)
    assert len(patch_of(old, changed(old, 0.01, 2))) < old.nbytes / 50


@given(st.lists(st.integers(0, 2000), unique=True), st.randoms(use_true_random=False))
def test_any_places_may_change(places: list[int], chance: random.Random) -> None:
    old = bf16(2001, 3)
    new = old.copy()
    for place in places:
        new[place] = chance.randrange(1 << 16)
    assert np.array_equal(applied(old, patch_of(old, new)), new)


@given(st.data())
def test_a_damaged_patch_raises_nothing_but_malformed(data: st.DataObject) -> None:
    old = bf16(5000, 4)
    patch = bytearray(patch_of(old, changed(old, 0.05, 5)))
    for _ in range(data.draw(st.integers(1, 4))):
        patch[data.draw(st.integers(0, len(patch) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(patch)))
    for hostile in (bytes(patch), bytes(patch[:cut]), bytes(patch) + b"x"):
        try:
            applied(old, hostile)
        except Malformed:
            continue


def test_a_frame_that_would_fill_the_memory_is_not_expanded() -> None:
    old = bf16(1000, 6)
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 28))
    head, sizes = making._HEAD.pack(making.MAGIC, 1000), making._SIZES.pack(len(bomb), 0, 0, 0)
    with pytest.raises(Malformed, match="more values"):
        applied(old, head + sizes + bomb)


def test_a_patch_for_other_weights_is_refused() -> None:
    one, two = bf16(10, 1), bf16(11, 1)
    with pytest.raises(Malformed, match="another size"):
        applied(two, patch_of(one, one))


def test_weights_in_an_odd_number_of_bytes_have_no_patch() -> None:
    odd = memoryview(bytearray(9))
    with pytest.raises(Malformed, match="odd"):
        apply_patch(odd, memoryview(b""), odd)
    with pytest.raises(Malformed, match="odd"):
        next(make_patch(odd, odd))
