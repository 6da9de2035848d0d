"""`peer`, with one thing changed: the proofs of the rollouts that it makes are not those of its weights."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from peer.cli import main
from peer.trainer_process.process import RolloutProcess
from protocol.trainer_link import Generated, RolloutTask

honest = RolloutProcess.generate


async def _generate(
    self: RolloutProcess, task: RolloutTask, path: Path, on_progress: Callable[[int, int], None]
) -> Generated:
    made = await honest(self, task, path, on_progress)
    data = bytearray(path.read_bytes())
    data[-9] ^= 1  # of a coefficient: it stays one, of another polynomial
    path.write_bytes(data)
    return made


if __name__ == "__main__":
    RolloutProcess.generate = _generate  # type: ignore[method-assign]
    sys.exit(main())
