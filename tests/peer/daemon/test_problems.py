"""Errors that the command line explains, the daemon explains in the same sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.cli import explain
from peer.control.client import ControlError
from peer.daemon.daemon import CRASH_LOG, problem_of
from peer.errors import PeerError
from peer.keyfile import KeyfileError
from protocol.run.run_file import RunFileError
from protocol.transport.interface import NetworkError
from protocol.wire.canonical import Malformed

FORESEEN = (
    PeerError("no; do this"),
    ControlError("no; do this"),
    KeyfileError("no; do this"),
    RunFileError("no; do this"),
    NetworkError("no; do this"),
    Malformed("no; do this"),
    IsADirectoryError(21, "Is a directory", "/data/incarnation"),
)


@pytest.mark.parametrize("error", FORESEEN, ids=lambda error: type(error).__name__)
def test_a_foreseen_error_is_no_unexpected_one(error: Exception, tmp_path: Path) -> None:
    told = problem_of(ExceptionGroup("tasks", [ExceptionGroup("inner", [error])]), tmp_path)
    assert (told.text, told.exit_code) == (explain(error).text, explain(error).exit_code)
    assert "unexpected" not in told.text and not (tmp_path / CRASH_LOG).exists()


def test_an_unforeseen_error_says_where_its_traceback_is(tmp_path: Path) -> None:
    assert str(tmp_path / CRASH_LOG) in problem_of(RuntimeError("?"), tmp_path).text
