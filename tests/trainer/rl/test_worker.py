"""Batches: made by one process, judged and learned from by others, with the weights of the right version."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from protocol.formats.model import ModelConfig
from protocol.formats.results import PolicyFigures
from protocol.formats.rl import RlConfig
from tests.trainer import small
from tests.trainer.generate import vllm_stand_in
from tests.trainer.rl.honest import CPU, FAMILIES, TOKENIZER, Letters, decoder, generate, parameters
from trainer.config import SPARE_VERSIONS
from trainer.environments.environment import Problem
from trainer.environments.task_file import ExtendedEnvironment
from trainer.generate.choice import GeneratorName
from trainer.rl.learner import Learner, Learnt, LearnTask, Totals
from trainer.rl.verification import Assignment, RejectionReason
from trainer.rl.worker import RolloutTasks, RolloutWorker, Tried, decode_batch, encode_batch
from trainer.service.inbox import Abandoned
from trainer.worker import Done, Task, Worker

RL = RlConfig(max_tokens=24, row_tokens=64, micro_batch_tokens=256, top_k=32, chunk_tokens=8)
ASSIGNED = Assignment(b"run", 5, "12D3KooWworker", (7, 4), 3)
LLAMA = FAMILIES["llama"]


def worker(model: ModelConfig = LLAMA, *versions: int) -> RolloutWorker:
    """Keeps these versions, each of its own seed."""
    made = RolloutWorker(RL, model, RolloutTasks(Letters(), TOKENIZER), CPU)
    for version in versions or (ASSIGNED.version,):
        made.keep_version(version, parameters(model, seed=version))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_generated_in_batches_is_what_is_generated_alone_and_is_accepted(family: str, tmp_path: Path) -> None:
    model, path = FAMILIES[family], tmp_path / "batch"
    tokens = worker(model).generate(ASSIGNED, path)
    rollouts = decode_batch(path.read_bytes())
    alone = generate(decoder(model, parameters(model, seed=5)), Letters(), ASSIGNED, RL)
    assert [each.output for each in rollouts] == [each.output for each in alone]
    assert tokens == sum(len(each.output) for each in rollouts)
    judged = worker(model).verify(ASSIGNED, path)
    assert [each.reason for each in judged] == [None] * 6
    assert all(each.reward is not None for each in judged)


def test_a_group_has_the_completions_of_a_problem_and_rewards_that_are_computed_here(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    for path, peer in zip(paths, ("one", "two"), strict=True):
        worker().generate(replace(ASSIGNED, peer=peer), path)
    groups = worker().groups(paths)
    assert [len(group.members) for group in groups] == [3, 3, 3, 3], "the same problem of two peers is two groups"
    judged = worker().verify(replace(ASSIGNED, peer="one"), paths[0])
    assert sorted(each.reward or 0.0 for each in judged) == sorted(
        reward for group in groups[:2] for reward in group.rewards
    )


def test_batches_that_no_honest_peer_makes_are_left_out_of_what_is_learned_from(tmp_path: Path) -> None:
    good, path = tmp_path / "good", tmp_path / "bad"
    worker().generate(ASSIGNED, good)
    [first, *others] = decode_batch(good.read_bytes())
    long = replace(first, output=first.output * 99, made=first.made * 99)
    for bad in (
        b"",
        good.read_bytes()[:-1],
        encode_batch([first, first]),
        encode_batch([replace(first, problem=1 << 62)]),
        encode_batch([replace(first, prompt=first.prompt * 2), *others]),
        encode_batch([replace(first, output=(1 << 19,), made=(True,))]),
        encode_batch([long]),
        encode_batch([replace(first, made=(False,) * len(first.made))]),
        encode_batch([replace(first, proofs=b"")]),
    ):
        path.write_bytes(bad)
        assert len(worker().groups([path, good, tmp_path / "gone"])) == 2
    assert worker().groups([path]) == []


class Fragile(Letters):
    """Cannot score what it is given."""

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        raise OverflowError("a text that nobody thought of")


def test_what_cannot_be_scored_here_is_no_lie_of_its_maker(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    worker().generate(ASSIGNED, path)
    fragile = RolloutWorker(RL, LLAMA, RolloutTasks(Fragile(), TOKENIZER), CPU)
    fragile.keep_version(ASSIGNED.version, parameters(LLAMA, seed=ASSIGNED.version))
    assert {(each.reason, each.reward) for each in fragile.verify(ASSIGNED, path)} == {(None, None)}
    assert fragile.groups([path]) == []


def test_the_newest_versions_are_kept_and_rollouts_are_judged_with_theirs(tmp_path: Path) -> None:
    made = worker(LLAMA, *range(1, 8))
    assert sorted(made.versions) == [4, 5, 6, 7]
    path = tmp_path / "batch"
    made.generate(ASSIGNED, path)
    assert {each.reason for each in made.verify(ASSIGNED, path)} == {None}
    assert {each.reason for each in made.verify(replace(ASSIGNED, version=6), path)} == {RejectionReason.WRONG_COMPUTATION}
    with pytest.raises(ValueError, match="version 3"):
        made.verify(replace(ASSIGNED, version=3), path)


def test_a_peer_that_goes_back_to_another_branch_works_with_the_version_that_it_is_at(tmp_path: Path) -> None:
    """Versions of the branch that it left are later, and it may have gone back by more of them than are kept."""
    made, path, there = worker(), tmp_path / "batch", tmp_path / "there"
    made.generate(ASSIGNED, path)
    for version in range(20, 20 + 2 * (RL.max_async + SPARE_VERSIONS)):
        made.keep_version(version, parameters(LLAMA, seed=1))
    made.generate(replace(ASSIGNED, version=version), there)
    made.keep_version(ASSIGNED.version, parameters(LLAMA, seed=ASSIGNED.version))
    assert {each.reason for each in made.verify(ASSIGNED, path)} == {None}
    made.generate(ASSIGNED, there)
    assert there.read_bytes() == path.read_bytes()
    made.keep_version(version, parameters(LLAMA, seed=2))
    made.generate(replace(ASSIGNED, version=version), there)
    assert {each.reason for each in made.verify(replace(ASSIGNED, version=version), there)} == {None}


def test_bytes_that_are_no_batch_and_batches_in_another_order_are_rejected_whole(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    worker().generate(ASSIGNED, path)
    rollouts = decode_batch(path.read_bytes())
    for data, reason in (
        (b"", RejectionReason.MALFORMED),
        (path.read_bytes()[:-1], RejectionReason.MALFORMED),
        (encode_batch(rollouts[:-1]), RejectionReason.WRONG_PROMPT),
        (encode_batch([*rollouts, rollouts[0]]), RejectionReason.WRONG_PROMPT),
        (encode_batch(rollouts[::-1]), RejectionReason.WRONG_PROMPT),
    ):
        path.write_bytes(data)
        judged = worker().verify(ASSIGNED, path)
        assert [each.reason for each in judged] == [reason] * 6


def test_versions_are_bf16_of_the_swarms_parameters() -> None:
    theta = parameters(LLAMA) + np.float32(2**-20)
    made = worker()
    made.keep_version(1, theta)
    assert made.versions[1].float().numpy().tolist() != theta.tolist()
    assert (made.versions[1] == decoder(LLAMA, theta).flat.bfloat16()).all()


def with_vllm(monkeypatch: pytest.MonkeyPatch, generator: GeneratorName, stale: str = "") -> RolloutWorker:
    """A worker with a stand-in for vLLM.  stale: a tensor that it does not take over."""
    vllm_stand_in.install(monkeypatch)
    monkeypatch.setattr(sys.modules["vllm"], "EngineArgs", partial(vllm_stand_in.EngineArgs, stale=stale))
    monkeypatch.setattr("trainer.rl.worker.choose_generator", lambda wanted, has_gpu: (wanted_or_vllm(wanted), "in a test"))
    made = RolloutWorker(RL, LLAMA, RolloutTasks(Letters(), TOKENIZER), CPU, generator=generator)
    made.keep_version(1, parameters(LLAMA, seed=1))
    return made


def wanted_or_vllm(wanted: GeneratorName) -> GeneratorName:
    return GeneratorName.VLLM if wanted is GeneratorName.AUTO else wanted


@pytest.mark.parametrize("stale", ["", "lm_head.weight"])
def test_a_generator_that_nobody_named_gives_way_to_the_built_in_one(
    stale: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maker, assignment = with_vllm(monkeypatch, GeneratorName.AUTO, stale), Assignment(b"run", 1, "peer", (4,), 3)
    maker.generate(assignment, tmp_path / "batch")
    assert [judged.reason for judged in worker(LLAMA, 1).verify(assignment, tmp_path / "batch")] == [None] * 3
    assert ("the built-in generator is used" in capsys.readouterr().err) == bool(stale)


# -- of a run ------------------------------------------------------------------------------------------------------------


SHORT = RlConfig(max_tokens=6, row_tokens=64, micro_batch_tokens=512, optimizer_steps=1, lr=1e-3, warmup_steps=0)
SORTED = Assignment(b"run", 2, "12D3KooWme", (5, 9), 3)


def trainer_of(rl: RlConfig) -> Worker:
    return Worker(replace(small.config(environment="sort"), rl=rl), CPU)


@pytest.fixture
def trainer() -> Worker:
    return trainer_of(SHORT)


@pytest.fixture
def run(trainer: Worker) -> RolloutWorker:
    made = RolloutWorker.of(trainer.config, CPU, trainer.tokenizer)
    made.keep_version(2, small.theta())
    return made


def learnt_from(
    run: RolloutWorker,
    trainer: Worker,
    path: Path,
    reference: str = "",
    tell: Callable[[list[Tried]], None] | None = None,
    version: int | None = 2,
) -> tuple[Done, bytes]:
    """What the third round learns from a batch of this version, and its contribution."""
    out = memoryview(bytearray(trainer.layout.payload_bytes))
    task = Task(3, [], 1, 3, [path.name], str(path.parent), reference, versions=[version])
    learner = Learner(run.config, trainer.work)
    done = run.learn(task, learner, small.theta(), out, lambda *_: False, tell or (lambda tried: None))
    return done, bytes(out)


def test_the_factor_on_the_rate_reaches_the_learner(
    run: RolloutWorker, trainer: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[float]()

    def compute(learner: Learner, task: LearnTask, *_: object) -> Learnt:
        told.append(task.rate_factor)
        return Totals().learnt([])

    monkeypatch.setattr(Learner, "compute", compute)
    run.learn(
        Task(3, [], 1, 3, rate_factor=1.5),
        Learner(run.config, trainer.work),
        small.theta(),
        memoryview(b""),
        lambda *_: False,
    )
    assert told == [1.5]


def test_a_batch_is_made_judged_and_learned_from(run: RolloutWorker, trainer: Worker, tmp_path: Path) -> None:
    path, done, tried = tmp_path / "batch", list[tuple[int, int]](), list[Tried]()
    tokens = run.generate(SORTED, path, lambda *progress: done.append(progress))
    rollouts = decode_batch(path.read_bytes())
    assert tokens == sum(len(each.output) for each in rollouts) and done[-1] == (6, 6)
    assert [each.reason for each in run.verify(SORTED, path)] == [None] * 6
    learnt, _ = learnt_from(run, trainer, path, tell=tried.extend)
    assert learnt.reward is not None and 0 <= learnt.reward <= 1
    assert learnt.tokens >= 1 and learnt.steps >= 1, "a READY says at least one of each"
    assert not tried, "only problems of the crowd are counted"
    assert learnt.policy is not None and learnt.policy.left_out == 0
    best, typical = learnt.answers
    assert best.reward >= typical.reward and best.prompt and typical.prompt
    texts = {trainer.tokenizer.decode([token for token in each.output if token]) for each in rollouts}
    assert {best.text, typical.text} <= texts


@pytest.mark.parametrize("version", [None, 1])
def test_a_batch_of_weights_that_are_not_held_teaches_nothing_but_has_its_reward(
    run: RolloutWorker, trainer: Worker, tmp_path: Path, version: int | None
) -> None:
    run.generate(SORTED, tmp_path / "batch")
    (known, _), (learnt, data) = (learnt_from(run, trainer, tmp_path / "batch", version=each) for each in (2, version))
    assert learnt.policy == PolicyFigures(None, left_out=1) and data == trainer.layout.zeros()
    assert learnt.reward == known.reward and learnt.answers == known.answers


def no_two_the_same() -> Callable[[Problem, Sequence[str]], float]:
    numbers = count(1)
    return lambda problem, turns: 1 / next(numbers)


def only_once() -> Callable[[Problem, Sequence[str]], float]:
    """The sandbox fails when all answers have been scored."""
    left = [1.0] * 6
    return lambda problem, turns: left.pop()


@pytest.mark.parametrize(
    ("score", "exact", "found"),
    [
        (lambda *_: 1.0, True, (0, 0)),
        (lambda *_: 1.0, False, (1, 1)),
        (no_two_the_same(), False, (1, 0)),
        (only_once(), False, (0, 0)),
    ],
    ids=["no program runs", "repeatable", "not repeatable", "failing"],
)
def test_one_answer_to_each_task_of_a_set_is_scored_twice(
    run: RolloutWorker,
    trainer: Worker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    score: Callable[[Problem, Sequence[str]], float],
    exact: bool,
    found: tuple[int, int],
) -> None:
    run.generate(SORTED, tmp_path / "batch")
    monkeypatch.setattr(ExtendedEnvironment, "size", 0)  # so all problems are of sets
    inner = SimpleNamespace(score=score, is_exact=lambda _: exact)
    monkeypatch.setattr(ExtendedEnvironment, "inner", lambda self, problem: (inner, problem))
    tried = list[Tried]()
    learnt_from(run, trainer, tmp_path / "batch", tell=tried.extend)
    assert [(each[:2], each[3:]) for each in tried] == [((5, 3), (*found, 0)), ((9, 3), (*found, 0))]


def test_a_round_whose_batches_are_all_rubbish_ends_with_a_contribution_of_nothing(
    run: RolloutWorker, trainer: Worker, tmp_path: Path
) -> None:
    (tmp_path / "batch").write_bytes(b"rubbish")
    learnt, _ = learnt_from(run, trainer, tmp_path / "batch")
    assert (learnt.tokens, learnt.steps, learnt.norm, learnt.answers) == (1, 1, 0.0, ())


@pytest.mark.slow
def test_bytes_of_strangers_get_a_verdict_whatever_they_are(run: RolloutWorker, tmp_path: Path) -> None:
    path, noise = tmp_path / "batch", np.random.default_rng(1)
    run.generate(SORTED, path)
    good = path.read_bytes()
    for at in noise.integers(0, len(good), 200):
        spoiled = bytearray(good)
        spoiled[at] ^= int(noise.integers(1, 256))
        path.write_bytes(spoiled)
        judged = run.verify(SORTED, path)
        assert len(judged) == 6
        if not any(each.reason for each in judged):  # another modulus keeps the positions apart as well
            found, wanted = ([replace(each, proofs=b"") for each in decode_batch(data)] for data in (bytes(spoiled), good))
            assert found == wanted


def test_between_steps_work_may_be_held_up_or_given_up(run: RolloutWorker, tmp_path: Path) -> None:
    path, calls = tmp_path / "batch", list[str]()
    run.generate(SORTED, path, between=lambda: calls.append("generate"))
    good = path.read_bytes()
    assert len(calls) >= max(len(each.output) for each in decode_batch(good)), "at each token at least"

    def third_time() -> None:
        calls.append("abandon")
        if calls.count("abandon") == 3:
            raise Abandoned

    path.unlink()
    with pytest.raises(Abandoned):
        run.generate(SORTED, path, between=third_time)
    assert not path.exists()
    run.generate(SORTED, path)
    assert path.read_bytes() == good, "nothing is left of what was given up"
    run.verify(SORTED, path, lambda: calls.append("verify"))
    assert "verify" in calls
