"""End of a peer that cannot go on: a sentence, an exit code, and a file with the details of unforeseen errors."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

from peer.errors import ExitCode, PeerError
from protocol.disk import StoreFailed
from protocol.transport.interface import NetworkError

CRASH_LOG = "crash.log"


def reader_gone() -> PeerError:
    """Return the error of a peer that leaves because nobody reads its output."""
    return PeerError(
        "nobody reads standard output any more, so the peer left; to train on without a reader, redirect it to a file or "
        "give --ignore-closed-output",
        ExitCode.OUTPUT,
    )


def problem_of(error: BaseException, folder: Path) -> PeerError:
    """Return the error to show for `error`, which may be a group; unforeseen ones are detailed in a file in `folder`."""
    singles = list(_singles(error))
    for single in singles:
        if isinstance(single, PeerError):
            return single
        if isinstance(single, StoreFailed):
            return PeerError(f"{single}; nothing is lost: then start the peer again", ExitCode.RESOURCES)
        if isinstance(single, NetworkError):
            return PeerError(str(single), ExitCode.RESOURCES)
    path = folder / CRASH_LOG
    try:
        path.write_text("".join(traceback.format_exception(error)), errors="replace")
        remedy = f"please report it with {path}"
    except OSError as full:
        remedy = f"and {path} could not be written ({full.strerror}); run it again with --debug to see where"
    problem = PeerError(f"unexpected {type(singles[0]).__name__}: {singles[0]}; {remedy}")
    problem.__cause__ = error  # for --debug
    return problem


def _singles(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _singles(inner)
    else:
        yield error
