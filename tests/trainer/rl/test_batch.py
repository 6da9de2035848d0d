"""The bytes of a batch: one encoding, and nothing else is one."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.rl.rollout import Rollout
from trainer.rl.worker import decode_batch, encode_batch

ROLLOUTS = [Rollout(3, copy, (1, 2, 3), (4, 5 + copy), (True, False), bytes(copy)) for copy in range(3)]


def test_a_batch_is_read_as_it_was_written() -> None:
    assert decode_batch(encode_batch(ROLLOUTS)) == ROLLOUTS


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_are_the_encoding_of_what_they_say(data: bytes) -> None:
    try:
        rollouts = decode_batch(data)
    except ValueError:
        return
    assert encode_batch(rollouts) == data


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_changed_byte_is_noticed_or_says_something_else(data: st.DataObject) -> None:
    raw = bytearray(encode_batch(ROLLOUTS))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(ValueError):
        assert decode_batch(bytes(raw)) != ROLLOUTS


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\0\0", b"\xff\xff\xff\xff", encode_batch(ROLLOUTS) + b"\0", encode_batch(ROLLOUTS)[:-1]]
)
def test_what_is_no_batch_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"batch|rollout"):
        decode_batch(data)
