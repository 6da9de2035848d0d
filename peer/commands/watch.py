"""`peer watch`: look at the running peer in the terminal."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from peer.commands import add_command
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from peer.commands import Subparsers


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    add_command(
        subparsers,
        "watch",
        "look at the running peer: curves, rounds, swarm, transfers, log",
        run,
        epilog="q closes the view and the peer goes on; ? shows every key.  Any number of views may look at one peer.",
    )


def run(args: argparse.Namespace) -> int:
    """Become the terminal interface, a program of its own."""
    from peer.console.standard_streams import draws
    from peer.control.client import ControlClient, ControlError
    from peer.installation import child_environment
    from peer.paths import data_dir

    folder = data_dir(args.data_dir)
    if not (sys.stdin.isatty() and draws(sys.stdout)):
        raise PeerError("this is no terminal to draw on; use `peer status`, or `peer status --json`", ExitCode.USAGE)
    try:
        ControlClient(folder).status()
    except ControlError as error:
        raise PeerError(f"{error}; start it with `peer join`", ExitCode.NOT_RUNNING) from error
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", "tui", str(folder)], child_environment(os.environ))
