"""Commands of `peer`, with a module for each.

Each module has `register(subparsers)`, which describes the command with `add_command` and imports nothing heavy, and
`run(args) -> int` (or several such functions for subcommands), which imports the rest and returns the exit code.  Errors
are raised as `peer.errors.PeerError`.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

from peer.environment import ChildKind, child_environment

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

ATTACHED = "--attached"
"""Option before a command that the interface starts: standard input is then the interface's pipe (`tui.own_peer`)."""


def add_command(
    subparsers: Subparsers,
    name: str,
    summary: str,
    run: Callable[[argparse.Namespace], int] | None,
    epilog: str = "",
    json: bool = False,
) -> argparse.ArgumentParser:
    """Return the parser of a new command, with the options common to all commands.

    run: None for a group of commands.  json: True for a command that prints one JSON object with --json.
    """
    description = summary[:1].upper() + summary[1:] + "."
    parser = subparsers.add_parser(name, help=summary, description=description, epilog=epilog)
    add_common_options(parser, argparse.SUPPRESS)
    if json:
        option(parser, "--json", "one JSON object")
    if run is not None:
        parser.set_defaults(run=run, words=parser.prog)
    return parser


def option(parser: argparse._ActionsContainer, spec: str, help: str, **more: Any) -> None:
    """Add an argument to a parser or a group.

    spec: the name and, after a space, the word for the value.  An option without that word and without choices is a flag.
    more: further keyword arguments of `add_argument`.
    """
    name, _, value = spec.partition(" ")
    if value:
        more["metavar"] = value
    elif name.startswith("-") and "choices" not in more:
        more["action"] = "store_true"
    parser.add_argument(name, help=help, **more)


def add_group(parser: argparse.ArgumentParser) -> Subparsers:
    """Add subcommands to a command; `add_command(group, …)` then adds the parser of each subcommand."""
    return parser.add_subparsers(title="commands", metavar="COMMAND", required=True)


def add_common_options(parser: argparse.ArgumentParser, default: str | None) -> None:
    """Add the common options.  default: SUPPRESS for subcommands, so that an option before the command is kept."""
    where = "folder of identity and runs (PEER_DATA_DIR; default: the user's data folder)"
    option(parser, "--data-dir DIR", where, default=default)
    option(parser, "--debug", "show tracebacks", default=default or False)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the argument `run_id`, which names a run of this data directory."""
    option(parser, "run_id RUN", "a run ID or its beginning (default: the running run, else the latest one here)", nargs="?")


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return the reader of an option whose value is a whole number from `least` to `most`; underscores may group digits."""

    def read(text: str) -> int:
        digits = text.replace("_", "")
        if not digits.isascii() or not digits.isdigit() or not least <= int(digits[:32]) <= most:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number from {least} to {most}")
        return int(digits)

    return read


UNITS = {"": 60, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds_of(text: str) -> int:
    """Return the seconds of a time such as "30m"; a number without a unit means minutes."""
    match = re.fullmatch(r"(\d{1,6})([smhd]?)", text.strip())
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text} is not a time; write it like 45s, 30m, 2h or 1d")
    return int(match[1]) * UNITS[match[2]]


def become_interface(child: ChildKind, *words: str) -> NoReturn:
    """Replace this process by the terminal interface, which is a separate program."""
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", "tui", *words], child_environment(child))
