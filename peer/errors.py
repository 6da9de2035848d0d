"""Errors of the command line: one sentence with the remedy, and an exit code.

The codes are part of the interface (docs/reference/commands.md lists them): scripts and service managers read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the commands."""

    OK = 0
    FAILED = 1
    """Any error without its own code."""
    USAGE = 2
    """The command line is wrong (argparse's own code)."""
    INPUT = 3
    """A run file, a manifest, an invitation or a token is missing, unreadable or wrong."""
    IDENTITY = 4
    """The identity is locked by another process, damaged, unprotected, or would be overwritten."""
    NOT_RUNNING = 5
    """No peer runs with this data directory, or it does not answer."""
    ALREADY_RUNNING = 6
    """A peer runs with this data directory already."""
    NOT_ADMITTED = 7
    """The run does not admit this peer, or wants another version of the software."""
    UNREACHABLE = 8
    """No other peer could be reached."""
    RESOURCES = 9
    """Disk, memory or a device is not sufficient."""
    TRAINER = 10
    """The trainer failed again and again; the peer stopped instead of looping."""
    OUTPUT = 11
    """Standard output's reader went away, and the peer left."""
    INTERRUPTED = 130
    """Interrupted from the keyboard before the command had finished."""


MAX_SENTENCE_CHARACTERS, MAX_SENTENCES = 1000, 100


def bounded(text: str) -> str:
    """Return the sentences, one per line; a long one loses its middle, so that the remedy at its end stays.

    A sentence may quote a name of any length from another person's file.
    """
    half = MAX_SENTENCE_CHARACTERS // 2
    lines = text.split("\n", MAX_SENTENCES)[:MAX_SENTENCES]
    return "\n".join(
        line if len(line) <= MAX_SENTENCE_CHARACTERS else f"{line[: half - 2]} … {line[1 - half :]}" for line in lines
    )


class PeerError(Exception):
    """Error that ends the command: `text` is one sentence for a person, with the remedy, of limited length."""

    def __init__(self, text: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        text = bounded(text)
        super().__init__(text)
        self.text = text
        self.exit_code = exit_code


@contextmanager
def told_as(exit_code: ExitCode, *kinds: type[Exception]) -> Iterator[None]:
    """Raise errors of these kinds, whose texts are sentences for a person, as a `PeerError` with this exit code."""
    try:
        yield
    except kinds as error:
        raise PeerError(str(error), exit_code) from error
