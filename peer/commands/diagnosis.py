"""`peer doctor` and `peer bench`: checks of this computer for taking part, and measurements of its speed."""

from __future__ import annotations

import argparse
import os

from peer.commands import Subparsers, add_command, option
from peer.console.asking import print_result
from peer.errors import ExitCode, PeerError

PARTS = ("lines", "codec", "exchange", "training", "disk")
SIZES = ("demo", "150m", "1b", "8b", "10b")
"""Names in `peer.measurements.speeds`, which this module does not load."""


def register(subparsers: Subparsers) -> None:
    """Describe the command lines."""
    doctor = add_command(
        subparsers,
        "doctor",
        "check whether this computer and its network can take part in a run",
        run_doctor,
        epilog="Takes about half a minute.  The exit code is 0 if this computer can take part, else 1.",
        json=True,
    )
    option(doctor, "what WHAT", "as for `peer join`; default: the run of the peer here, else the demo (PEER_RUN)", nargs="*")
    option(doctor, "--anew", "also measure the training speed again")
    option(doctor, "--local", "meet only peers on this computer")
    bench = add_command(
        subparsers,
        "bench",
        "measure this computer and its lines",
        run_bench,
        epilog="Takes about 15 seconds, with --train on a CPU minutes.  Lines are measured by the peer that runs here: a "
        "few MB from a few peers.",
        json=True,
    )
    option(
        bench,
        "--run RUN",
        "explain the figures for this run (default: the run of the peer here, else the demo)",
        dest="what",
    )
    option(
        bench,
        "--train SIZE",
        f"size of the model that trains: {', '.join(SIZES)} (default: {SIZES[0]})",
        choices=SIZES,
        default=SIZES[0],
    )
    option(bench, "--only PART", f"measure only some of: {', '.join(PARTS)}", nargs="+", choices=PARTS)


def run_doctor(args: argparse.Namespace) -> int:
    """Run all checks, and print them."""
    import trio

    from peer.console.streams import ProgressLine
    from peer.doctor.checks import Check, CheckResult, flawed
    from peer.doctor.examination import Examination, fields, lines, may_take_part
    from peer.measurements.speeds import unless_interrupted
    from peer.paths import make_private
    from peer.settings.file import gather
    from peer.settings.preferences import Preferences

    folder = make_private(args.data_dir)
    preferences, wrong = Preferences(), list[Check]()
    try:
        preferences = gather({}).now
    except PeerError as error:
        wrong = [flawed("settings", CheckResult.FAIL, error.text, "see `peer config`")]
    progress, word = ProgressLine("looking at"), " ".join(args.what) or os.environ.get("PEER_RUN") or None
    examination = Examination(folder, preferences, word, progress.say, anew=args.anew, local=args.local)
    try:
        checks = wrong + trio.run(unless_interrupted, examination.run)
    finally:
        progress.end()
    print_result(args, fields(checks), lines(checks))
    return ExitCode.OK if may_take_part(checks) else ExitCode.FAILED


def run_bench(args: argparse.Namespace) -> int:
    """Measure and print; return the exit code of the first required part that could not be measured."""
    import time
    from functools import partial

    import trio

    from peer.console.streams import ProgressLine
    from peer.formatting import table
    from peer.measurements.report import RunSize, chosen, fields, rows
    from peer.measurements.speeds import measure, unless_interrupted
    from peer.paths import make_private
    from peer.resources.pace import keep_pace

    folder = make_private(args.data_dir)
    signed, status = chosen(args.what, folder)
    size = RunSize.of(signed.manifest, len(status.members) if status is not None else 0)
    progress, begun = ProgressLine("measuring"), time.monotonic()
    wanted_run = signed.run.hex() if args.what is not None else None
    try:
        work = partial(measure, args.only or PARTS, folder, wanted_run, progress.say, args.train)
        figures, problems = trio.run(unless_interrupted, work)
    finally:
        progress.end()
    if (training := figures.training) is not None:
        keep_pace(folder, training.tokens_per_s, training.parameters, "`peer bench`")
    told = [f"For {size.name}, {size.parameters / 1e6:.1f} M parameters, {size.members} members:", ""]
    told += table(rows(figures, size))
    if status is not None and status.trainer_pid is not None and status.phase == "computing":
        told += ["", "A peer is training here: this computer is faster while that peer is paused (`peer pause`)."]
    print_result(args, fields(figures, signed.run.hex(), size, time.monotonic() - begun), told)
    if args.only is None and args.what is None:
        problems.pop("lines", None)  # lines are optional, because no peer has to run here
    return next((problem.exit_code for problem in problems.values()), ExitCode.OK)
