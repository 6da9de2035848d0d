"""`peer bench`: measures this computer and its lines, and explains the figures for a run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from peer.commands import add_command
from peer.errors import ExitCode

if TYPE_CHECKING:
    from peer.commands import Subparsers

PARTS = ("lines", "codec", "exchange", "training", "disk")


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(
        subparsers,
        "bench",
        "measure this computer and its lines",
        run,
        epilog="Takes about 15 seconds.  Lines are measured by the peer that runs here: a few MB from a few peers.",
    )
    parser.add_argument(
        "--run",
        dest="what",
        metavar="RUN",
        help="say what the figures mean for this run (default: the one of the peer here, else the demo)",
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"measure only some of: {', '.join(PARTS)}")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    """Measure and print; return the exit code of the first required part that could not be measured."""
    import time

    import trio

    from peer.console.streams import print_json
    from peer.measurements.report import BenchProgress, RunSize, chosen, fields, table
    from peer.measurements.speeds import measure_unless_interrupted
    from peer.paths import data_dir, make_private

    folder = make_private(data_dir(args.data_dir))
    signed, status = chosen(args.what, folder)
    size = RunSize.of(signed.manifest, len(status.members) if status is not None else 0)
    progress, begun = BenchProgress(), time.monotonic()
    wanted_run = signed.run.hex() if args.what is not None else None
    try:
        figures, problems = trio.run(measure_unless_interrupted, args.only or PARTS, folder, wanted_run, progress.say)
    finally:
        progress.end()
    if args.json:
        print_json(fields(figures, signed.run.hex(), size, time.monotonic() - begun))
    else:
        print(f"For {size.name}, {size.parameters / 1e6:.1f} M parameters, {size.members} members:\n")
        print("\n".join(table(figures, size)))
        if status is not None and status.trainer_pid is not None and status.phase == "computing":
            print("\nA peer trains here meanwhile: this computer does more while it pauses (`peer pause`).")
    if args.only is None and args.what is None:
        problems.pop("lines", None)  # lines are optional: no peer has to run here
    return next((problem.exit_code for problem in problems.values()), ExitCode.OK)
