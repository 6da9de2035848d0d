"""Every token that the model chose is in some row once, with what was before it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.rl.policy import PADDING, Packed, pack, places_of
from trainer.rl.rollout import Rollout

ROW = 40


@st.composite
def batches(draw: st.DrawFn) -> list[Rollout]:
    made = []
    for copy in range(draw(st.integers(1, 12))):
        prompt, output = draw(st.integers(1, 20)), draw(st.integers(1, ROW - 19))
        kept = draw(st.lists(st.booleans(), min_size=output, max_size=output))
        tokens = [1 + draw(st.integers(0, 200)) for _ in range(prompt + output)]
        made.append(Rollout(0, copy, tuple(tokens[:prompt]), tuple(tokens[prompt:]), tuple(kept), b""))
    return made


def unpacked(packed: Packed, count: int) -> list[tuple[list[int], list[int], list[bool], list[float]]]:
    """Of each sequence its tokens, targets, mask and advantages, and that it lies in one row without a gap."""
    found = []
    for number in range(count):
        rows, places = np.nonzero(packed.documents == number)
        assert len(set(rows)) == 1 and list(places) == list(range(places[0], places[0] + len(places)))
        span = rows[0], slice(places[0], places[0] + len(places))
        found.append(
            (
                packed.tokens[span].tolist(),
                packed.targets[span].tolist(),
                packed.mask[span].tolist(),
                packed.advantages[span].tolist(),
            )
        )
    return found


@pytest.mark.slow
@given(batches())
def test_nothing_is_dropped_and_everything_is_in_its_place(rollouts: list[Rollout]) -> None:
    packed = pack(rollouts, [number / 2 for number in range(len(rollouts))], ROW)
    for number, (tokens, targets, mask, advantages) in enumerate(unpacked(packed, len(rollouts))):
        rollout = rollouts[number]
        assert tuple(tokens) == (rollout.prompt + rollout.output)[:-1]
        assert tuple(targets) == (rollout.prompt + rollout.output)[1:]
        assert mask == [False] * (len(rollout.prompt) - 1) + list(rollout.made)
        assert advantages == [number / 2] * places_of(rollout)
    padding = packed.documents == PADDING
    assert not packed.mask[padding].any() and not packed.tokens[padding].any()
    assert packed.counted_tokens == sum(sum(rollout.made) for rollout in rollouts)


def rollout(prompt: int, output: int) -> Rollout:
    return Rollout(3, 5, (1,) * prompt, (2,) * output, (True,) * output, b"")


def test_a_sequence_longer_than_a_row_is_an_error_before_anything_is_packed() -> None:
    packed = pack([rollout(1, ROW), rollout(ROW, 1)], [1.0, 2.0], ROW)
    assert packed.tokens.shape == (2, ROW) and (packed.documents != PADDING).all(), "the longest ones fill their rows"
    assert pack([], [], ROW).tokens.shape == (0, ROW)
    with pytest.raises(ValueError, match="copy 5 of problem 3 has 42 tokens, and a row takes 41; make row_tokens larger"):
        pack([rollout(1, 1), rollout(2, ROW)], [0.0, 0.0], ROW)
