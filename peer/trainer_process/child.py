"""The end of a child process: waiting for it, and saying in words how it came.

Nothing of ours may be left behind, not even a zombie, so a child that does not end in time is killed and reaped.
"""

from __future__ import annotations

import signal

import trio


async def reap(process: trio.Process, deadline_s: float) -> None:
    """Wait for a process that has reason to end; kill it when it does not end by itself in time."""
    with trio.move_on_after(deadline_s):
        await process.wait()
        return
    process.kill()
    await process.wait()


def how_it_ended(status: int | None, last_line: str) -> str:
    """The end of the sentence that begins with the process's name.  status: as `subprocess` has it."""
    if status is not None and status < 0:
        memory = " (the system may be out of memory)" if -status == signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-status).name}{memory}"
    return f"ended with exit code {status}" + (f": {last_line}" if last_line else "")
