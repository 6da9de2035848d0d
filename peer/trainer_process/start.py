"""How a trainer process is started: its command, what it inherits, its environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

import trio

from peer.installation import child_environment

PROGRAM: tuple[str, ...] = ("trainer",)
"""The module that it runs, and words before its options."""
OPTIONS = ("--fd", "--theta-fd", "--contribution-fd")


async def start_trainer(fds: Sequence[int]) -> trio.Process:
    """Start a trainer with its socket, theta and contribution (`OPTIONS`); raises OSError."""
    options = [text for name, fd in zip(OPTIONS, fds, strict=True) for text in (name, str(fd))]
    return await trio.lowlevel.open_process(
        [sys.executable, "-m", *PROGRAM, *options],
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(os.environ),
    )


def environment(ours: Mapping[str, str]) -> dict[str, str]:
    """A trainer's environment in a peer that has `ours`.

    OpenMP reads its policy when it is loaded, so it has to be here: threads that have nothing to do sleep, instead of
    keeping a core busy that another trainer could use.
    """
    return {"OMP_WAIT_POLICY": "PASSIVE", **child_environment(ours), "PYTHONUNBUFFERED": "1"}
