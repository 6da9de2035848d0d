"""A rollout comes back from its bytes, and other bytes are refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.rl.rollout import (
    MAX_BYTES,
    MAX_COPY,
    MAX_PROBLEM,
    MAX_PROOF_BYTES,
    MAX_TOKEN,
    Rollout,
)
from trainer.rl.worker import decode_batch, encode_batch

TOKENS = st.integers(0, 255) | st.integers(0, MAX_TOKEN)
HEAD_BYTES = 26


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    output = draw(st.lists(TOKENS, min_size=1, max_size=40))
    return Rollout(
        problem=draw(st.integers(0, MAX_PROBLEM)),
        copy=draw(st.integers(0, MAX_COPY)),
        prompt=tuple(draw(st.lists(TOKENS, min_size=1, max_size=40))),
        output=tuple(output),
        made=tuple(draw(st.lists(st.booleans(), min_size=len(output), max_size=len(output)))),
        proofs=draw(st.binary(max_size=600)),
    )


def refused_or_the_same(data: bytes) -> None:
    """Bytes are refused with a sentence, or are the encoding of what they decode to, alone and as a batch."""
    for decode, encode in ((Rollout.decode, Rollout.encode), (decode_batch, encode_batch)):
        try:
            decoded: Any = decode(data)
        except ValueError as error:
            assert str(error).startswith(("a ", "rollout ")) and "\n" not in str(error)
        else:
            assert encode(decoded) == data


@given(rollouts())
def test_a_rollout_comes_back_from_its_bytes(rollout: Rollout) -> None:
    assert Rollout.decode(rollout.encode()) == rollout
    assert len(rollout.encode()) <= MAX_BYTES


@given(st.binary(max_size=200), rollouts(), st.data())
def test_any_and_changed_bytes_are_refused_or_an_encoding(any_bytes: bytes, rollout: Rollout, data: st.DataObject) -> None:
    refused_or_the_same(any_bytes)
    for whole in (rollout.encode(), encode_batch([rollout] * 2)):
        changed = bytearray(whole)
        for _ in range(data.draw(st.integers(1, 4))):
            where = data.draw(st.integers(0, HEAD_BYTES) | st.integers(0, len(whole) - 1))
            changed[min(where, len(whole) - 1)] = data.draw(st.integers(0, 255))
        refused_or_the_same(bytes(changed))


@pytest.mark.parametrize("change", [lambda it: b"", lambda it: bytes(4), lambda it: it + b"\0", lambda it: it[:-1]])
def test_what_is_no_batch_is_refused(change: Callable[[bytes], bytes]) -> None:
    whole = [Rollout(3, copy, (1, 2, 3), (4, 5 + copy), (True, False), bytes(copy)) for copy in range(3)]
    assert decode_batch(encode_batch(whole)) == whole
    with pytest.raises(ValueError, match=r"batch|rollout"):
        decode_batch(change(encode_batch(whole)))


@given(rollouts(), st.binary(min_size=1, max_size=9))
def test_nothing_may_be_cut_off_or_follow(rollout: Rollout, more: bytes) -> None:
    encoded = rollout.encode()
    for data in (encoded + more, encoded[: -len(more)]):
        with pytest.raises(ValueError, match="bytes, not"):
            Rollout.decode(data)


def test_the_bytes_are_these() -> None:
    rollout = Rollout(problem=258, copy=3, prompt=(1, 256), output=(65535, 0, 7), made=(True, False, True), proofs=b"pp")
    assert rollout.encode() == bytes.fromhex(
        "01 02 0000000000000102 00000003 00000002 00000003 00000002  0100 0001 ffff 0000 0700  a0  7070"
    )


WIDE = Rollout(0, 0, (1,), (2,), (True,), b"").encode()[2:HEAD_BYTES]


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "bytes, not 0"),
        (bytes(MAX_BYTES + 1), f"bytes, not {MAX_BYTES + 1}"),
        (b"\x00\x01" + WIDE + b"\x01\x02\x80", "format 1, not 0"),
        (b"\x01\x00" + WIDE + b"\x80", "1 to 3 bytes, not 0"),
        (b"\x01\x04" + WIDE + bytes(8) + b"\x80", "1 to 3 bytes, not 4"),
        (b"\x01\x02" + WIDE + b"\x01\x00\x02\x00\x80", "more than the largest of them needs"),
        (b"\x01\x03" + WIDE + b"\x00\x00\x10\x02\x00\x00\x80", "tokens from 0 to 1048575"),
        (b"\x01\x01" + WIDE + b"\x01\x02\xc0", "bits beyond"),
    ],
)
def test_each_malformation_has_its_sentence(data: bytes, part: str) -> None:
    with pytest.raises(ValueError) as caught:
        Rollout.decode(data)
    assert part in str(caught.value)


GOOD = {"problem": 0, "copy": 0, "prompt": (1,), "output": (2, 3), "made": (True, True), "proofs": b""}


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"problem": MAX_PROBLEM + 1}, "problem is a number"),
        ({"copy": MAX_COPY + 1}, "copy is a number"),
        ({"prompt": ()}, "prompt has 1 to"),
        ({"output": (), "made": ()}, "output has 1 to"),
        ({"output": (2, -3)}, "tokens from 0 to"),
        ({"prompt": (MAX_TOKEN + 1,)}, "tokens from 0 to"),
        ({"made": (True,)}, "marks for 1 tokens, but its output has 2"),
        ({"proofs": bytes(MAX_PROOF_BYTES + 1)}, "bytes of proofs"),
    ],
)
def test_what_is_out_of_bounds_is_no_rollout(change: dict[str, object], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        Rollout(**(GOOD | change))  # type: ignore[arg-type]
