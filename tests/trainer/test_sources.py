"""Training on a mixture of sources: losses by source, held out or not, and blocks that come while the trainer waits."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer import small
from tests.trainer.data.corpora import Shape, Stream, cut_into_blocks, texts, write_corpus
from trainer.config import TrainingConfig
from trainer.data.corpus import BlockMissing, CorpusReading
from trainer.evaluation import FEW_WINDOWS, EvaluationPlan
from trainer.objective import LanguageModelObjective, SourceTotals, UnitLosses
from trainer.worker import Done, Task, Worker

WEIGHTS = {"web": 3, "code": 1}


def task(steps: int) -> Task:
    return Task(0, [(0, 30), (90, 1000)], steps, 0)


def never(*_: object) -> bool:
    return False


def corpus(folder: Path, shape: Shape | None = None) -> Path:
    plain = Stream(np.tile(np.arange(1, 17), 100)), Stream(np.tile(np.arange(1, 17), 40))
    return write_corpus(folder, shape or Shape(), {"web": texts(1, 4000, 1500), "code": plain})


def worker_on(sections: dict[str, Any]) -> Worker:
    return Worker(TrainingConfig.from_sections(sections), small.CPU)


def computed(worker: Worker, task: Task, between: Any = None, after_step: Any = never) -> tuple[Done, bytes]:
    out = bytearray(worker.layout[-1].encoded.stop)
    options = {} if between is None else {"between": between}
    return worker.compute(task, small.theta(), memoryview(out), after_step, **options), bytes(out)


def test_the_losses_of_the_sources_are_their_rows_losses_before_each_step(tmp_path: Path) -> None:
    worker = worker_on(small.run_sections(corpus(tmp_path), WEIGHTS, sequences_per_step=8))
    done, _ = computed(worker, task(1))
    model, rows = small.model(), worker.batch(range(8))
    assert rows.sources_b is not None
    for number, found in enumerate(done.losses):
        of_it = [row for row in range(8) if rows.sources_b[row] == number]
        with torch.no_grad():
            each = [LanguageModelObjective().loss(model, rows[row : row + 1], 0.0).mean for row in of_it]
        assert (found.source, found.tokens) == (["web", "code"][number], 16 * len(of_it))
        assert found.loss == pytest.approx(float(torch.stack(each).mean()), rel=1e-5)
    whole = sum(each.loss * each.tokens for each in done.losses) / done.tokens
    assert sum(each.tokens for each in done.losses) == done.tokens
    assert done.loss == pytest.approx(whole, rel=1e-3), "but for the z-loss"
    assert done.margin is None and done.accuracy is None


def test_held_out_windows_follow_the_weights_of_the_present_phase_with_a_few_of_each_source(tmp_path: Path) -> None:
    sections = small.run_sections(corpus(tmp_path), WEIGHTS)
    sections["data"]["phases"].append({"start": 1000, "weights": [0, 5]})
    reading = worker_on(sections).reading
    assert isinstance(reading, CorpusReading)
    web, code = (reading.held_out_of(source) for source in range(2))
    assert (len(web), len(code)) == (94, 40)

    def counts(tokens: int, row: int) -> tuple[list[int], tuple[int, ...]]:
        plan = EvaluationPlan.of(reading, LanguageModelObjective(), 16, tokens, row)
        assert len(set(plan.windows)) == len(plan.windows)
        return [sum(window in split for window in plan.windows) for split in (web, code)], plan.shares

    assert counts(40 * 16, 0) == ([30, 10], (3, 1))
    assert counts(40 * 16, 999) == ([30, 10], (3, 1))
    assert counts(40 * 16, 1000) == ([FEW_WINDOWS, 40], (0, 5))
    assert counts(8 * 16, 0) == ([6, FEW_WINDOWS], (3, 1))
    assert counts(10**9, 0) == ([94, 40], (3, 1))
    assert counts(1, 0) == ([1, 1], (3, 1))


def test_the_overall_loss_weighs_sources_by_the_phase_and_leaves_out_those_without_tokens() -> None:
    totals = SourceTotals(["a", "b", "c"])
    sources = np.array([0, 0, 2], np.int16)
    totals.add(UnitLosses(np.array([2.0, 4.0, 10.0]), np.array([1.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0]), sources))
    assert [(each.source, each.tokens, each.loss) for each in totals.losses] == [("a", 2, 3.0), ("c", 2, 5.0)]
    assert totals.mean([1, 5, 1]) == 4.0 and totals.mean([3, 9, 1]) == 3.5
    assert totals.mean([0, 1, 0]) == 4.0, "no source with a share has tokens"


class Arrival:
    """Brings a missing block from a whole cache, a little later than it is asked for."""

    def __init__(self, whole: Path, cache: Path, finish: bool = False) -> None:
        self.asked: list[tuple[str, int]] = []
        self.finish = finish
        self._whole, self._cache = whole, cache

    def __call__(self, missing: BlockMissing | None) -> bool:
        assert missing is not None
        self.asked.append((missing.shard, missing.number))
        if self.asked.count(self.asked[-1]) == 3 and not self.finish:
            (self._cache / missing.shard).mkdir(parents=True, exist_ok=True)
            for name in (str(missing.number), "leaves"):
                shutil.copy(self._whole / missing.shard / name, self._cache / missing.shard)
        return self.finish


def test_blocks_that_come_while_the_trainer_waits_give_the_bytes_of_blocks_that_were_there(tmp_path: Path) -> None:
    folder, cache = corpus(tmp_path / "corpus"), tmp_path / "cache"
    whole = cut_into_blocks(folder, Shape(), tmp_path / "whole")
    wanted = computed(worker_on(small.run_sections(folder, WEIGHTS)), task(6))
    arrival = Arrival(whole, cache)
    assert computed(worker_on(small.run_sections(folder, WEIGHTS, cache)), task(6), arrival) == wanted
    assert len(set(arrival.asked)) > 2 and len(arrival.asked) == 3 * len(set(arrival.asked))


def test_a_round_that_should_end_ends_with_the_steps_that_are_done_when_a_block_is_missing(tmp_path: Path) -> None:
    folder, cache = corpus(tmp_path / "corpus"), tmp_path / "cache"
    whole = cut_into_blocks(folder, Shape(), tmp_path / "whole")
    wanted = computed(worker_on(small.run_sections(folder, WEIGHTS)), task(2))
    arrival = Arrival(whole, cache)

    def after_step(steps: int, *_: object) -> bool:
        arrival.finish = steps == 2
        if steps == 2:
            shutil.rmtree(cache)
        return False

    worker = worker_on(small.run_sections(folder, WEIGHTS, cache))
    assert isinstance(worker.reading, CorpusReading)
    assert computed(worker, task(9), arrival, after_step)[0].steps in range(2, 9)
    assert wanted[0].steps == 2


def test_a_missing_block_is_an_error_where_nobody_waits(tmp_path: Path) -> None:
    worker = worker_on(small.run_sections(corpus(tmp_path / "corpus"), WEIGHTS, tmp_path / "nothing"))
    with pytest.raises(BlockMissing):
        computed(worker, task(1))
    evaluation = worker.evaluation(small.theta())
    with pytest.raises(BlockMissing):
        evaluation.advance(evaluation.total)
    assert evaluation.done == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": "chat"}, 'the corpus corpus.msgpack has rows of the kind "text", but data.format is "chat"'),
        ({"documents": "torn"}, "documents is 'torn'; it must be"),
    ],
)
def test_a_corpus_that_does_not_fit_the_run_is_refused(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        worker_on(small.run_sections(corpus(tmp_path), WEIGHTS, **change))


def test_a_corpus_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    folder = corpus(tmp_path, Shape(vocab=300, token_bytes=2))
    with pytest.raises(ValueError, match="has 300 tokens, more than the run's model"):
        worker_on(small.run_sections(folder, WEIGHTS))
