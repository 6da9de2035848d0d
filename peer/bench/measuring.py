"""Measurements in sequence, so that none slows another down."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import trio

from kernels import codec
from peer.bench.disk import measure_disk
from peer.bench.exchange import measure_exchange
from peer.bench.figures import CodecSpeed, Figures
from peer.bench.lines import measure_lines
from peer.bench.training import measure_training
from peer.errors import PeerError

# ------------------------------------------------------------------------------------------------------------------------
# Codec speed: encoding and decoding contributions on one core.  Blocking.


VALUES = 1 << 22
SECONDS = 0.5
"""Seconds for encoding, and for decoding."""


def measure_codec(values: int = VALUES, seconds: float = SECONDS) -> CodecSpeed:
    """Measure with normally distributed values, as differences of parameters are."""
    numbers = np.random.default_rng(1).standard_normal(values, np.float32)
    encoded, decoded = np.empty(codec.encoded_bytes(values), np.uint8), np.empty(values, np.float32)
    encode_s = best_s(lambda: codec.encode(numbers, encoded), seconds)
    decode_s = best_s(lambda: codec.decode(encoded, values, decoded), seconds)
    return CodecSpeed(values / encode_s, values / decode_s, 4e-6 * values / encode_s, 4e-6 * values / decode_s)


def best_s(work: Callable[[], object], seconds: float) -> float:
    """Return the shortest time of `work`, repeated for about `seconds` and at least three times; the first call does not
    count.  Other programs on the computer only make it longer."""
    work()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return max(min(times), 1e-9)


# ------------------------------------------------------------------------------------------------------------------------


SAID = {
    "lines": "the lines to other peers",
    "codec": "the codec",
    "exchange": "an exchange on this computer",
    "training": "training, the start of a trainer included",
    "disk": "the disk",
}
"""Names of the parts for people, in the order of the measurements."""
Found = tuple[Figures, dict[str, PeerError]]
"""The figures, and the errors by part."""


async def measure_unless_interrupted(
    parts: Sequence[str], folder: Path, run: str | None, on_part: Callable[[str], None]
) -> Found:
    """Run `measure`; raises KeyboardInterrupt if this process is told to end, once the part begun has ended."""
    found: Found | None = None
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals, trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_on, signals, scope)
            found = await measure(parts, folder, run, on_part)
            nursery.cancel_scope.cancel()
    if found is None or scope.cancel_called:
        raise KeyboardInterrupt
    return found


async def _cancel_on(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()


async def measure(parts: Sequence[str], folder: Path, run: str | None, on_part: Callable[[str], None]) -> Found:
    """Return the figures of these parts, and the errors.

    folder: the data directory, where the disk is measured and a peer may run.  run: the ID that the running peer's run must
    have.
    """
    ways: dict[str, Callable[[], Awaitable[Any]]] = {
        "lines": lambda: _abandonable(partial(measure_lines, folder, run)),
        "codec": lambda: trio.to_thread.run_sync(measure_codec),
        "exchange": measure_exchange,
        "training": measure_training,
        "disk": lambda: trio.to_thread.run_sync(measure_disk, folder),
    }
    figures, problems = Figures(), dict[str, PeerError]()
    for part in (part for part in SAID if part in parts):
        on_part(SAID[part])
        try:
            setattr(figures, part, await ways[part]())
        except PeerError as error:
            figures.missing[part], problems[part] = error.text, error
    return figures, problems


async def _abandonable(work: Callable[[], Any]) -> Any:
    """Run `work` in a thread; when this is cancelled, nobody waits for the thread."""
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)  # type: ignore[call-arg]  # stale stubs of trio
