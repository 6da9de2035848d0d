"""`peer`, whose trainer process starts `LATE_TRAINER_S` seconds late, as on a slow computer."""

from __future__ import annotations

import time

from tests.e2e.own_trainer import run

LATE_TRAINER_S = "LATE_TRAINER_S"


def run_trainer(seconds: str) -> int:
    """Wait, and be the trainer process."""
    from trainer.__main__ import main

    time.sleep(float(seconds))
    return main()


if __name__ == "__main__":
    run("tests.e2e.late_trainer", LATE_TRAINER_S, run_trainer)
