"""Conversations with an environment: made, verified over all turns, and learned from in the model's own tokens alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from protocol.formats.rl import RlConfig
from tests.trainer.rl.honest import CPU, FAMILIES, TOKENIZER, Letters, decoder, fond_of_ending, generate, parameters
from trainer.environments.environment import Environment, Problem
from trainer.environments.registry import open_environment
from trainer.rl.policy import pack
from trainer.rl.rollout import Rollout
from trainer.rl.verification import Assignment, Judged, RejectionReason, Verifier
from trainer.rl.worker import RolloutTasks, RolloutWorker, decode_batch, encode_batch

RL = RlConfig(max_tokens=32, max_turn_tokens=12, row_tokens=64, micro_batch_tokens=256, top_k=32, chunk_tokens=8)
ASSIGNED = Assignment(b"run", 5, "12D3KooWworker", (4, 7), 3)
LLAMA = FAMILIES["llama"]


@cache
def theta() -> np.ndarray:
    """Parameters of a model that ends its turns often."""
    plain = generate(decoder(LLAMA, parameters(LLAMA)), Letters(), ASSIGNED, RL.changed(max_turn_tokens=0))
    (usual, _), *_ = Counter(token for each in plain for token in each.output).most_common()
    return fond_of_ending(LLAMA, parameters(LLAMA), usual)


def worker(environment: Environment, rl: RlConfig = RL) -> RolloutWorker:
    made = RolloutWorker(rl, LLAMA, RolloutTasks(environment, TOKENIZER), CPU)
    made.keep_version(ASSIGNED.version, theta())
    return made


def verdicts(environment: Environment, rollouts: Sequence[Rollout], path: Path) -> list[Judged]:
    path.write_bytes(encode_batch(rollouts))
    return worker(environment).verify(ASSIGNED, path)


class Unsure(Letters):
    """Its replies come from a program, which may say something else elsewhere.  fails: it gives no reply at all."""

    def __init__(self, again: str, fails: bool = False) -> None:
        super().__init__(again)
        self.fails = fails

    def has_exact_replies(self, problem: Problem) -> bool:
        return False

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        if self.fails:
            raise OSError("no memory")
        return super().reply(problem, turns)


def test_a_tool_is_asked_answers_and_is_not_learned_from(tmp_path: Path) -> None:
    environment, path = open_environment("calculate"), tmp_path / "batch"
    tokens = worker(environment).generate(ASSIGNED, path)
    rollouts = decode_batch(path.read_bytes())
    assert tokens == sum(sum(each.made) for each in rollouts) < sum(len(each.output) for each in rollouts)
    judged = worker(environment).verify(ASSIGNED, path)
    assert {each.reason for each in judged} == {None} and all(each.reward == 0.0 and each.growth for each in judged)
    assert sum(each.tokens for each in judged) == tokens
    groups = worker(environment).groups([path])
    rows = pack([member.rollout for group in groups for member in group.members], [0.0] * len(rollouts), RL.row_tokens)
    assert rows.counted_tokens == tokens
    answered = next(each for each in rollouts if not all(each.made))
    place = answered.made.index(False)
    assert bytes(answered.output[place : place + 2]) == b"?\n" and answered.made[place : place + 3] == (False, False, True)
    forged = replace(answered, output=(*answered.output[:place], ord("7"), *answered.output[place + 1 :]))
    others = [each if each != answered else forged for each in rollouts]
    assert RejectionReason.WRONG_REPLY in {each.reason for each in verdicts(environment, others, path)}


def test_a_turn_ends_at_its_limit_and_a_longer_one_is_refused(tmp_path: Path) -> None:
    path, environment = tmp_path / "batch", Letters("more? ")
    worker(environment).generate(ASSIGNED, path)
    rollouts = decode_batch(path.read_bytes())
    cut = [each for each in rollouts if len(each.output) < RL.max_tokens and each.output[-1] not in TOKENIZER.ends]
    assert cut, "some turn has no end token and fewer tokens than an output may have"
    assert {each.reason for each in worker(environment).verify(ASSIGNED, path)} == {None}
    alone = generate(decoder(LLAMA, theta()), environment, ASSIGNED, RL.changed(max_turn_tokens=0))
    long = [each for each in alone if each.output[: RL.max_turn_tokens + 1].count(TOKENIZER.end) == 0]
    judged = Verifier(decoder(LLAMA, theta()), environment, TOKENIZER, RL).verify(ASSIGNED, long)
    assert long and {each.reason for each in judged} == {RejectionReason.WRONG_REPLY}


@pytest.mark.parametrize("elsewhere", [Unsure("less? "), Unsure("more? ", fails=True)])
def test_a_reply_that_cannot_be_repeated_is_no_fault_of_the_maker(elsewhere: Unsure, tmp_path: Path) -> None:
    path = tmp_path / "batch"
    worker(Unsure("more? ")).generate(ASSIGNED, path)
    judged = worker(elsewhere).verify(ASSIGNED, path)
    unread = [each for each in judged if each.reward is None]
    assert unread and {each.reason for each in judged} == {None}
    assert all(each.detail and each.tokens and each.growth for each in unread)
    assert worker(elsewhere).groups([path]) == []


def test_other_weights_are_rejected_whatever_the_tool_replies(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    worker(Unsure("more? ")).generate(ASSIGNED, path)
    other = RolloutWorker(RL, LLAMA, RolloutTasks(Unsure("less? "), TOKENIZER), CPU)
    other.keep_version(ASSIGNED.version, parameters(LLAMA, seed=9))
    assert {each.reason for each in other.verify(ASSIGNED, path)} == {RejectionReason.WRONG_COMPUTATION}
