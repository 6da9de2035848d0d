"""An audit computes receipts at weights on the way of the round, from the state after it and its result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernels.outer_step import OuterStep, apply_result
from tests.trainer import small
from trainer.data.corpus import BlockMissing
from trainer.receipts import RECEIPT
from trainer.reference import PublicWeights
from trainer.worker import AuditPoint, AuditTask, Task, Worker

STEP = OuterStep(0.75, 0.5)
RESULT = small.LAYOUTS.result
STEPS, WIDTH = 6, 2
ROWS = [[40, 40 + STEPS * WIDTH]]


def random(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(small.PARAMETERS).astype(np.float32)


def encoded(values: np.ndarray) -> bytes:
    """A result of these values."""
    out = RESULT.zeros()
    for span in RESULT:
        RESULT.format.encode(np.ascontiguousarray(values[span.values]), memoryview(out)[span.encoded])
    return bytes(out)


def decoded(result: bytes) -> np.ndarray:
    values = np.empty(small.PARAMETERS, np.float32)
    for span in RESULT:
        RESULT.format.decode(memoryview(result)[span.encoded], span.count, values[span.values])
    return values


def after(theta: np.ndarray, momentum: np.ndarray, result: bytes) -> np.ndarray:
    """The state, theta and momentum, after a round."""
    state = np.concatenate([theta, momentum])
    for span in RESULT:
        values, remembered = (state[first:][span.values] for first in (0, small.PARAMETERS))
        apply_result(values, remembered, memoryview(result)[span.encoded], RESULT.format, span.count, STEP)
    return state


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_public_weights_are_the_start_less_a_share_of_the_result(share: float) -> None:
    theta, result = random(0), encoded(random(2))
    weights = PublicWeights(after(theta, random(1), result), memoryview(result), RESULT, STEP, share)
    assert weights.shape == theta.shape
    expected = theta - np.float32(share) * decoded(result)
    np.testing.assert_allclose(weights[0 : len(weights)], expected, atol=2e-6)
    np.testing.assert_allclose(weights[1000:1100], expected[1000:1100], atol=2e-6, err_msg="over the end of a chunk")


def a_round(worker: Worker) -> tuple[np.ndarray, bytes]:
    """Train a round from the initial parameters; return the state after it and the result, which is the contribution."""
    out = bytearray(small.LAYOUT.payload_bytes)
    theta = small.theta()
    worker.compute(Task(0, ROWS, STEPS, 0), theta, memoryview(out), lambda *_: False)
    result = encoded(theta - worker.model.flat.numpy())
    return after(theta, np.zeros_like(theta), result), result


def points(worker: Worker, *, shift: int = 0) -> list[AuditPoint]:
    """The receipts of two steps, as claimed; with a shift those of other rows."""
    claimed = worker.receipts
    return [
        AuditPoint(
            place / STEPS,
            range(40 + WIDTH * place, 40 + WIDTH * (place + 1)),
            np.roll(claimed, shift)[WIDTH * place : WIDTH * (place + 1)].tobytes(),
        )
        for place in (0, STEPS - 1)
    ]


def test_receipts_of_a_round_are_found_again_and_those_of_other_rows_are_not(tmp_path: Path) -> None:
    trainer, auditor = small.worker(receipts=True), small.worker(receipts=True)
    state, result = a_round(trainer)
    path = tmp_path / "result"
    path.write_bytes(result)
    assert len(trainer.receipts) == STEPS * WIDTH and trainer.receipts.dtype == RECEIPT
    assert auditor.audits
    task = AuditTask(str(path), STEP.rate, STEP.momentum, points(trainer))
    honest = np.array(auditor.audit(task, state), float)
    assert honest[:WIDTH].min() > 0.999, "at the start the weights are the same"
    assert honest.min() > 0.5 and honest.mean() > 0.8
    false = np.array(auditor.audit(AuditTask(str(path), *STEP, points(trainer, shift=3)), state), float)
    assert abs(false).mean() < 0.4


def test_an_audit_changes_nothing_of_the_rounds_around_it(tmp_path: Path) -> None:
    contributions = []
    for audits in (False, True):
        worker = small.worker(receipts=True)
        state, result = a_round(worker)
        (tmp_path / "result").write_bytes(result)
        if audits:
            worker.audit(AuditTask(str(tmp_path / "result"), *STEP, points(worker)), state)
        out = bytearray(small.LAYOUT.payload_bytes)
        worker.compute(Task(1, [[100, 112]], STEPS, STEPS), state[: small.PARAMETERS], memoryview(out), lambda *_: False)
        contributions.append(bytes(out))
    assert contributions[0] == contributions[1]


def test_keeping_receipts_changes_no_contribution() -> None:
    found = []
    for receipts in (False, True):
        out = bytearray(small.LAYOUT.payload_bytes)
        worker = small.worker(receipts=receipts)
        worker.compute(Task(0, ROWS, STEPS, 0), small.theta(), memoryview(out), lambda *_: False)
        found.append(bytes(out))
        assert bool(len(worker.receipts)) is receipts
    assert found[0] == found[1]


def test_a_result_that_is_cut_or_gone_is_an_error(tmp_path: Path) -> None:
    worker = small.worker(receipts=True)
    state, result = a_round(worker)
    (tmp_path / "result").write_bytes(result[:-1])
    with pytest.raises(ValueError, match="another size"):
        worker.audit(AuditTask(str(tmp_path / "result"), *STEP, points(worker)), state)
    with pytest.raises(OSError, match="No such file"):
        worker.audit(AuditTask(str(tmp_path / "gone"), *STEP, points(worker)), state)


def test_a_missing_block_is_waited_for(tmp_path: Path) -> None:
    worker, asked = small.worker(receipts=True), list[BlockMissing | None]()
    state, result = a_round(worker)
    (tmp_path / "result").write_bytes(result)
    batch = worker.batch

    def between(missing: BlockMissing | None) -> bool:
        asked.append(missing)
        return False

    def missing_once(numbers: object) -> object:
        if not any(asked):
            raise BlockMissing("00" * 32, 3)
        return batch(numbers)  # type: ignore[arg-type]

    worker.batch = missing_once  # type: ignore[method-assign,assignment]
    found = worker.audit(AuditTask(str(tmp_path / "result"), *STEP, points(worker)), state, between)
    assert len(found) == 2 * WIDTH and sum(each is not None for each in asked) == 1
