"""A version's work is a function of theta, the task and the groups, and follows the formula whatever shares a row."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from protocol.formats.model import ModelConfig
from protocol.formats.rl import RlConfig
from tests.trainer import small
from trainer.models.llama.model import Decoder
from trainer.parameters import NotFinite
from trainer.rl.groups import Group, advantages, grouped, scored
from trainer.rl.learner import Learner, Learnt, LearnTask
from trainer.rl.rollout import Rollout

MODEL = ModelConfig.from_mapping(small.MODEL)
CONFIG = RlConfig(max_tokens=20, row_tokens=40, optimizer_steps=3, lr=1e-3, warmup_steps=0, clip_norm=1.0)
SIZE = small.LAYOUT.payload_bytes
TASK = LearnTask(order=5, first_step=0)
LOSSES = ("clip", "tis", "gspo")


def groups(problems: int = 4, copies: int = 5, seed: int = 0) -> list[Group]:
    """Rollouts of every length, with pieces that the environment said, and rewards that differ."""
    draw = random.Random(seed)
    pieces = []
    for problem in range(problems):
        prompt = tuple(draw.choices(range(1, 256), k=draw.randint(1, 9)))
        for copy in range(copies):
            output = tuple(draw.choices(range(1, 256), k=draw.randint(1, 20)))
            made = tuple(draw.random() < 0.8 for _ in output[1:])
            pieces.append(scored(Rollout(problem, copy, prompt, output, (True, *made), b""), draw.random()))
    return grouped(pieces)


def learner(**changes: Any) -> Learner:
    made = Learner.alone(CONFIG.changed(**changes), Decoder(MODEL, small.CPU), small.LAYOUTS)
    made.model.flat.copy_(torch.from_numpy(small.theta()))
    return made


def compute(made: Learner, given: list[Group], task: LearnTask = TASK, **options: Any) -> tuple[Learnt, bytes]:
    out = bytearray(SIZE)
    learnt = made.compute(task, given, small.theta(), memoryview(out), options.get("after_step", lambda *_: False))
    return learnt, bytes(out)


def of_age(age: int | None, given: list[Group]) -> list[Group]:
    return [replace(group, age=age) for group in given]


def weights(seed: int) -> Tensor:
    """Of an earlier version, in bf16, near the present ones."""
    noise = np.random.default_rng(seed).standard_normal(small.PARAMETERS).astype(np.float32)
    return torch.from_numpy(small.theta() + 0.05 * noise).bfloat16()


def plain_logp(model: Decoder, rollout: Rollout) -> Tensor:
    """Log-probabilities of the tokens that the model chose in one sequence alone."""
    sequence = torch.tensor([rollout.prompt + rollout.output])
    rows = torch.arange(len(rollout.prompt) - 1, sequence.shape[1] - 1)[torch.tensor(rollout.made)]
    with torch.no_grad():
        logits = model(sequence)[0, rows] @ model.output_weight.T
    return torch.log_softmax(logits, dim=1).gather(1, sequence[0, rows + 1, None])[:, 0]


def plain_gradient(
    made: Learner, given: list[Group], reference: np.ndarray | None = None, behaviour: Tensor | None = None
) -> Tensor:
    """Of the policy loss in the first step, each sequence computed alone, by torch.

    behaviour: weights that made all rollouts; None for the present ones.
    """
    config, model = made.config, made.model
    other = None if behaviour is None else model.over(behaviour.float())
    initial = None if reference is None else model.over(torch.from_numpy(reference))
    objective, tokens = torch.zeros(()), 0
    for group in given:
        for member, value in zip(group.members, advantages(group.rewards, config.divide_by_std), strict=True):
            rollout = member.rollout
            sequence = torch.tensor([rollout.prompt + rollout.output])
            rows = torch.arange(len(rollout.prompt) - 1, sequence.shape[1] - 1)[torch.tensor(rollout.made)]
            logits = (model(sequence)[0, rows] @ model.output_weight.T) / config.temperature
            chosen = torch.distributions.Categorical(logits=logits)
            logp = chosen.log_prob(sequence[0, rows + 1])
            each = -(logp - logp.detach()).exp() * value
            if other is not None and config.loss == "tis":
                each = each * (logp.detach() - plain_logp(other, rollout)).exp().clamp(max=2.0)
            if other is not None and config.loss == "gspo":
                ratio, within = (
                    (logp - plain_logp(other, rollout)).mean().exp(),
                    config.eps * min(1.0, 4 / len(rows)),
                )
                each = -torch.minimum(ratio * value, ratio.clamp(1 - within, 1 + within) * value).expand(len(rows))
            each = each - config.entropy_weight * chosen.entropy()
            if initial is not None:
                beyond = plain_logp(initial, rollout) - logp
                each = each + config.kl_weight * (beyond.exp() - beyond - 1)
            objective, tokens = objective + each.sum(), tokens + len(rows)
    (objective / tokens).backward()
    gradient = model.gradient.clone()
    model.gradient.zero_()
    return gradient


class Watched:
    """Keeps the gradient that each optimiser step starts from, and its rate."""

    def __init__(self, made: Learner) -> None:
        self.gradients: list[Tensor] = []
        self.rates: list[float] = []
        self._learner, self._step = made, made.optimiser.step
        made.optimiser.step = self.step  # type: ignore[method-assign]

    def step(self, rate: float) -> None:
        self.gradients.append(self._learner.model.gradient.clone())
        self.rates.append(rate)
        self._step(rate)


@pytest.mark.parametrize("micro_batch_tokens", [1, 90, 10_000])
@pytest.mark.parametrize(
    "changes", [{}, {"temperature": 0.7, "entropy_weight": 0.1}, {"divide_by_std": False}], ids=["plain", "warm", "no std"]
)
def test_a_step_has_the_gradient_of_each_sequence_alone(changes: dict[str, Any], micro_batch_tokens: int) -> None:
    made = learner(optimizer_steps=1, micro_batch_tokens=micro_batch_tokens, **changes)
    wanted, watched = plain_gradient(made, groups()), Watched(made)
    learnt = made.learn(TASK, groups())
    assert wanted.abs().max() > 1e-3
    torch.testing.assert_close(watched.gradients[0], wanted, rtol=1e-3, atol=1e-6)
    assert learnt.tokens == sum(sum(member.rollout.made) for group in groups() for member in group.members)
    assert learnt.ratio == pytest.approx(1.0, abs=1e-5) and learnt.clipped == 0.0


def written(weights: np.ndarray, folder: Path) -> tuple[Path, np.ndarray]:
    """A file of the weights in bf16, and what they are then."""
    rounded = torch.from_numpy(weights).to(torch.bfloat16)
    path = folder / "reference"
    path.write_bytes(rounded.view(torch.int16).numpy().tobytes())
    return path, rounded.float().numpy()


def test_the_kl_term_compares_with_the_reference(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).standard_normal(small.PARAMETERS).astype(np.float32)
    path, reference = written(small.theta() + 0.05 * noise, tmp_path)
    made = learner(optimizer_steps=1, kl_weight=0.5)
    wanted, watched = plain_gradient(made, groups(), reference), Watched(made)
    learnt = made.learn(replace(TASK, reference=path), groups())
    torch.testing.assert_close(watched.gradients[0], wanted, rtol=1e-3, atol=1e-6)
    assert learnt.kl > 0.01


def test_a_kl_term_without_its_reference_is_refused(tmp_path: Path) -> None:
    made = learner(kl_weight=0.5)
    with pytest.raises(ValueError, match="there are no reference weights"):
        compute(made, groups())
    (tmp_path / "short").write_bytes(bytes(2 * small.PARAMETERS - 2))
    with pytest.raises(ValueError, match=f"have {small.PARAMETERS - 1} parameters"):
        compute(made, groups(), replace(TASK, reference=tmp_path / "short"))


@pytest.mark.parametrize("loss", ["tis", "gspo"])
def test_a_step_on_stale_rollouts_has_the_gradient_of_each_sequence_alone(loss: str) -> None:
    made = learner(optimizer_steps=1, micro_batch_tokens=90, loss=loss)
    fresh, wanted = plain_gradient(made, groups()), plain_gradient(made, groups(), behaviour=weights(1))
    watched = Watched(made)
    made.learn(replace(TASK, behaviours={1: weights(1)}), of_age(1, groups()))
    assert float((fresh - wanted).abs().max()) > 1e-3
    torch.testing.assert_close(watched.gradients[0], wanted, rtol=1e-3, atol=1e-6)


def test_each_rollout_is_compared_with_the_version_that_made_it() -> None:
    """Rollouts of three versions share rows; the figures and the first step's weights follow from each alone."""
    made, versions, given = learner(optimizer_steps=2), {1: weights(1), 2: weights(2)}, groups(6)
    aged = [replace(group, age=number % 3) for number, group in enumerate(given)]
    before, apart = made.model.flat.clone(), list[Tensor]()
    for group in aged:
        other = made.model.over(versions[group.age].float() if group.age else before)
        rollouts = [member.rollout for member in group.members]
        apart += [plain_logp(made.model, each) - plain_logp(other, each) for each in rollouts]
    task = replace(TASK, behaviours=versions)
    batches = made._compared(aged, task)
    assert torch.equal(made.model.flat, before), "the weights are those of before"
    found = np.sort(np.concatenate([batch.log_ratios() for batch in batches]))
    log_ratio = torch.cat(apart).double()
    np.testing.assert_allclose(found, log_ratio.sort().values, atol=2e-5)
    learnt, ratio = made.learn(task, aged), log_ratio.exp()
    held = ratio.clamp(max=2.0)
    wanted = [(ratio - 1 - log_ratio).mean(), (ratio > 2).double().mean(), held.sum() ** 2 / (held**2).sum() / len(held)]
    assert learnt.staleness is not None and learnt.staleness.kl > 0.01
    assert [*vars(learnt.staleness).values()] == pytest.approx(list(map(float, wanted)), rel=1e-4)


