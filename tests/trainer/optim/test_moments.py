"""The optimiser's moments outlive the process."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.trainer import small
from trainer.optim import CHECKSUM_BYTES, TEXT, InnerLoop
from trainer.parameters import WholeParameters
from trainer.rank_work import CourseName, courses_of
from trainer.worker import Task, Worker

FIRST, SECOND = Task(5, [[0, 12]], 6, 30), Task(6, [[12, 18]], 3, 36)


def worker(folder: Path) -> Worker:
    return Worker(small.config(), small.CPU, folder)


def computed(by: Worker, task: Task) -> bytes:
    out = bytearray(by.layout.payload_bytes)
    by.compute(task, small.theta(), memoryview(out), lambda *_: False)
    return bytes(out)


def test_a_restarted_trainer_contributes_the_bytes_of_one_that_never_stopped(tmp_path: Path) -> None:
    """With a codec without a residual, which a restart would lose."""
    config = small.config(codec="int8")
    steady, first = Worker(config, small.CPU), Worker(config, small.CPU, tmp_path)
    assert computed(steady, FIRST) == computed(first, FIRST)
    first.work.store_moments()
    assert computed(Worker(config, small.CPU, tmp_path), SECOND) == computed(steady, SECOND)


def test_without_its_moments_a_trainer_warms_up_in_the_middle_of_a_run(tmp_path: Path) -> None:
    steady = small.worker()
    computed(steady, FIRST)
    assert computed(worker(tmp_path), SECOND) != computed(steady, SECOND)


def put(place: int, value: float) -> Callable[[bytearray], bytes]:
    """Change that puts a number at a place, counted from the end."""
    return lambda raw: bytes(raw[:place] + np.float32(value).tobytes() + raw[place + 4 :])


def flipped(raw: bytearray, place: int) -> bytes:
    raw[place] ^= 1
    return bytes(raw)


DAMAGE: dict[str, Callable[[bytearray], bytes]] = {
    "empty": lambda raw: b"",
    "cut": lambda raw: bytes(raw[: len(raw) // 2]),
    "a flipped bit": lambda raw: flipped(raw, len(raw) // 2),
    "no header": lambda raw: b"\xff" * 8 + bytes(raw[8:]),
}
UNDER_A_CHECKSUM: dict[str, Callable[[bytearray], bytes]] = {
    "not finite": put(-12, np.inf),  # the last square
    "no steps": put(-8, 0.0),
    "another name": lambda raw: bytes(raw.replace(b'"mean"', b'"meen"')),
}


def damaged(path: Path, kind: str) -> None:
    raw = (DAMAGE | UNDER_A_CHECKSUM)[kind](bytearray(path.read_bytes()))
    if kind in UNDER_A_CHECKSUM:
        body = raw[:-CHECKSUM_BYTES]
        raw = body + zlib.crc32(body).to_bytes(CHECKSUM_BYTES, "little")
    path.write_bytes(raw)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGE | UNDER_A_CHECKSUM)
def test_a_damaged_file_is_a_new_beginning(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    first = worker(tmp_path)
    computed(first, FIRST)
    first.work.store_moments()
    damaged(tmp_path / TEXT, kind)
    assert computed(worker(tmp_path), SECOND) == computed(small.worker(), SECOND)
    assert "the moments of an earlier start are not used" in capsys.readouterr().err


def test_the_moments_of_another_model_are_not_used(tmp_path: Path) -> None:
    first = worker(tmp_path)
    computed(first, FIRST)
    first.work.store_moments()
    config = small.config(model=small.MODEL | {"layers": 1})
    other = Worker(config, small.CPU, tmp_path)
    assert other.inner.optimiser.steps == 0 and not other.inner.optimiser.mean.any()


def test_a_trainer_goes_on_where_moments_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    first = worker(tmp_path)
    computed(first, FIRST)
    monkeypatch.setattr("os.fsync", full)
    first.work.store_moments()
    assert not [*tmp_path.iterdir()], "nothing half-written is left"


@pytest.mark.parametrize(("fragments", "every"), [(1, 9), (2, 36)])
def test_moments_that_take_long_to_write_are_written_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fragments: int, every: int
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def slow(descriptor: int) -> None:
        now[0] += 3.0

    monkeypatch.setattr("os.fsync", slow)
    loop, written = InnerLoop(WholeParameters(small.model()), small.config().inner), []
    file = courses_of(small.config(fragments=fragments), tmp_path)[CourseName.ROWS].moments
    assert file is not None
    for _ in range(80):
        loop.optimiser.steps += 1
        before, now[0] = now[0], now[0] + 17.0
        file.store(loop.optimiser)
        written.append(now[0] - before > 17.0)
    assert written == [number % every == 0 for number in range(80)], "3 s in 153 s are 2 %, and in 612 s 0.5 %"
