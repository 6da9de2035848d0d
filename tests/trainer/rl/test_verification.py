"""What a validator accepts of an honest peer, and for what reason it rejects everybody else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from kernels.toploc import prove
from protocol.formats.bets import Growth, is_growth, total_growth
from protocol.formats.model import ModelConfig
from protocol.formats.rl import Precision, RlConfig
from tests.trainer.rl.honest import FAMILIES, TOKENIZER, Letters, decoder, fond_of_ending, generate, parameters
from trainer.models.llama.model import Decoder
from trainer.rl.rollout import Rollout
from trainer.rl.verification import Assignment, Judged, RejectionReason, Verifier

RL = RlConfig(max_tokens=24, row_tokens=64, micro_batch_tokens=256, top_k=32, chunk_tokens=8)
ASSIGNED = Assignment(b"run", 5, "12D3KooWworker", (4, 7), 3)
QWEN3 = FAMILIES["qwen3"]
ANY_TOKEN: dict[str, Any] = {"max_shortfall": 1e6, "shortfall_ceiling": 1e6, "shortfall_rate": 1e9}
"""Of a run in which the choice of tokens is not checked."""


def verifier(config: ModelConfig = QWEN3, seed: int = 3) -> Verifier:
    return Verifier(decoder(config, parameters(config, seed)), Letters(), TOKENIZER, RL)


@cache
def honest(config: ModelConfig = QWEN3, assigned: Assignment = ASSIGNED) -> list[Rollout]:
    return generate(decoder(config, parameters(config)), Letters(), assigned, RL)


def reasons(judged: list[Judged]) -> set[RejectionReason | None]:
    return {each.reason for each in judged}


def spoiled(rollout: Rollout, **changes: object) -> RejectionReason | None:
    """The reason for which a rollout of the assignment is rejected after these changes."""
    (judged,) = verifier().verify(ASSIGNED, [replace(rollout, **changes)])  # type: ignore[arg-type]
    assert judged.reward is None and judged.detail
    return judged.reason


@pytest.mark.parametrize("family", FAMILIES)
def test_honest_rollouts_are_accepted_with_the_reward_of_the_environment(family: str) -> None:
    config = FAMILIES[family]
    rollouts = honest(config)
    assert {(each.problem, each.copy) for each in rollouts} == {(index, copy) for index in (4, 7) for copy in range(3)}
    for rollout, judged in zip(rollouts, verifier(config).verify(ASSIGNED, rollouts), strict=True):
        text = TOKENIZER.decode([token for token in rollout.output if token])
        assert judged.reason is None
        assert judged.reward == pytest.approx(text.count("a") / max(1, len(text)))
        assert judged.measured is not None and judged.measured.beyond == 0


@pytest.mark.slow
def test_a_run_says_how_far_a_proof_may_be_off() -> None:
    theta = parameters(QWEN3)
    theta *= 1 + 0.01 * np.random.default_rng(1).standard_normal(len(theta), np.float32)
    near = decoder(QWEN3, theta)
    wide = RL.model_copy(update=ANY_TOKEN)
    assert reasons(Verifier(near, Letters(), TOKENIZER, wide).verify(ASSIGNED, honest())) == {None}
    for tight in ({"max_exponent_mismatches": 0}, {"max_mantissa_mean": 0.0}, {"max_mantissa_median": 0.0}):
        judged = Verifier(near, Letters(), TOKENIZER, wide.model_copy(update=tight)).verify(ASSIGNED, honest())
        assert RejectionReason.WRONG_COMPUTATION in reasons(judged), tight


def test_a_run_says_how_far_a_token_may_be_off() -> None:
    key = replace(ASSIGNED, run=b"another run")
    tolerant = RL.model_copy(update={"min_end_probability": 0.0, **ANY_TOKEN})
    assert reasons(verifier().verify(key, honest())) <= {RejectionReason.BAD_SAMPLING, RejectionReason.BAD_TERMINATION}
    model = decoder(QWEN3, parameters(QWEN3))
    assert reasons(Verifier(model, Letters(), TOKENIZER, tolerant).verify(key, honest())) == {None}


def test_what_another_device_may_measure_otherwise_is_no_sure_verdict() -> None:
    """A rollout that is as far off as just passes, or just does not, as its maker may have it be."""
    theta = parameters(QWEN3)
    theta *= 1 + 0.03 * np.random.default_rng(1).standard_normal(len(theta), np.float32)
    near = decoder(QWEN3, theta)
    wide = RL.changed(max_exponent_mismatches=99, max_mantissa_mean=127.0, max_mantissa_median=127.0).model_copy(
        update=ANY_TOKEN
    )
    found = Verifier(near, Letters(), TOKENIZER, wide).verify(ASSIGNED, honest())
    pairs = [(each.measured, rollout) for each, rollout in zip(found, honest(), strict=True) if each.measured is not None]
    measured, rollout = max(pairs, key=lambda pair: pair[0].shortfall)

    def judged(rl: RlConfig) -> tuple[bool, bool]:
        (found,) = Verifier(near, Letters(), TOKENIZER, rl).verify(ASSIGNED, [rollout])
        return found.reason is None, found.sure

    worst = {
        "max_mantissa_mean": max(each.mantissa_mean for each in measured.mismatches),
        "max_mantissa_median": max(each.mantissa_median for each in measured.mismatches),
        "shortfall_ceiling": measured.shortfall,
    }
    for name, value in worst.items():
        names = (name, "max_shortfall") if name == "shortfall_ceiling" else (name,)
        judgements = [
            judged(wide.model_copy(update=dict.fromkeys(names, share * value)))  # type: ignore[arg-type]
            for share in (0.5, 0.9, 1.1, 4.0)
        ]
        assert judgements == [(False, True), (False, False), (True, False), (True, True)], (name, value)


def test_a_conversation_of_two_turns_is_accepted_and_its_replies_are_the_environments() -> None:
    environment = Letters("more? ")
    (usual, _), *_ = Counter(token for each in honest() for token in each.output).most_common()
    model = decoder(QWEN3, fond_of_ending(QWEN3, parameters(QWEN3), usual))
    rollouts = generate(model, environment, ASSIGNED, RL)
    judged = Verifier(model, environment, TOKENIZER, RL).verify(ASSIGNED, rollouts)
    assert all(each.reason is None for each in judged)
    spoken = next(each for each in rollouts if not all(each.made))
    other = Verifier(model, Letters("less? "), TOKENIZER, RL).verify(ASSIGNED, [spoken])
    assert reasons(other) == {RejectionReason.WRONG_REPLY}
    claimed = replace(spoken, made=tuple(True for _ in spoken.made))
    assert reasons(Verifier(model, environment, TOKENIZER, RL).verify(ASSIGNED, [claimed])) == {RejectionReason.WRONG_REPLY}


LONG = RL.max_tokens + 1
SPOILED: dict[str, tuple[RejectionReason, Callable[[Rollout], dict[str, Any]]]] = {
    "a problem that was not assigned": (RejectionReason.WRONG_PROMPT, lambda it: {"problem": 5}),
    "a copy that was not assigned": (RejectionReason.WRONG_PROMPT, lambda it: {"copy": 3}),
    "another prompt": (RejectionReason.WRONG_PROMPT, lambda it: {"prompt": (*it.prompt[:-1], 33)}),
    "a truncated output": (
        RejectionReason.BAD_TERMINATION,
        lambda it: {"output": it.output[:16], "made": it.made[:16], "proofs": it.proofs[: 2 * 66]}),
    "a long output": (RejectionReason.MALFORMED, lambda it: {"output": (65,) * LONG, "made": (True,) * LONG}),
    "an unknown token": (RejectionReason.MALFORMED, lambda it: {"output": (*it.output[:-1], 256)}),
    "proofs cut short": (RejectionReason.MALFORMED, lambda it: {"proofs": it.proofs[:-1]}),
    "no polynomial": (RejectionReason.MALFORMED, lambda it: {"proofs": b"\0\0" + it.proofs[2:]}),
    "proofs of another rollout": (
        RejectionReason.WRONG_COMPUTATION,
        lambda it: {"proofs": next(each.proofs for each in honest() if len(each.proofs) == len(it.proofs) and each != it)}),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILED)
def test_a_rollout_that_is_not_what_was_assigned_is_rejected_for_its_reason(what: str) -> None:
    reason, changes = SPOILED[what]
    rollout = next(each for each in honest() if each.problem == 4 and len(each.output) > 16)
    assert spoiled(rollout, **changes(rollout)) is reason


def test_verdicts_on_honest_rollouts_and_on_other_weights_are_sure() -> None:
    for seed, reason in ((3, None), (4, RejectionReason.WRONG_COMPUTATION)):
        judged = verifier(seed=seed).verify(ASSIGNED, honest())
        assert (reasons(judged), {each.sure for each in judged}) == ({reason}, {True})
    assert {each.sure for each in verifier().verify(replace(ASSIGNED, problems=(5,)), honest())} == {True}


def test_a_rollout_that_is_there_twice_counts_once() -> None:
    rollout = honest()[0]
    first, second = verifier().verify(ASSIGNED, [rollout, rollout])
    assert (first.reason, second.reason) == (None, RejectionReason.MALFORMED)


def test_an_end_token_put_early_is_rejected() -> None:
    rollout = max(honest(), key=lambda each: len(each.output))
    output = (*rollout.output[:7], TOKENIZER.end)
    model = decoder(QWEN3, parameters(QWEN3))
    hidden = model(torch.tensor([[*rollout.prompt, *output[:-1]]]))[0, len(rollout.prompt) - 1 :]
    proofs = b"".join(prove(hidden.bfloat16(), RL.top_k, RL.chunk_tokens))
    assert spoiled(rollout, output=output, made=rollout.made[:8], proofs=proofs) is RejectionReason.BAD_TERMINATION


def test_text_of_another_model_with_proofs_of_the_right_one_is_bad_sampling() -> None:
    small = ModelConfig(**{**vars(QWEN3), "layers": 1})
    model, writer = decoder(QWEN3, parameters(QWEN3)), decoder(small, parameters(small))
    rollouts = generate(model, Letters(), ASSIGNED, RL, writer=writer)
    assert reasons(verifier().verify(ASSIGNED, rollouts)) <= {RejectionReason.BAD_SAMPLING, RejectionReason.BAD_TERMINATION}


def test_a_problem_drawn_again_for_another_batch_has_other_noise() -> None:
    """Else the same bytes would be accepted, and credited, again."""
    again = replace(ASSIGNED, number=1)
    assert again.key(4, 0) != ASSIGNED.key(4, 0)
    assert reasons(verifier().verify(again, honest())) <= {RejectionReason.BAD_SAMPLING, RejectionReason.BAD_TERMINATION}


def test_bets_grow_against_other_weights_and_in_one_precision_more_so() -> None:
    theta = parameters(QWEN3)
    theta *= 1 + 0.003 * np.random.default_rng(1).standard_normal(len(theta), np.float32)
    rl = RL.changed(same_shortfall_rate=1e-6, same_exchange_rate=1e-4, same_mantissa_rate=0.05)

    def grown(model: Decoder, precision: Precision) -> Growth:
        judged = Verifier(model, Letters(), TOKENIZER, rl).verify(replace(ASSIGNED, precision=precision), honest())
        return total_growth(each.growth for each in judged)

    cheat, true = decoder(QWEN3, theta), decoder(QWEN3, parameters(QWEN3))
    assert max(grown(true, Precision.FLOAT32)) < 0 < max(grown(cheat, Precision.BFLOAT16))
    assert max(grown(cheat, Precision.BFLOAT16)) < max(grown(cheat, Precision.FLOAT32))


@pytest.mark.slow
def test_a_rollout_of_another_peer_or_version_is_bad_sampling() -> None:
    for other in (replace(ASSIGNED, peer="12D3KooWother"), replace(ASSIGNED, version=4), replace(ASSIGNED, run=b"other")):
        assert reasons(verifier().verify(ASSIGNED, honest(assigned=other))) <= {
            RejectionReason.BAD_SAMPLING,
            RejectionReason.BAD_TERMINATION,
        }


def test_a_verdict_on_an_honest_rollout_depends_on_no_other_one() -> None:
    rollouts = honest()
    together = verifier().verify(ASSIGNED, rollouts)
    alone = [verifier().verify(ASSIGNED, [rollout])[0] for rollout in rollouts]
    assert [(each.reason, each.reward) for each in together] == [(each.reason, each.reward) for each in alone]


def test_states_that_are_not_numbers_are_judged_without_an_error() -> None:
    theta = parameters(QWEN3)
    theta[:] = np.nan
    model = decoder(QWEN3, theta)
    judged = Verifier(model, Letters(), TOKENIZER, RL).verify(ASSIGNED, honest())
    assert None not in reasons(judged) and all(is_growth(each.growth) for each in judged)
