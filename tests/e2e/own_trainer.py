"""A `peer` whose trainer process is started by a test's own module, and that trainer process.

The trainer gets a word of the environment as an argument, because a peer passes no unknown variables on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

TRAINER = "--trainer"


def run(module: str, variable: str, run_trainer: Callable[[str], int]) -> None:
    """Be the peer, or the trainer process if the command line says so; never return.

    variable: that of the environment with the trainer's word.
    """
    if sys.argv[1:2] == [TRAINER]:
        del sys.argv[1]
        status = run_trainer(sys.argv.pop(1))
        sys.stdout.flush()
        os._exit(status)
    from peer.cli import main
    from peer.trainer_process import process

    process.PROGRAM = (module, TRAINER, os.environ[variable])
    sys.exit(main())
