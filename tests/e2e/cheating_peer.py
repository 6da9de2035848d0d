"""`peer`, whose trainer claims work that it does not do.

`CHEAT` in the environment names the cheat:

zeros: contributes zeros, with receipts of noise.  stale: its first contribution and receipts, again and again.
other rows: trains on rows that are not its own.  tenth, half: does so many of the steps, and claims all.

An honest peer that trains in bf16 can be had, too, for swarms of mixed precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.e2e.own_trainer import run

CHEAT = "CHEAT"
ZEROS, STALE, OTHER_ROWS, TENTH, HALF = CHEATS = ("zeros", "stale", "other rows", "tenth", "half")
SHARES = {TENTH: 10, HALF: 2}
"""The whole number of steps that are claimed for each one done."""
BF16 = "honest in bf16"
FAR = 10**6
"""Rows between its own and those that it trains on."""


def run_trainer(cheat: str) -> int:
    """Be a trainer process that cheats."""
    import numpy as np
    import torch

    from trainer import device
    from trainer.__main__ import main
    from trainer.data.rows import Rows
    from trainer.receipts import RECEIPT
    from trainer.service import service
    from trainer.worker import Done, Task, Worker

    honest, batch = Worker.compute, Worker.batch
    first: list[tuple[Done, bytes, np.ndarray]] = []
    random = np.random.default_rng(0)

    def noise(rows: int) -> np.ndarray:
        made = np.zeros(rows, RECEIPT)
        made["projections"] = random.integers(-127, 128, made["projections"].shape)
        return made

    def nothing(worker: Worker, task: Task, out: memoryview, after_step: Any) -> Done:
        rows = worker.config.data.sequences_per_step
        tokens = task.steps * rows * worker.config.data.sequence_length
        out[:] = worker.layout.zeros()
        after_step(task.steps, 3.0, tokens, 1e5)
        worker.receipts = noise(task.steps * rows)
        return Done(tokens, task.steps, 3.0, 1.0)

    def compute(worker: Worker, task: Task, theta: Any, out: memoryview, after_step: Any, *others: Any, **more: Any) -> Done:
        if cheat == ZEROS:
            return nothing(worker, task, out, after_step)
        if cheat == STALE and first:
            done, encoded, worker.receipts = first[0]
            out[:] = encoded
            after_step(done.steps, done.loss, done.tokens, 1e5)
            return done
        fewer = replace(task, steps=max(1, task.steps // SHARES[cheat])) if cheat in SHARES else task
        done = honest(worker, fewer, theta, out, after_step, *others, **more)
        if cheat in SHARES:
            worker.receipts = np.resize(worker.receipts, task.steps * worker.config.data.sequences_per_step)
            done = replace(done, steps=task.steps, tokens=done.tokens * task.steps // fewer.steps)
        first.append((done, bytes(out), worker.receipts))
        return done

    def other_rows(worker: Worker, numbers: Sequence[int]) -> Rows:
        return batch(worker, [number + FAR for number in numbers])

    if cheat == BF16:
        measured = device.device_speed

        def in_bf16(place: torch.device) -> device.DeviceSpeed:
            return replace(measured(place), dtype=torch.bfloat16)

        vars(service)["device_speed"] = in_bf16
        return main()
    Worker.compute = compute  # type: ignore[method-assign,assignment]
    if cheat == OTHER_ROWS:
        Worker.batch = other_rows  # type: ignore[method-assign,assignment]
    return main()


if __name__ == "__main__":
    run("tests.e2e.cheating_peer", CHEAT, run_trainer)
