"""A round's work is a function of theta and the task."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from kernels.codecs.format import norm
from kernels.codecs.ladder import INT4
from tests.trainer import small
from tests.trainer.data.corpora import Shape, Stream, write_corpus
from trainer.config import TrainingConfig
from trainer.data.rows import Rows
from trainer.parameters import NotFinite
from trainer.worker import Done, Task, Worker

SIZE = small.LAYOUT.payload_bytes


def _compute(worker: Worker, task: Task, **options: Any) -> tuple[Done, bytes]:
    out = bytearray(SIZE)
    done = worker.compute(task, small.theta(), memoryview(out), options.get("after_step", lambda *_: False))
    return done, bytes(out)


def test_same_task_gives_the_same_bytes() -> None:
    task = Task(round=2, rows=[[6, 9], [20, 25]], steps=4, first_step=8)
    assert _compute(small.worker(), task) == _compute(small.worker(), task)


def test_each_step_reads_the_next_rows_of_the_ranges() -> None:
    worker, read = small.worker(), list[list[int]]()
    batch = worker.batch

    def noted(numbers: Sequence[int]) -> Rows:
        read.append([*numbers])
        return batch(numbers)

    with patch.object(worker, "batch", noted):
        _compute(worker, Task(round=2, rows=[[6, 9], [20, 26]], steps=3, first_step=8))
    assert read == [[6, 7], [8, 20], [21, 22]]


def test_contribution_is_theta_minus_the_local_parameters_chunk_by_chunk() -> None:
    worker = small.worker()
    done, data = _compute(worker, Task(0, [[0, 10]], 5, 0))
    difference = small.theta() - worker.model.flat.numpy()
    decoded = np.empty_like(difference)
    for span in small.LAYOUT:
        INT4.decode(memoryview(data)[span.encoded], span.count, decoded[span.values])
    assert np.abs(decoded - difference).max() <= np.abs(difference).max() / 13
    assert done.norm == pytest.approx(float(np.linalg.norm(difference.astype(np.float64))), rel=1e-6)


def test_the_residual_of_a_round_is_added_in_the_next() -> None:
    worker, found = small.worker(), []
    for _ in range(3):
        worker.work.load(small.theta() * np.float32(1.01))
        out = bytearray(SIZE)
        worker.work.encode_difference(small.theta(), memoryview(out))
        found.append(bytes(out))
    assert len(set(found)) == 3
    mean = np.zeros(small.PARAMETERS)
    for data in found:
        values = np.empty(small.PARAMETERS, np.float32)
        for span in small.LAYOUT:
            INT4.decode(memoryview(data)[span.encoded], span.count, values[span.values])
        mean += values / 3
    difference = -np.float32(0.01) * small.theta()
    assert norm((mean - difference).astype(np.float32)) < 0.05 * norm(difference)


# -- fragments -----------------------------------------------------------------------------------------------------------


def streamed(fragments: int, delay: int) -> Worker:
    return Worker(small.config(fragments=fragments, delay=delay, codec="bf16"), small.CPU)


def test_a_worker_goes_on_until_the_result_is_needed_and_then_takes_it_over() -> None:
    worker, asked = streamed(2, 2), list[tuple[int, bool]]()
    out = memoryview(bytearray(worker.layout.payload_bytes))
    theta, steps = small.theta(), [0]

    def after_step(done: int, *_: object) -> bool:
        steps[0] = done
        return False

    def applied(needed: bool) -> bool:
        asked.append((steps[0], needed))
        return needed

    worker.compute(Task(0, [[0, 6]], 3, 0), theta, out, after_step)
    before = worker.model.flat.numpy().copy()
    half = worker.layout.length
    theta[:half] += np.float32(0.25)
    steps[0] = 0
    worker.compute(Task(1, [[6, 14]], 4, 3, fragment=1, continues=True), theta, out, after_step, applied=applied)
    assert asked == [(0, False), (1, False), (2, True)], "two steps are the delay"
    moved = worker.model.flat.numpy() - before
    assert np.abs(moved[:half] - (theta[:half] - before[:half])).max() < 0.2, "the result and four steps"
    assert np.abs(moved[half:]).max() < 0.1, "four steps: a fragment that was not exchanged keeps its own values"


@pytest.mark.parametrize(("delay", "steps"), [(0, 1), (2, 2)])
def test_a_worker_told_to_end_while_it_waits_for_a_result_takes_no_step_unless_it_has_none(delay: int, steps: int) -> None:
    worker, theta = streamed(2, delay), small.theta()
    out = memoryview(bytearray(worker.layout.payload_bytes))
    worker.compute(Task(0, [[0, 6]], 3, 0), theta, out, lambda *_: False)
    told = list[bool]()

    def applied(needed: bool) -> bool:
        told.extend([True] if needed else [])
        return needed

    task = Task(1, [[6, 14]], 4, 3, fragment=1, continues=True)
    done = worker.compute(task, theta, out, lambda *_: bool(told), lambda _: bool(told), applied)
    assert done.steps == steps


def test_a_fragment_that_was_not_trained_since_becomes_the_result() -> None:
    worker = streamed(2, 1)
    out, theta = memoryview(bytearray(worker.layout.payload_bytes)), small.theta()
    worker.compute(Task(0, [[0, 6]], 3, 0), theta, out, lambda *_: False)
    theta[: worker.layout.length] *= np.float32(0.5)
    worker.work.go_on(theta, 0)
    worker.work.merge(theta)
    assert np.array_equal(worker.model.flat.numpy()[: worker.layout.length], theta[: worker.layout.length])


def test_a_new_process_that_is_to_go_on_begins_with_theta() -> None:
    worker, theta = streamed(2, 1), small.theta()
    worker.work.go_on(theta, 1)
    assert np.array_equal(worker.model.flat.numpy(), theta)
    changed = theta.copy()
    changed[worker.layout.length :] += np.float32(1)
    worker.work.merge(changed)
    assert np.array_equal(worker.model.flat.numpy(), changed)


def test_finish_ends_after_the_step_and_counts_what_was_done() -> None:
    done, _ = _compute(small.worker(), Task(0, [[0, 18]], 9, 0), after_step=lambda steps, *_: steps == 3)
    assert (done.steps, done.tokens) == (3, 3 * 2 * 16)


@pytest.mark.slow
def test_training_lowers_the_loss_on_text_that_can_be_learnt(tmp_path: Path) -> None:
    text = Stream(np.tile(np.arange(97, 113), 400))
    corpus = write_corpus(tmp_path / "corpus", Shape(), {"text": (text, text)})
    worker = Worker(TrainingConfig.from_sections(small.run_sections(corpus, {"text": 1})), small.CPU)
    theta = small.theta()
    before = worker.evaluate(theta)
    worker.compute(Task(0, [[0, 60]], 30, 0), theta, memoryview(bytearray(SIZE)), lambda *_: False)
    assert before == pytest.approx(math.log(256), rel=0.05)
    assert worker.evaluate(worker.model.flat.numpy().copy()) < 0.7 * before


def test_theta_is_never_written() -> None:
    theta = small.theta()
    theta.flags.writeable = False
    worker = small.worker()
    worker.compute(Task(0, [[0, 4]], 2, 0), theta, memoryview(bytearray(SIZE)), lambda *_: False)
    worker.evaluate(theta)
    assert np.array_equal(theta, small.theta())


def test_loss_that_is_not_a_number_is_an_error_not_a_contribution() -> None:
    theta = np.full(small.PARAMETERS, np.nan, dtype=np.float32)
    with pytest.raises(NotFinite):
        small.worker().compute(Task(0, [[0, 4]], 2, 0), theta, memoryview(bytearray(SIZE)), lambda *_: False)


@pytest.mark.parametrize(
    ("rows", "steps", "sentence"),
    [([[0, 3], [9, 13]], 4, "4 steps read 8 rows, but the task has 7"), ([[0, 2002]], 1001, "1 to 1000 steps")],
)
def test_a_task_that_does_not_add_up_is_refused(rows: list[list[int]], steps: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        _compute(small.worker(), Task(0, rows, steps, 0))
