"""The held-out loss: measured in pieces, where the parameters lie, without a trace in the training."""

import math

import pytest

from tests.trainer import small
from trainer import evaluation, parameters
from trainer.evaluation import Evaluation
from trainer.worker import Task, Worker

SIZE = small.LAYOUT.payload_bytes
WINDOWS = 30


def _evaluation(worker: Worker) -> Evaluation:
    return worker.evaluation(small.theta(), WINDOWS * 16)


@pytest.fixture(autouse=True)
def four_windows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "BATCH_TOKENS", 4 * 16)


def _whole(worker: Worker) -> float:
    return worker.evaluate(small.theta(), WINDOWS * 16)


def test_pieces_give_the_same_loss_as_the_whole() -> None:
    worker = small.worker()
    pieces = _evaluation(worker)
    done = []
    while pieces.done < pieces.total:
        pieces.advance(7)
        done.append(pieces.done)
    assert done == [7, 14, 21, 28, 30]
    assert pieces.loss == pytest.approx(_whole(worker), rel=1e-6)
    assert pieces.loss == pytest.approx(math.log(256), rel=0.05)


def test_a_device_with_memory_of_its_own_measures_the_same_in_the_room_of_the_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = small.worker()
    whole = _whole(worker)
    monkeypatch.setattr(parameters, "reads_where_it_lies", lambda device: False)
    worker = small.worker()
    pieces = _evaluation(worker)
    assert pieces.share(1000) == 8, "it does not bring the parameters over more than four times"
    while pieces.done < pieces.total:
        pieces.advance(8)
    assert pieces.loss == pytest.approx(whole, rel=1e-6)


def test_it_copies_no_parameters() -> None:
    theta = small.theta()
    shown = small.worker().work.parameters.show(theta)
    assert shown.flat.data_ptr() == theta.ctypes.data
    assert shown.gradient.numel() == 0 and not any(p.requires_grad for p in shown.parameters())


def test_training_beside_it_is_what_it_is_without() -> None:
    def contribution(measures: bool) -> bytes:
        worker, out = small.worker(), bytearray(SIZE)
        pieces = _evaluation(worker)

        def after_step(*_: object) -> bool:
            if measures:
                pieces.advance(4)
            return False

        worker.compute(Task(0, [[0, 8]], 4, 0), small.theta(), memoryview(out), after_step)
        return bytes(out)

    assert contribution(True) == contribution(False)


@pytest.mark.parametrize(("steps", "asked_after"), [(2, 1), (3, 2), (20, 1), (1000, 1)])
def test_it_is_done_with_the_last_step_but_one_in_pieces_as_small_as_can_be(steps: int, asked_after: int) -> None:
    pieces = _evaluation(small.worker())
    largest = 0
    for step in range(asked_after, steps):
        before = pieces.done
        pieces.advance(pieces.share(steps - step))
        largest = max(largest, pieces.done - before)
    assert pieces.done == pieces.total == WINDOWS
    assert largest <= max(4, -(-WINDOWS // (steps - asked_after)))


def test_what_comes_in_interrupts_it_after_the_running_batch() -> None:
    pieces = _evaluation(small.worker())
    pieces.advance(30, interrupted=lambda: True)
    assert pieces.done == 4
