"""What a peer asks of the trainer of a run with rollouts, and gets, in the words that travel between them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from protocol.formats.rl import RlConfig
from tests.trainer import small
from trainer.environments.environment import Problem
from trainer.environments.task_file import ExtendedEnvironment
from trainer.rl.rollout import Rollout
from trainer.rl.worker import decode_batch
from trainer.service import frames
from trainer.service.inbox import Abandoned
from trainer.service.service import VERDICTS_AT_ONCE, RolloutJobs
from trainer.worker import Task, Worker

MOST_BATCHES, MAX_ROLLOUTS = 512, 4096
"""Of a round, and in a batch, by the limits of the manifest."""
RL = RlConfig(max_tokens=6, row_tokens=64, micro_batch_tokens=512, optimizer_steps=1, lr=1e-3, warmup_steps=0)
TASK: dict[str, Any] = {"run": "ab" * 32, "version": 2, "peer": "12D3KooWme", "problems": [5, 9], "copies": 3}


@pytest.fixture
def worker() -> Worker:
    return worker_of(RL)


def worker_of(rl: RlConfig) -> Worker:
    return Worker(replace(small.config(environment="sort"), rl=rl), small.CPU)


@pytest.fixture
def jobs(worker: Worker) -> RolloutJobs:
    made = RolloutJobs(worker.config, worker, small.CPU)
    made.keep_version(2, small.theta())
    return made


def verdicts(jobs: RolloutJobs, path: Path, task: dict[str, Any] = TASK) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []

    def tell(some: list[dict[str, Any]]) -> None:
        assert 0 < len(some) <= VERDICTS_AT_ONCE
        told.extend(json.loads(json.dumps(some)))

    assert jobs.verify(task, str(path), tell) == {}
    return told


def without_proofs(data: bytes) -> list[Rollout]:
    return [replace(each, proofs=b"") for each in decode_batch(data)]


def test_a_batch_is_made_judged_and_learned_from(jobs: RolloutJobs, worker: Worker, tmp_path: Path) -> None:
    path, done = tmp_path / "batch", list[tuple[int, int]]()
    answer = jobs.generate(TASK, str(path), lambda *progress: done.append(progress))
    rollouts = decode_batch(path.read_bytes())
    assert answer == {"rollouts": 6, "tokens": sum(len(each.output) for each in rollouts)}
    assert done[-1] == (6, 6)
    assert [each["reason"] for each in verdicts(jobs, path)] == [""] * 6

    out = memoryview(bytearray(worker.layout.payload_bytes))
    task, tried = Task(3, [], 1, 3, [path.name], str(tmp_path)), list[object]()
    learnt = jobs.learn(task, small.theta(), out, lambda *_: False, tried.append)
    assert learnt.reward is not None and 0 <= learnt.reward <= 1
    assert learnt.tokens >= 1 and learnt.steps >= 1, "a READY says at least one of each"
    assert not tried, "only problems of the crowd are counted"
    best, typical = learnt.answers
    assert best.reward >= typical.reward and best.prompt and typical.prompt
    texts = {worker.tokenizer.decode([token for token in each.output if token]) for each in rollouts}
    assert {best.text, typical.text} <= texts


def always(problem: Problem, turns: Sequence[str]) -> float:
    return 1.0


def no_two_the_same() -> Callable[[Problem, Sequence[str]], float]:
    numbers = count(1)
    return lambda problem, turns: 1 / next(numbers)


def only_once() -> Callable[[Problem, Sequence[str]], float]:
    """The sandbox fails when all answers have been scored."""
    left = [1.0] * 6
    return lambda problem, turns: left.pop()


@pytest.mark.parametrize(
    ("score", "exact", "found"),
    [(always, True, (0, 0)), (always, False, (1, 1)), (no_two_the_same(), False, (1, 0)), (only_once(), False, (0, 0))],
    ids=["no program runs", "repeatable", "not repeatable", "failing"],
)
def test_one_answer_to_each_task_of_a_set_is_scored_twice(
    jobs: RolloutJobs,
    worker: Worker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    score: Callable[[Problem, Sequence[str]], float],
    exact: bool,
    found: tuple[int, int],
) -> None:
    jobs.generate(TASK, str(tmp_path / "batch"), lambda *_: None)
    monkeypatch.setattr(ExtendedEnvironment, "size", 0)  # so all problems are of sets
    monkeypatch.setattr(
        ExtendedEnvironment, "inner", lambda self, problem: (SimpleNamespace(score=score, is_exact=lambda _: exact), problem)
    )
    out, tried = memoryview(bytearray(worker.layout.payload_bytes)), list[tuple[int, ...]]()
    task = Task(3, [], 1, 3, ["batch"], str(tmp_path))
    jobs.learn(task, small.theta(), out, lambda *_: False, tried.extend)
    assert [each[:2] for each in tried] == [(5, 3), (9, 3)]
    assert [each[3:] for each in tried] == [(*found, 0)] * 2


def test_a_kl_term_compares_with_the_file_that_the_task_names(tmp_path: Path) -> None:
    """Weights far from the policy's make another contribution than the policy's own."""
    worker = worker_of(RL.changed(kl_weight=10.0, drop_zero_advantage=False))
    jobs = RolloutJobs(worker.config, worker, small.CPU)
    jobs.keep_version(2, small.theta())
    jobs.generate(TASK, str(tmp_path / "batch"), lambda *_: None)
    made = []
    for name, weights in (("own", small.theta()), ("other", -small.theta())):
        (tmp_path / name).write_bytes((weights.view(np.uint32) >> 16).astype("<u2").tobytes())
        out = memoryview(bytearray(worker.layout.payload_bytes))
        task = Task(3, [], 1, 3, ["batch"], str(tmp_path), str(tmp_path / name))
        made.append((jobs.learn(task, small.theta(), out, lambda *_: False, lambda _: None).loss, bytes(out)))
    assert made[1][0] > made[0][0] + 0.1, "a distance costs loss"
    assert made[0][1] != made[1][1]
    with pytest.raises(ValueError, match="no reference weights"):
        jobs.learn(replace(task, reference=""), small.theta(), out, lambda *_: False, lambda _: None)


def test_a_round_whose_batches_are_all_rubbish_ends_with_a_contribution_of_nothing(
    jobs: RolloutJobs, worker: Worker, tmp_path: Path
) -> None:
    (tmp_path / "batch").write_bytes(b"rubbish")
    out = memoryview(bytearray(worker.layout.payload_bytes))
    learnt = jobs.learn(Task(3, [], 1, 3, ["batch"], str(tmp_path)), small.theta(), out, lambda *_: False, lambda _: None)
    assert (learnt.tokens, learnt.steps, learnt.norm, learnt.answers) == (1, 1, 0.0, ())


def test_bytes_of_strangers_get_a_verdict_whatever_they_are(jobs: RolloutJobs, tmp_path: Path) -> None:
    path = tmp_path / "batch"
    jobs.generate(TASK, str(path), lambda *_: None)
    good = path.read_bytes()
    for data in (b"", b"\xff" * 100, good[:-1], good + b"\0", good[: len(good) // 2]):
        path.write_bytes(data)
        assert [each["reason"] for each in verdicts(jobs, path)] == ["malformed"] * 6
    noise = np.random.default_rng(1)
    for at in noise.integers(0, len(good), 200):
        spoiled = bytearray(good)
        spoiled[at] ^= int(noise.integers(1, 256))
        path.write_bytes(spoiled)
        judged = verdicts(jobs, path)
        assert len(judged) == 6
        if not any(each["reason"] for each in judged):  # another modulus keeps the positions apart as well
            assert without_proofs(bytes(spoiled)) == without_proofs(good)


def test_between_steps_work_may_be_held_up_or_given_up(jobs: RolloutJobs, tmp_path: Path) -> None:
    path, calls = tmp_path / "batch", list[str]()
    jobs.generate(TASK, str(path), lambda *_: None, lambda: calls.append("generate"))
    good = path.read_bytes()
    assert len(calls) >= max(len(each.output) for each in decode_batch(good)), "at each token at least"

    def third_time() -> None:
        calls.append("abandon")
        if calls.count("abandon") == 3:
            raise Abandoned

    path.unlink()
    with pytest.raises(Abandoned):
        jobs.generate(TASK, str(path), lambda *_: None, third_time)
    assert not path.exists()
    jobs.generate(TASK, str(path), lambda *_: None)
    assert path.read_bytes() == good, "nothing is left of what was given up"
    jobs.verify(TASK, str(path), lambda some: None, lambda: calls.append("verify"))
    assert "verify" in calls


def test_what_is_said_at_once_fits_into_a_frame() -> None:
    names = {"rollouts": ["ab" * 32] * MOST_BATCHES, "rollouts_in": "/" * 4096, "reference": "/" * 4096}
    assert frames.pack({"id": 1 << 30, "do": "compute", "task": names})
    problems = {"problems": [(1 << 40) - 1] * MAX_ROLLOUTS, "run": "ab" * 32, "peer": "1" * 60}
    assert frames.pack({"id": 1 << 30, "do": "verify", "task": problems, "path": "/" * 4096})
    longest = {"reason": "wrong computation", "detail": "\u20ac" * 200, "reward": 0.1234567890123456, "tokens": 1 << 20}
    assert frames.pack({"id": 1 << 30, "is": "progress", "verdicts": [longest] * VERDICTS_AT_ONCE})
