"""Processes that track a running peer's run, one for each tracker, because their packages start threads and processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from peer.environment import TRACKERS, ChildKind, child_environment
from peer.joining.run_source import stored_manifest
from protocol.formatting import clean
from protocol.wire.hashes import Hash

EVERY_S = 60
LOOK_S, AGAIN_S = 2.0, 60.0
END_S = 10.0
"""Seconds in which a process that was told to end closes its trackers."""
LAST_WORDS = 4096


async def keep_tracking(target: str, data: Path, run: Hash, warn: Callable[[str], None]) -> None:
    """Track the run of a running peer until cancelled.  A process that failed is reported and started again."""
    words = ["-m", "peer", "--data-dir", str(data), "track", target, "--run", run.hex(), "--every", f"{EVERY_S}s"]
    child, told = TRACKERS[target.partition(":")[0]], ""
    while True:
        while await trio.to_thread.run_sync(stored_manifest, run, data) is None:
            await trio.sleep(LOOK_S)
        reason = await _last_words([sys.executable, *words, "--until-eof"], child)
        if reason != told:
            warn(f"the run is not tracked by {target.partition(':')[0]}: {reason}; it is tried again every minute")
        told = reason
        await trio.sleep(AGAIN_S)


async def _last_words(words: Sequence[str], child: ChildKind) -> str:
    """Run a process that ends with us, even if we are killed; return the last line that it wrote to standard error."""
    process = await trio.lowlevel.open_process(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=child_environment(child),
    )
    assert process.stderr is not None and process.stdin is not None
    said = b""
    try:
        async for part in process.stderr:
            said = (said + part)[-LAST_WORDS:]
        code = await process.wait()
    finally:
        with trio.move_on_after(END_S) as last:
            last.shield = True
            await process.stdin.aclose()
            await process.wait()
        if process.returncode is None:
            process.kill()
    lines = said.decode("utf-8", "replace").strip().splitlines()
    return clean(lines[-1] if lines else f"exit code {code}", 300)