def test_without_stale_rollouts_truncated_importance_sampling_is_clipping() -> None:
    clip, tis = (compute(learner(loss=loss), groups()) for loss in ("clip", "tis"))
    assert clip[1] == tis[1] and replace(tis[0], staleness=None) == clip[0]
    assert tis[0].staleness is not None and [*vars(tis[0].staleness).values()] == [0.0, 0.0, 1.0]
    stale = of_age(2, groups())
    assert compute(learner(loss="clip"), stale)[1] == clip[1], "clipping knows no age"
    assert compute(learner(loss="tis"), stale, replace(TASK, behaviours={2: weights(2)}))[1] != clip[1]


def test_batches_of_versions_that_are_not_held_are_left_out_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    lacking = [replace(group, batch=1) for age in (None, 2) for group in of_age(age, groups(seed=1))]
    made = {
        loss: compute(learner(loss=loss), [*groups(), *lacking], replace(TASK, behaviours={1: weights(1)}))
        for loss in LOSSES
    }
    alone = {loss: compute(learner(loss=loss), groups()) for loss in LOSSES}
    assert [made[loss][1] == alone[loss][1] for loss in LOSSES] == [False, True, True]
    assert [made[loss][0].left_out for loss in LOSSES] == [0, 1, 1]
    assert [made[loss][0].groups for loss in LOSSES] == [12, 12, 12], "their rewards count"
    assert "1 batch is left out" in capsys.readouterr().err


