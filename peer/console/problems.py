"""Sentences for errors that end a command or a running peer, each with its exit code."""

from __future__ import annotations

import errno

from peer.control.client import ControlError
from peer.errors import ExitCode, PeerError
from peer.keyfile import KeyfileError
from protocol.disk import StateLost, StoreFailed
from protocol.run.run_file import RunFileError
from protocol.transport.interface import NetworkError
from protocol.wire.canonical import Malformed

CODES: dict[type[Exception], ExitCode] = {
    RunFileError: ExitCode.INPUT,
    KeyfileError: ExitCode.IDENTITY,
    Malformed: ExitCode.INPUT,
    StoreFailed: ExitCode.RESOURCES,
    StateLost: ExitCode.RESOURCES,
    NetworkError: ExitCode.RESOURCES,
}
"""Exit codes of errors whose text is a sentence for a person."""


def known_problem(error: BaseException) -> PeerError | None:
    """Return the sentence and exit code of a foreseen error; None for an unforeseen one."""
    if isinstance(error, PeerError):
        return error
    if isinstance(error, ControlError):
        return PeerError(error.with_remedy, ExitCode.NOT_RUNNING)
    for kind, code in CODES.items():
        if isinstance(error, kind):
            return PeerError(str(error), code)
    if isinstance(error, OSError):
        path = error.filename2 or error.filename  # what a written file should replace, not the file that should replace it
        where = f"{path}: " if path else ""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "make room on the disk" if full else "check the path and its permissions"
        code = ExitCode.RESOURCES if full else ExitCode.INPUT if error.filename else ExitCode.FAILED
        return PeerError(f"{where}{error.strerror or error}; {remedy}", code)
    return None
