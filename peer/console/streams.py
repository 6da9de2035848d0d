"""Standard input, output and error: missing descriptors, lost readers, and JSON output."""

from __future__ import annotations

import json
import math
import os
import select
import sys
from collections.abc import Callable
from typing import Any, TextIO

# ------------------------------------------------------------------------------------------------------------------------
# JSON that every reader accepts: numbers without a JSON form become null.


def plain(value: Any) -> Any:
    """Return `value` with null for every number that is not finite."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_json(value: Any) -> None:
    """Print one object on one line of standard output."""
    print(json.dumps(plain(value)), flush=True)


def share_reporter(verb: str) -> Callable[[float], None]:
    """Return a function that shows the share done in one line, or does nothing if standard error is not a terminal."""

    def show(share: float) -> None:
        print(f"\r{verb} {100 * share:3.0f} %", end="\n" if share == 1 else "", file=sys.stderr, flush=True)

    return show if sys.stderr.isatty() else lambda share: None


class ProgressLine:
    """Report of the running step on standard error: lines, or on a terminal one line that is erased at the end.

    verb: first word of the line.
    """

    def __init__(self, verb: str, stream: TextIO | None = None) -> None:
        self._verb, self._stream = verb, stream or sys.stderr
        self._is_terminal = self._stream.isatty()

    def say(self, what: str) -> None:
        """Announce the next step."""
        line = f"{self._verb} {what} …"
        self._write(f"\r\x1b[K{line}" if self._is_terminal else f"{line}\n")

    def end(self) -> None:
        """Erase the line."""
        if self._is_terminal:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._is_terminal = False  # standard error has no reader


# ------------------------------------------------------------------------------------------------------------------------


def open_standard_streams() -> None:
    """Open /dev/null for a closed descriptor (`>&-`), so that the next file opened does not become our output."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115 - open until the process ends


def discard(descriptor: int) -> None:
    """Discard all further output to `descriptor`, because it has no reader, or the disk is full."""
    opened = os.open(os.devnull, os.O_WRONLY)
    os.dup2(opened, descriptor)
    os.close(opened)


def draws(terminal: TextIO) -> bool:
    """Return True if `terminal` is a terminal that can show more than lines."""
    return terminal.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def wait_for_eof(descriptor: int) -> None:
    """Wait until `descriptor` is at its end; blocks."""
    while True:
        try:
            if not os.read(descriptor, 4096):
                return
        except BlockingIOError:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll()
        except OSError:
            return  # a terminal that hung up


def wait_for_a_word(descriptor: int) -> bool:
    """Wait until a byte is written (return True) or the writing end closes (return False); blocks."""
    return bool(os.read(descriptor, 1))
