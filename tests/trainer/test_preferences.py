"""Learning from preferences: the margin rises, and the reference weights are read once for each pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protocol.corpora.manifest import CorpusKind
from protocol.formats.adapter import AdapterConfig, adapter_parameters
from tests.trainer import small
from tests.trainer.data.corpora import Shape, preferences, write_corpus
from tests.trainer.weights.models import in_blocks
from trainer.config import TrainingConfig
from trainer.models.llama.initial import initial_parameters
from trainer.weights.folder import write_folder
from trainer.weights.safetensors_file import ExportFormat
from trainer.worker import Done, Task, Worker

ROW, PAIRS = 17, 48
SHAPE = Shape(CorpusKind.PREFERENCE, row_tokens=ROW, block_tokens=2 * ROW)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = {"a": (preferences(1, PAIRS, ROW), preferences(2, 9, ROW)), "b": (preferences(3, 7, ROW), preferences(4, 5, ROW))}
    return write_corpus(tmp_path / "corpus", SHAPE, made)


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    path = tmp_path / "reference.blob"
    path.write_bytes(torch.from_numpy(small.theta()).bfloat16().view(torch.int16).numpy().tobytes())
    return path


def worker_on(folder: Path, state: Path | None = None, **data: Any) -> Worker:
    changes = {"format": "preference", "sequences_per_step": 8, "beta": 0.5} | data
    sections = small.run_sections(folder, {"a": 3, "b": 1}, **changes)
    if state is not None:
        state.mkdir(exist_ok=True)
    return Worker(TrainingConfig.from_sections(sections), small.CPU, state)


def computed(worker: Worker, reference: Path | None, theta: Any = None, steps: int = 1, round: int = 1) -> Done:
    out = memoryview(bytearray(worker.layout[-1].encoded.stop))
    task = Task(round, [(0, 1000)], steps, 0, reference=str(reference or ""))
    return worker.compute(task, small.theta() if theta is None else theta, out, lambda *_: False)


@pytest.mark.slow
def test_the_margin_rises_and_so_does_the_share_of_pairs_that_are_told_apart(folder: Path, reference: Path) -> None:
    worker = worker_on(folder)
    first = computed(worker, reference)
    assert first.loss == pytest.approx(np.log(2), abs=1e-2) and abs(first.margin or 0.0) < 0.02
    computed(worker, reference, steps=30)
    theta = worker.model.flat.numpy().copy()
    last = computed(worker_on(folder), reference, theta)
    assert last.margin is not None and last.margin > 1 and last.accuracy == 1.0
    assert last.loss < 0.3 and [each.source for each in last.losses] == ["a", "b"]
    evaluation = worker.evaluation(theta, reference=str(reference))
    evaluation.advance(evaluation.total)
    assert evaluation.total == 14, "all held-out pairs"
    assert evaluation.loss < np.log(2) - 0.2 and (evaluation.totals.margin or 0.0) > 0.5
    assert worker.evaluate(theta) == evaluation.loss, "what is known needs no weights"


def test_tokens_are_those_that_count_and_losses_are_means_over_pairs(folder: Path, reference: Path) -> None:
    worker = worker_on(folder, sequences_per_step=4)
    done = computed(worker, reference)
    rows = worker.batch(range(4))
    assert len(rows) == 8 and done.tokens == rows.counted == 8 * (ROW - ROW // 2)
    assert sum(each.tokens for each in done.losses) == done.tokens
    assert done.loss == pytest.approx(sum(each.loss * each.tokens for each in done.losses) / done.tokens, rel=1e-6)


def test_reference_weights_are_read_once_for_each_pair(folder: Path, reference: Path) -> None:
    worker = worker_on(folder)
    first = computed(worker, reference, steps=3)
    reference.unlink()
    again = computed(worker, None, steps=3)
    assert again.margin != 0 and again.losses[0].tokens == first.losses[0].tokens


def test_pairs_that_nobody_has_compared_need_the_weights(folder: Path, reference: Path, tmp_path: Path) -> None:
    worker = worker_on(folder, tmp_path / "state")
    with pytest.raises(ValueError, match="the weights at the beginning of the run, which are missing"):
        computed(worker, None)
    with pytest.raises(ValueError, match="the weights at the beginning of the run, which are missing"):
        worker.evaluation(small.theta())
    reference.write_bytes(reference.read_bytes()[:-2])
    with pytest.raises(ValueError, match="the reference weights have"):
        computed(worker, reference)


def test_a_trainer_that_began_with_the_run_keeps_the_initial_weights_itself(
    folder: Path, reference: Path, tmp_path: Path
) -> None:
    wanted = computed(worker_on(folder), reference, small.theta() * np.float32(1.5))
    computed(worker_on(folder, tmp_path / "state"), None, round=0)
    later = worker_on(folder, tmp_path / "state")
    assert computed(later, None, small.theta() * np.float32(1.5)).losses == wanted.losses
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["initial.bf16"]


def test_micro_batches_hold_whole_pairs_and_give_the_gradient_of_the_whole(folder: Path, reference: Path) -> None:
    worker = worker_on(folder)
    computed(worker, reference)
    worker.work.load(small.theta())
    rows, found = worker.batch(range(8)), []
    for part in (8, 3, 1):
        loss = worker.inner._accumulate(rows, part).read()
        found.append((loss.mean, worker.model.gradient.clone(), np.concatenate([each.margins for each in loss.parts])))
    for mean, gradient, margins in found[1:]:
        assert mean == pytest.approx(found[0][0], rel=1e-5)
        torch.testing.assert_close(gradient, found[0][1], rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(margins, found[0][2], atol=1e-4)


def test_an_adapter_is_compared_with_its_frozen_model_whatever_it_began_with(folder: Path, tmp_path: Path) -> None:
    """A run that goes on with an adapter has factors that are not 0 before its first round."""
    base, adapter = tmp_path / "base", AdapterConfig(rank=4)
    base.mkdir()
    sections = small.run_sections(folder, {"a": 3, "b": 1}, format="preference", sequences_per_step=8, beta=0.5)
    model = TrainingConfig.from_sections(sections).model
    write_folder(base, model, in_blocks(small.theta()), ExportFormat.FP32, context=64, eos=None)
    files = sections.get("files", {}) | {f"base/{path.name}": str(path) for path in base.iterdir()}
    config = TrainingConfig.from_sections(sections | {"adapter": adapter.model_dump(), "files": files})
    fresh = np.empty(adapter_parameters(model, adapter), np.float32)
    initial_parameters(model, config.seed, fresh, adapter)
    trained = np.random.default_rng(1).standard_normal(fresh.shape).astype(np.float32)
    for number, theta in enumerate((fresh, trained)):
        (tmp_path / str(number)).mkdir()
        done = computed(Worker(config, small.CPU, tmp_path / str(number)), None, theta, round=0)
        assert (done.loss == pytest.approx(np.log(2), abs=1e-5)) == (theta is fresh)
        assert not (tmp_path / str(number) / "initial.bf16").exists()
