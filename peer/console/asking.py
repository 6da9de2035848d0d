"""Shared steps of several commands: ask the peer that runs here, and print a result for programs or for a person."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

from peer.console.streams import print_json
from peer.errors import ExitCode, PeerError


def print_result(args: argparse.Namespace, fields: Any, lines: Iterable[str]) -> int:
    """Print a result and return the exit code of success.  fields: printed as one JSON object if `args.json` is set."""
    if args.json:
        print_json(fields)
    else:
        print("\n".join(lines))
    return ExitCode.OK


def ask(args: argparse.Namespace, command: str, timeout_s: float = 10.0, **fields: Any) -> dict[str, Any]:
    """Return the answer of the peer that runs with this data directory.  Raises `PeerError`, also if no peer runs."""
    from peer.control.client import ControlClient, ControlError, NotRunning

    try:
        return ControlClient(args.data_dir, timeout_s=timeout_s).request(command, **fields)
    except NotRunning as error:
        raise PeerError(error.with_remedy, ExitCode.NOT_RUNNING) from error
    except ControlError as error:
        raise PeerError(str(error)) from error


def show(args: argparse.Namespace, command: str, describe: Callable[[dict[str, Any]], list[str]]) -> int:
    """Ask, and print the answer with the lines that describe it."""
    answer = ask(args, command)
    return print_result(args, answer, describe(answer))