def test_same_work_gives_the_same_bytes_and_theta_is_never_written() -> None:
    one, other = compute(learner(), groups()), compute(learner(), groups())
    assert one == other and one[0].norm > 0
    theta = small.theta()
    theta.flags.writeable = False
    learner().compute(TASK, groups(), theta, memoryview(bytearray(SIZE)))
    assert np.array_equal(theta, small.theta())


def test_every_completion_is_in_one_batch_and_batches_differ_from_version_to_version() -> None:
    made = learner(optimizer_steps=3)

    def rows(order: int) -> list[list[tuple[int, ...]]]:
        found = []
        for packed in map(made._packed, made._parts(groups(), order)):
            numbers = sorted({int(number) for number in packed.documents.flat if number >= 0})
            found.append([tuple(packed.targets[packed.documents == number].tolist()) for number in numbers])
        return found

    members = [member.rollout for group in groups() for member in group.members]
    everything = sorted((rollout.prompt + rollout.output)[1:] for rollout in members)
    assert [len(batch) for batch in rows(0)] == [7, 7, 6]
    assert sorted(each for batch in rows(0) for each in batch) == everything
    assert rows(0) == rows(0) != rows(1)


def test_old_probabilities_are_those_of_the_parameters_before_the_first_step() -> None:
    made = learner(optimizer_steps=2, lr=1e-2)
    told = list[tuple[float, ...]]()

    def after_step(*progress: float) -> bool:
        told.append(progress)
        return True

    first = made.learn(TASK, groups(), after_step=after_step)
    assert told == [(1, first.loss, first.tokens, told[0][3])], "told after every step, and ended by it"
    assert first.steps == 1 and first.ratio == pytest.approx(1.0, abs=1e-5)
    both = learner(optimizer_steps=2, lr=1e-2).learn(TASK, groups())
    assert both.steps == 2 and abs(both.ratio - 1) > 1e-4


