"""`peer runs`: the runs in which this peer has been, or which it knows; each can be joined again by its ID."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from peer.commands import add_command
from peer.errors import ExitCode

if TYPE_CHECKING:
    from peer.commands import Subparsers
    from peer.joining.run_source import KnownRun


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(
        subparsers,
        "runs",
        "list the runs that this peer has been in",
        run,
        epilog="`peer join ID` goes on with one of them, without an invitation; the first digits of the ID will do.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the runs, latest first."""
    from dataclasses import asdict

    from peer.console.streams import print_json
    from peer.joining.run_source import known_runs
    from peer.paths import data_dir

    folder = data_dir(args.data_dir)
    found = known_runs(folder)
    if args.json:
        print_json({"data_dir": str(folder), "runs": [asdict(each) for each in found]})
    elif found:
        print("\n".join(describe(found)))
    else:
        print(f"no runs in {folder}; `peer join` joins the demo run, `peer join INVITATION` another one")
    return ExitCode.OK


def describe(found: list[KnownRun]) -> list[str]:
    """Return a heading, and a line for each run."""
    from datetime import datetime

    from peer.formatting import clean, size

    lines = [f"{'RUN':<14}{'NAME':<26}{'ROUNDS':>7}{'DISK':>10}  LAST"]
    for each in found:
        last = "running" if each.running else datetime.fromtimestamp(each.last).strftime("%Y-%m-%d %H:%M")
        name = clean(each.name, 25) if not each.problem else "(damaged manifest)"
        lines.append(f"{each.run[:12]:<14}{name:<26}{each.rounds:>7}{size(each.disk_bytes):>10}  {last}")
    return lines
