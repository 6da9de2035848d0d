"""Commands of `peer`, with a module for each.

Each module has `register(subparsers)`, which describes the command with `add_command` and imports nothing heavy, and
`run(args) -> int` (or several such functions for subcommands), which imports the rest and returns the exit code.  Errors
are raised as `peer.errors.PeerError`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from peer.environment import ChildKind, child_environment

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

ATTACHED = "--attached"
"""Option before a command that the interface starts: standard input is then the interface's pipe (`tui.own_peer`)."""


def add_command(
    subparsers: Subparsers, name: str, summary: str, run: Callable[[argparse.Namespace], int] | None, epilog: str = ""
) -> argparse.ArgumentParser:
    """Return the parser of a new command, with the options common to all commands.  run: None for a group of commands."""
    description = summary[:1].upper() + summary[1:] + "."
    parser = subparsers.add_parser(name, help=summary, description=description, epilog=epilog)
    add_common_options(parser, argparse.SUPPRESS)
    if run is not None:
        parser.set_defaults(run=run, words=parser.prog)
    return parser


def add_group(parser: argparse.ArgumentParser) -> Subparsers:
    """Let a command have subcommands; `add_command(group, …)` adds the parser of each subcommand."""
    return parser.add_subparsers(title="commands", metavar="COMMAND", required=True)


def add_common_options(parser: argparse.ArgumentParser, default: str | None) -> None:
    """Add the common options.  default: SUPPRESS for subcommands, so that an option before the command is kept."""
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        default=default,
        help="folder of identity and runs (PEER_DATA_DIR; default: the user's data folder)",
    )
    parser.add_argument("--debug", action="store_true", default=default or False, help="show tracebacks")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the argument `run_id`, which names a run of this data directory."""
    parser.add_argument(
        "run_id",
        metavar="RUN",
        nargs="?",
        help="a run ID or its beginning (default: the running run, else the latest one here)",
    )


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return the reader of an option whose value is a whole number from `least` to `most`; underscores may group digits."""

    def read(text: str) -> int:
        digits = text.replace("_", "")
        if not digits.isascii() or not digits.isdigit() or not least <= int(digits[:32]) <= most:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number from {least} to {most}")
        return int(digits)

    return read


def become_interface(child: ChildKind, *words: str) -> NoReturn:
    """Replace this process by the terminal interface, which is a separate program."""
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", "tui", *words], child_environment(child))
