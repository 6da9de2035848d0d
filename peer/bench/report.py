"""Figures for people and for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TextIO

from peer.bench.figures import Figures
from peer.bench.meaning import Row, RunSize, rows
from protocol.version import version


def fields(figures: Figures, run_id: str, run: RunSize, seconds: float) -> dict[str, Any]:
    """The one JSON object.  seconds: that it took."""
    size = {**asdict(run), "exchange_bytes": run.exchange_bytes, "state_bytes": run.state_bytes}
    about = {"version": version(), "seconds": seconds, "cores": os.cpu_count(), "run": {"id": run_id, **size}}
    return about | figures.to_fields()


def table(figures: Figures, run: RunSize) -> list[str]:
    """The lines of the table: what, the figure, and what it means."""
    found = rows(figures, run)
    widths = [max((len(row[column]) for row in found), default=0) for column in range(2)]
    return [_line(row, widths) for row in found]


def _line(row: Row, widths: Sequence[int]) -> str:
    what, figure, meaning = row
    return f"{what:<{widths[0]}}  {figure:<{widths[1]}}  {meaning}".rstrip()


class Progress:
    """Says on standard error what is being measured: on a terminal in one line, which is gone afterwards."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()

    def say(self, what: str) -> None:
        """This comes now."""
        self._write(f"\r\x1b[Kmeasuring {what} …" if self._is_terminal else f"measuring {what} …\n")

    def end(self) -> None:
        """Nothing more comes."""
        if self._is_terminal:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._is_terminal = False  # nobody reads it
