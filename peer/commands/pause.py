"""`peer pause` and `peer resume`: stop computing for a while, and resume."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from peer.commands import add_command
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from peer.commands import Subparsers

UNITS = {"": 60, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(
        subparsers,
        "pause",
        "compute nothing for a while, but stay in the run",
        run,
        epilog="It prints when the pause ends.  The pause also holds for a peer that starts again meanwhile.",
    )
    parser.add_argument(
        "time", metavar="TIME", nargs="?", type=seconds_of, help="how long: 45s, 30m, 2h, 1d (default: until `peer resume`)"
    )
    add_command(subparsers, "resume", "go on after a pause", run_resume)


def run(args: argparse.Namespace) -> int:
    """Pause the peer here."""
    from peer.formatting import clean

    told = _ask(args, "pause", **({"seconds": args.time} if args.time is not None else {}))
    print(f"Paused {clean(told['until'], 100)}, also if the peer starts again meanwhile.")
    return ExitCode.OK


def run_resume(args: argparse.Namespace) -> int:
    """Let the peer here compute again; print the reason if it still rests."""
    from peer.formatting import clean

    rests = _ask(args, "resume").get("rests", "")
    print(f"Resumed, but {clean(rests, 200)}." if rests else "Resumed.")
    return ExitCode.OK


def _ask(args: argparse.Namespace, command: str, **fields: float) -> dict[str, Any]:
    from peer.control.client import ControlClient, ControlError, NotRunning
    from peer.paths import data_dir

    try:
        return ControlClient(data_dir(args.data_dir)).request(command, **fields)
    except NotRunning as error:
        raise PeerError(str(error), ExitCode.NOT_RUNNING) from error
    except ControlError as error:
        raise PeerError(str(error)) from error


def seconds_of(text: str) -> int:
    """Return the seconds in "30m"; a number alone is minutes."""
    match = re.fullmatch(r"(\d{1,6})([smhd]?)", text.strip())
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text} is no time; write it like 45s, 30m, 2h or 1d")
    return int(match[1]) * UNITS[match[2]]
