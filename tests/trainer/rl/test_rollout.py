"""A rollout comes back from its bytes, and other bytes are refused in a sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.rl.rollout import (
    MAX_BYTES,
    MAX_COPY,
    MAX_OUTPUT_TOKENS,
    MAX_PROBLEM,
    MAX_PROMPT_TOKENS,
    MAX_PROOF_BYTES,
    MAX_TOKEN,
    Rollout,
)

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
    """Bytes are refused with a sentence, or are the encoding of what they decode to."""
    try:
        decoded = Rollout.decode(data)
    except ValueError as error:
        assert str(error).startswith("a ") and "\n" not in str(error)
    else:
        assert decoded.encode() == data


@given(rollouts())
def test_a_rollout_comes_back_from_its_bytes(rollout: Rollout) -> None:
    assert Rollout.decode(rollout.encode()) == rollout
    assert len(rollout.encode()) <= MAX_BYTES


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_an_encoding(data: bytes) -> None:
    refused_or_the_same(data)


@given(rollouts(), st.data())
def test_changed_bytes_are_refused_or_an_encoding(rollout: Rollout, data: st.DataObject) -> None:
    encoded = bytearray(rollout.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, HEAD_BYTES) | st.integers(0, len(encoded) - 1))
        encoded[min(where, len(encoded) - 1)] = data.draw(st.integers(0, 255))
    refused_or_the_same(bytes(encoded))


@given(rollouts(), st.data())
def test_bytes_cut_out_or_put_in_are_refused_or_an_encoding(rollout: Rollout, data: st.DataObject) -> None:
    encoded = rollout.encode()
    start = data.draw(st.integers(0, len(encoded)))
    stop = data.draw(st.integers(start, len(encoded)))
    refused_or_the_same(encoded[:start] + data.draw(st.binary(max_size=20)) + encoded[stop:])


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


def test_tokens_take_no_more_bytes_than_the_largest_needs() -> None:
    for token, width in ((255, 1), (256, 2), (65535, 2), (65536, 3), (MAX_TOKEN, 3)):
        encoded = Rollout(0, 0, (token,) * 8, (0,) * 8, (True,) * 8, b"").encode()
        assert len(encoded) == HEAD_BYTES + 16 * width + 1


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
        ({"problem": -1}, "problem is a number"),
        ({"problem": MAX_PROBLEM + 1}, "problem is a number"),
        ({"copy": MAX_COPY + 1}, "copy is a number"),
        ({"prompt": ()}, "prompt has 1 to"),
        ({"prompt": (0,) * (MAX_PROMPT_TOKENS + 1)}, "prompt has 1 to"),
        ({"output": (), "made": ()}, "output has 1 to"),
        ({"output": (0,) * (MAX_OUTPUT_TOKENS + 1)}, "output has 1 to"),
        ({"output": (2, -3)}, "tokens from 0 to"),
        ({"prompt": (MAX_TOKEN + 1,)}, "tokens from 0 to"),
        ({"made": (True,)}, "who made 1 tokens, and its output has 2"),
        ({"proofs": bytes(MAX_PROOF_BYTES + 1)}, "bytes of proofs"),
    ],
)
def test_what_is_out_of_bounds_is_no_rollout(change: dict[str, object], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        Rollout(**(GOOD | change))  # type: ignore[arg-type]


def test_the_longest_rollout_has_an_encoding() -> None:
    longest = Rollout(
        MAX_PROBLEM,
        MAX_COPY,
        (MAX_TOKEN,) * MAX_PROMPT_TOKENS,
        (MAX_TOKEN,) * MAX_OUTPUT_TOKENS,
        (True,) * MAX_OUTPUT_TOKENS,
        bytes(MAX_PROOF_BYTES),
    )
    assert len(longest.encode()) == MAX_BYTES and Rollout.decode(longest.encode()) == longest
