"""`peer`, whose trainer process starts `LATE_TRAINER_S` seconds late, as on a slow computer; and that trainer process.

The trainer gets the number as a word, because a peer passes no unknown variables on.
"""

from __future__ import annotations

import os
import sys
import time

LATE_TRAINER_S = "LATE_TRAINER_S"
TRAINER = "--late-trainer"


def run_trainer() -> int:
    """Wait, and be the trainer process."""
    from trainer.__main__ import main

    time.sleep(float(sys.argv.pop(1)))
    return main()


def run_peer() -> int:
    """Be a peer that starts its trainer by this module."""
    from peer.cli import main
    from peer.trainer_process import process

    process.PROGRAM = ("tests.e2e.late_trainer", TRAINER, os.environ[LATE_TRAINER_S])
    return main()


if __name__ == "__main__":
    if sys.argv[1:2] == [TRAINER]:
        del sys.argv[1]
        status = run_trainer()
        sys.stdout.flush()
        os._exit(status)
    sys.exit(run_peer())
