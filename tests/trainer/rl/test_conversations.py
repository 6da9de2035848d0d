"""Conversations with an environment: made, verified over all turns, and learned from in the model's own tokens alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from protocol.formats.rl import RlConfig
from tests.trainer.rl.honest import CPU, FAMILIES, TOKENIZER, Letters, fond_of_ending, parameters
from trainer.environments.environment import Environment, Problem, ReplyUnavailable
from trainer.environments.registry import open_environment
from trainer.rl.policy import pack
from trainer.rl.rollout import Rollout
from trainer.rl.verification import Assignment, RejectionReason
from trainer.rl.worker import RolloutTasks, RolloutWorker, decode_batch, encode_batch

RL = RlConfig(max_tokens=32, max_turn_tokens=12, row_tokens=64, micro_batch_tokens=256, top_k=32, chunk_tokens=8)
FREE = RL.changed(max_turn_tokens=0)
ASSIGNED = Assignment(b"run", 5, "12D3KooWworker", (4, 7), 3)
LLAMA = FAMILIES["llama"]


@cache
def theta() -> np.ndarray:
    """Parameters of a model that ends its turns often."""
    with TemporaryDirectory() as folder:
        rollouts = made(Letters(), Path(folder) / "batch", FREE, parameters(LLAMA))
    (usual, _), *_ = Counter(token for each in rollouts for token in each.output).most_common()
    return fond_of_ending(LLAMA, parameters(LLAMA), usual)


def worker(environment: Environment, rl: RlConfig = RL, weights: np.ndarray | None = None) -> RolloutWorker:
    one = RolloutWorker(rl, LLAMA, RolloutTasks(environment, TOKENIZER), CPU)
    one.keep_version(ASSIGNED.version, theta() if weights is None else weights)
    return one


def made(environment: Environment, path: Path, rl: RlConfig = RL, weights: np.ndarray | None = None) -> list[Rollout]:
    """The rollouts of a batch that is left at `path`."""
    tokens = worker(environment, rl, weights).generate(ASSIGNED, path)
    rollouts = decode_batch(path.read_bytes())
    assert tokens == sum(sum(each.made) for each in rollouts)
    return rollouts


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
    path, environment = tmp_path / "batch", open_environment("calculate")
    rollouts, judge = made(environment, path, FREE), worker(environment, FREE)
    tokens = sum(sum(each.made) for each in rollouts)
    judged = judge.verify(ASSIGNED, path)
    assert {each.reason for each in judged} == {None} and all(each.reward == 0.0 and each.growth for each in judged)
    assert sum(each.tokens for each in judged) == tokens < sum(len(each.output) for each in rollouts)
    learned = [member.rollout for group in judge.groups([path]) for member in group.members]
    assert pack(learned, [0.0] * len(learned), RL.row_tokens).counted_tokens == tokens
    answered = next(each for each in rollouts if not all(each.made))
    place = answered.made.index(False)
    assert bytes(answered.output[place : place + 2]) == b"?\n" and answered.made[place : place + 3] == (False, False, True)
    forged = replace(answered, output=(*answered.output[:place], ord("7"), *answered.output[place + 1 :]))
    path.write_bytes(encode_batch([each if each != answered else forged for each in rollouts]))
    assert Counter(each.reason for each in judge.verify(ASSIGNED, path))[RejectionReason.WRONG_REPLY] == 1


def test_a_turn_ends_at_its_limit_and_a_longer_one_is_refused(tmp_path: Path) -> None:
    path, environment = tmp_path / "batch", Letters("more? ")
    cut = [each for each in made(environment, path) if each.output[-1] not in TOKENIZER.ends]
    assert any(len(each.output) < RL.max_tokens for each in cut), "the limit on a turn ended it"
    assert {each.reason for each in worker(environment).verify(ASSIGNED, path)} == {None}
    longer = made(environment, path, FREE)
    assert any(TOKENIZER.end not in each.output[: RL.max_turn_tokens + 1] for each in longer)
    judged = worker(environment).verify(ASSIGNED, path)
    assert RejectionReason.WRONG_REPLY in {each.reason for each in judged}
    shorter = worker(environment, RL.changed(max_turn_tokens=RL.max_turn_tokens + 1))
    made(environment, path)
    assert RejectionReason.BAD_TERMINATION in {each.reason for each in shorter.verify(ASSIGNED, path)}


@pytest.mark.parametrize("elsewhere", [Unsure("less? "), Unsure("mor"), Unsure("more? ", fails=True)])
def test_a_reply_that_cannot_be_repeated_is_no_fault_of_the_maker(elsewhere: Unsure, tmp_path: Path) -> None:
    path = tmp_path / "batch"
    made(Unsure("more? "), path)
    judged = worker(elsewhere).verify(ASSIGNED, path)
    unread = [each for each in judged if each.reward is None]
    assert unread and {each.reason for each in judged} == {None}
    assert all(each.detail and each.tokens and each.growth for each in unread)
    assert worker(elsewhere).groups([path]) == []


def test_a_reply_that_left_no_room_may_leave_some_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    made(Unsure("more? " * 8), path)
    judged = worker(Unsure("a")).verify(ASSIGNED, path)
    assert {each.reason for each in judged} == {None} and any(each.reward is None for each in judged)


def test_programs_of_the_model_are_run_only_if_the_model_wrote_them(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    rollouts = made(Unsure("more? "), path)
    other = worker(Unsure("more? ", fails=True), weights=parameters(LLAMA, seed=9))
    assert {each.reason for each in other.verify(ASSIGNED, path)} == {RejectionReason.WRONG_COMPUTATION}
    unmade = [replace(each, made=(False,) * len(each.made)) for each in rollouts]
    path.write_bytes(encode_batch(unmade))
    judged = worker(Unsure("more? ")).verify(ASSIGNED, path)
    assert {(each.reason, each.sure) for each in judged} == {(RejectionReason.WRONG_REPLY, True)}


def test_a_tool_that_fails_here_ends_the_batch(tmp_path: Path) -> None:
    with pytest.raises(ReplyUnavailable, match="gives no reply here: OSError"):
        worker(Unsure("more? ", fails=True)).generate(ASSIGNED, tmp_path / "batch")
    assert not (tmp_path / "batch").exists()
