"""`peer replay`: shows a recorded event log in the terminal."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from peer.commands import add_command
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from peer.commands import Subparsers


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(
        subparsers,
        "replay",
        "look at a recorded event log, forwards and backwards",
        run,
        epilog="space plays and stops, the arrows move, n goes to the next round; ? shows every key.",
    )
    parser.add_argument(
        "events",
        metavar="EVENTS",
        nargs="?",
        help="an events.jsonl, or the folder of a run or of a peer (default: the last run of the peer here)",
    )


def run(args: argparse.Namespace) -> int:
    """Replace this process by the interface, a program of its own."""
    from peer.console.streams import draws
    from peer.installation import child_environment
    from peer.paths import data_dir

    if not (sys.stdin.isatty() and draws(sys.stdout)):
        raise PeerError("this is no terminal to draw on; an event log is plain JSON lines to read", ExitCode.USAGE)
    files = recorded(Path(args.events) if args.events is not None else data_dir(args.data_dir))
    sys.stdout.flush()
    command = [sys.executable, "-m", "tui", "--replay", *map(str, files)]
    os.execve(sys.executable, command, child_environment(os.environ))


def recorded(where: Path) -> list[Path]:
    """Return the files of the log, oldest first.  Raises PeerError."""
    from peer.control.event_log import LOG_NAMES
    from peer.paths import runs_dir

    if where.is_file():
        return [where]
    runs = runs_dir(where)
    folders = [where, *(runs.iterdir() if runs.is_dir() else ())]
    logs = [folder for folder in folders if (folder / LOG_NAMES[0]).is_file()]
    if not logs:
        raise PeerError(f"no event log in {where}; name an events.jsonl, or the folder of a run", ExitCode.INPUT)
    newest = max(logs, key=lambda folder: (folder / LOG_NAMES[0]).stat().st_mtime)
    return [newest / name for name in reversed(LOG_NAMES) if (newest / name).is_file()]
