"""Safetensors files are read strictly, and every tensor counts in the root."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.versions.making import tensor_root, tensors_in
from protocol.wire.canonical import Malformed
from tests.protocol.versions.files import safetensors, values, weights, with_header

BODY = bytes(8)


def a_header(**changes: Any) -> dict[str, Any]:
    return {"t": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8], **changes}}


def test_tensors_are_found_in_order() -> None:
    first, second = values(10, 1), values(6, 2)
    file = memoryview(safetensors(first, second))
    found = tensors_in(file)
    assert [(tensor.name, tensor.shape) for tensor in found] == [("t0", (10,)), ("t1", (6,))]
    assert bytes(file[found[1].start : found[1].stop]) == second.tobytes()
    assert found[-1].stop == len(file)


@pytest.mark.parametrize(
    "header",
    [
        [],
        {},
        {"__metadata__": {"format": "pt"}},
        a_header(dtype="F16"),
        a_header(shape=[2, 3]),
        a_header(shape=[2, -2]),
        a_header(shape=[2, 2.0]),
        a_header(shape=[True, 4]),
        a_header(shape=[1] * 40 + [4]),
        a_header(data_offsets=[8, 16]),
        a_header(data_offsets=[2, 10]),
        a_header(data_offsets=[0]),
        a_header(more=1),
        {"t\n": a_header()["t"]},
        {"x" * 2000: a_header()["t"]},
        a_header() | {"u": a_header()["t"]},
        a_header(shape=[1, 2], data_offsets=[0, 4]),
    ],
    ids=str,
)
def test_a_file_that_no_version_has_is_refused(header: object) -> None:
    with pytest.raises(Malformed):
        tensor_root(memoryview(with_header(header, BODY)))


def test_a_name_that_stands_twice_is_refused() -> None:
    once = json.dumps(a_header())[1:-1]
    text = ("{" + once + ", " + once + "}").encode()
    with pytest.raises(Malformed):
        tensor_root(memoryview(len(text).to_bytes(8, "little") + text + BODY))


def test_numbers_without_end_take_no_time() -> None:
    shape = "[" + ",".join(["9" * 4000] * 200) + "]"
    text = ('{"t": {"dtype": "BF16", "shape": %s, "data_offsets": [0, 8]}}' % shape).encode()  # noqa: UP031
    with pytest.raises(Malformed):
        tensor_root(memoryview(len(text).to_bytes(8, "little") + text + BODY))


@given(st.binary(max_size=200), st.integers(0, 250))
def test_garbage_raises_nothing_but_malformed(garbage: bytes, at: int) -> None:
    file = bytearray(weights(30))
    for hostile in (garbage, bytes(file[:at]), bytes(file[:at]) + garbage, len(garbage).to_bytes(8, "little") + garbage):
        try:
            tensor_root(memoryview(hostile))
        except Malformed:
            continue


def test_the_root_changes_with_every_value_name_and_shape() -> None:
    one, two = values(12, 1), values(4, 2)
    changed = one.copy()
    changed[5] ^= 1
    square = with_header(a_header(), np.zeros(4, np.uint16).tobytes())
    flat = with_header(a_header(shape=[4]), np.zeros(4, np.uint16).tobytes())
    files = [safetensors(one, two), safetensors(changed, two), safetensors(two, one), safetensors(one), square, flat]
    assert len({tensor_root(memoryview(file)) for file in files}) == len(files)
