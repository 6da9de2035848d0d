"""The three standard descriptors, as the process that started us left them."""

from __future__ import annotations

import json
import math
import os
import select
import sys
from typing import Any, TextIO

# ------------------------------------------------------------------------------------------------------------------------
# JSON that every reader accepts: numbers without a JSON form become null.


def plain(value: Any) -> Any:
    """`value` with null for every number that is not finite."""
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


# ------------------------------------------------------------------------------------------------------------------------


def open_standard_streams() -> None:
    """Put /dev/null where a descriptor is closed (`>&-`): the next file opened must not become our output."""
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
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115 - for the life of the process


def discard(descriptor: int) -> None:
    """Discard all further output to `descriptor`: nobody reads it, or there is no room for it."""
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
    """Wait until somebody writes a byte (True) or the writing end closes (False); blocks."""
    return bool(os.read(descriptor, 1))
