"""Shared steps of several commands: ask the peer that runs here, and print the answer for programs or for a person."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from peer.errors import ExitCode, PeerError


def ask(args: argparse.Namespace, command: str, timeout_s: float = 10.0, **fields: Any) -> dict[str, Any]:
    """Return the answer of the peer that runs with this data directory.  Raises `PeerError`, also if no peer runs."""
    from peer.control.client import ControlClient, ControlError, NotRunning
    from peer.paths import data_dir

    try:
        return ControlClient(data_dir(args.data_dir), timeout_s=timeout_s).request(command, **fields)
    except NotRunning as error:
        raise PeerError(error.with_remedy, ExitCode.NOT_RUNNING) from error
    except ControlError as error:
        raise PeerError(str(error)) from error


def show(args: argparse.Namespace, command: str, describe: Callable[[dict[str, Any]], list[str]]) -> int:
    """Ask, and print the answer: as one JSON object if `args.json` is set, else as the lines that describe it."""
    from peer.console.streams import print_json

    answer = ask(args, command)
    if args.json:
        print_json(answer)
    else:
        print("\n".join(describe(answer)))
    return ExitCode.OK