def test_groups_that_move_nothing_are_left_out_and_counted() -> None:
    equal = [Group(9, tuple(replace(member, reward=0.5) for member in groups()[0].members))]
    with_them, without = compute(learner(), [*groups(), *equal]), compute(learner(), groups())
    assert with_them[1] == without[1]
    assert (with_them[0].groups, with_them[0].dropped, without[0].dropped) == (5, 1, 0)
    kept = learner(drop_zero_advantage=False).learn(TASK, [*groups(), *equal])
    assert kept.dropped == 0 and kept.tokens > without[0].tokens


def test_nothing_to_learn_from_is_no_step_and_no_difference() -> None:
    equal = [Group(group.problem, tuple(replace(m, reward=1.0) for m in group.members)) for group in groups()]
    for given in (equal, []):
        learnt, data = compute(learner(), given)
        assert (learnt.steps, learnt.tokens, learnt.norm, learnt.loss) == (0, 0, 0.0, 0.0)
        assert data == small.LAYOUT.zeros()
    assert learner().learn(TASK, equal).reward == 1.0


def test_moments_stay_from_version_to_version() -> None:
    made = learner()
    compute(made, groups())
    assert compute(made, groups())[1] != compute(learner(), groups())[1]
    assert made.optimiser.steps == 6


def test_a_factor_on_the_rate_is_a_rate() -> None:
    factor = compute(learner(), groups(), replace(TASK, rate_factor=2.0))
    assert factor == compute(learner(lr=2e-3), groups()) != compute(learner(), groups())


def test_what_the_model_cannot_read_is_refused_before_anything_else() -> None:
    long, strange = Rollout(0, 0, (1,) * 22, (2,) * 20, (True,) * 20, b""), Rollout(0, 0, (1,), (256,), (True,), b"")
    for rollout, part in ((long, "a row takes 41"), (strange, "the token 256, but the model has only 256")):
        made = learner()
        made.model.flat.zero_()
        with pytest.raises(ValueError, match=part):
            compute(made, [*groups(), Group(7, (scored(rollout, 1.0),))])
        assert not made.model.flat.any()
    with pytest.raises(NotFinite):
        learner().compute(TASK, groups(), small.theta() * np.float32(np.nan), memoryview(bytearray(SIZE)))
