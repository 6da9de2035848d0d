"""The solve rates measured so far, in a file beside the one that they are for: who is interrupted goes on there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from peer.errors import ExitCode, PeerError
from peer.files.atomic import write_atomically

SUFFIX = ".part"
HEAD_BYTES, LINE_BYTES = 4096, 64
"""Of what says which measurement it is, and of each rate, at most: more is none of ours, and is not read."""


class KeptRates:
    """rates: by task, as its number in the file that is measured."""

    def __init__(self, path: Path, rates: dict[int, float], file: IO[str]) -> None:
        self.path, self.rates, self._file = path, rates, file

    def keep(self, task: int, rate: float) -> None:
        """Write one down, so that it outlives this process.  Raises OSError."""
        self._file.write(_line(task, rate))
        self._file.flush()
        self.rates[task] = rate


@contextmanager
def kept_rates(target: Path, measured: Mapping[str, Any], tasks: int) -> Iterator[KeptRates]:
    """The rates that are kept for `target`.

    measured: what has to be the same for rates to belong together; tasks: how many there are.  Raises `PeerError` where what
    is kept is of another measurement.
    """
    path = target.with_name(target.name + SUFFIX)
    rates = _read(path, measured, tasks)
    lines = [json.dumps(measured) + "\n", *(_line(task, rate) for task, rate in rates.items())]
    write_atomically(path, "".join(lines).encode())  # without a line that a killed process began
    with path.open("a") as file:
        yield KeptRates(path, rates, file)


def _line(task: int, rate: float) -> str:
    return json.dumps([task, rate]) + "\n"


def _read(path: Path, measured: Mapping[str, Any], tasks: int) -> dict[int, float]:
    """What is kept, up to the first line that was not written whole."""
    if not path.exists():
        return {}
    if not path.is_file():
        raise PeerError(f"{path} is no file; remove it, or give another --out", ExitCode.INPUT)
    most = HEAD_BYTES + LINE_BYTES * tasks
    with path.open("rb") as file:
        raw = file.read(most + 1)
    head, *lines = raw.decode(errors="replace").splitlines() or [""]
    if len(raw) > most or _json(head) != measured:
        raise PeerError(
            f"{path} has rates of another measurement (other tasks, weights or options); remove it, or give another --out",
            ExitCode.INPUT,
        )
    rates: dict[int, float] = {}
    for line in lines:
        match _json(line):
            case [int(task), float(rate)] if type(task) is int and 0 <= task < tasks and 0 <= rate <= 1:
                rates[task] = rate
            case _:
                break
    return rates


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
