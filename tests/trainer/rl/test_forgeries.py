"""Answers written into outputs, and other choices than the noise's, by peers with the right weights and honest proofs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch

from benchmarks.calibration import proposed
from benchmarks.detection import judge
from benchmarks.detection_forgeries import Steered, Written, at_temperature, forged, top_p
from benchmarks.detection_peers import SHAPE, TOKENIZER, Choice, Peer, Run, parameters, quantised
from protocol.formats.model import ModelConfig
from protocol.formats.rl import RlConfig
from trainer.rl.rollout import Rollout
from trainer.rl.verification import RejectionReason

LENGTH, COUNT = 256, 6
SMALL = ModelConfig(tied=False, rope_base=500_000.0, **{**SHAPE, "layers": 1, "dim": 64, "ffn": 96})
RUN = Run(SMALL, parameters(SMALL), LENGTH)
RATE = RlConfig().shortfall_rate
PRECISIONS = (torch.float32, torch.bfloat16)

WRITTEN = {
    "at the start": ("\nAnswer: 42", 0),
    "after the first token": ("\nAnswer: 42", 1),
    "in the middle": ("\nAnswer: 42", LENGTH // 2),
    "at a chunk's end": ("\nAnswer: 42", 123),
    "at the end": ("\nAnswer: 42", LENGTH - 11),
    "a word at the end": (" yes", LENGTH - 4),
    "three digits near the end": ("427", LENGTH - 30),
    "two digits near the end": ("42", LENGTH - 14),
    "the box of an answer": ("\\boxed{42}", LENGTH - 40),
    "a line": ("\n#### 42\n", LENGTH - 100),
    "a sentence in the middle": ("Therefore the answer is 42, and nothing else.", LENGTH // 3),
}


CHOICES: dict[str, Callable[[int], Choice]] = {
    "steered within 0.5": lambda first: Steered(0.5),
    "steered within 0.2": lambda first: Steered(0.2),
    "temperature 0.9": lambda first: at_temperature(0.9),
    "temperature 1.1": lambda first: at_temperature(1.1),
    "top-p 0.95": lambda first: top_p(0.95),
}


def writes(text: str, places: Sequence[int]) -> Callable[[int], Choice]:
    return lambda first: Written(first, COUNT, TOKENIZER.encode(text), places)


@cache
def honest(dtype: torch.dtype = torch.float32, slots: int = 32) -> list[Rollout]:
    return Peer(RUN, dtype=dtype, slots=slots).rollouts(COUNT)


@cache
def forgeries() -> dict[str, list[Rollout]]:
    texts = {name: writes(text, range(begin, begin + len(text))) for name, (text, begin) in WRITTEN.items()}
    spread = writes("Answer: 42", range(5, LENGTH, LENGTH // 10)[:10])
    kept = {"keeps to the rules": lambda first: Steered(0.5, RATE), "steered within 0.1": lambda first: Steered(0.1)}
    return forged(RUN, COUNT, {**texts, "spread": spread, **CHOICES, **kept})


@pytest.mark.slow
def test_long_outputs_of_honest_peers_of_any_precision_and_batch_are_accepted() -> None:
    for made, judging in ((made, judging) for made in PRECISIONS for judging in PRECISIONS):
        for slots in (3, 32):
            judged = judge(RUN, honest(made, slots), dtype=judging)
            assert [each.reason for each in judged] == [None] * COUNT, (made, judging, slots)
            assert all(each.sure for each in judged)


@pytest.mark.slow
@pytest.mark.parametrize("where", [*WRITTEN, "spread"])
def test_an_answer_written_into_a_long_output_is_refused(where: str) -> None:
    made, (_, begin) = forgeries()[where], WRITTEN.get(where, ("", 0))
    reasons = [RejectionReason.BAD_SAMPLING if len(each.output) > begin else None for each in made]
    assert any(reasons), "an output that ends before the place is as it was"
    for dtype in PRECISIONS:
        judged = judge(RUN, made, dtype=dtype)
        assert [(each.reason, each.sure) for each in judged] == [(reason, True) for reason in reasons]


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHOICES)
def test_another_choice_is_refused_within_a_few_long_outputs(kind: str) -> None:
    judged = judge(RUN, forgeries()[kind])
    assert RejectionReason.BAD_SAMPLING in {each.reason for each in judged}
    assert {each.reason for each in judged} <= {None, RejectionReason.BAD_SAMPLING}


def test_weights_in_four_bits_are_refused() -> None:
    judged = judge(RUN, Peer(RUN, quantised(RUN.theta, 7)).rollouts(COUNT))
    assert None not in {each.reason for each in judged}


def test_a_peer_that_knows_the_rules_gains_the_slack_of_a_batch_once() -> None:
    """What it spends in all of its rollouts together stays within the slack and the rate."""
    judged = judge(RUN, forgeries()["keeps to the rules"])
    measured = [each.measured for each in judged if each.measured is not None]
    spent = sum(each.total for each in measured)
    assert 0 < spent <= 0.5 + 3 * RATE * sum(each.density for each in measured)


def test_what_is_proposed_for_honest_peers_refuses_finer_steering() -> None:
    found = [each.measured for each in judge(RUN, honest(torch.bfloat16)) if each.measured is not None]
    rl = RlConfig(**{**vars(RUN.rl), **proposed(found).fields()})
    assert {each.reason for each in judge(RUN, honest(torch.bfloat16), rl)} == {None}
    steered = judge(RUN, forgeries()["steered within 0.1"], rl)
    assert RejectionReason.BAD_SAMPLING in {each.reason for each in steered}
