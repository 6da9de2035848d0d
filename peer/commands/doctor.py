"""`peer doctor`: checks whether this computer can take part, and estimates its contribution."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from peer.commands import add_command
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from peer.commands import Subparsers


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(
        subparsers,
        "doctor",
        "check this computer, its network and the way into a run",
        run,
        epilog="Takes about half a minute.  Exit code 0 when nothing hinders this computer, else 1.",
    )
    parser.add_argument(
        "what",
        metavar="WHAT",
        nargs="*",
        help="as for `peer join`; default: the run of the peer here, else the demo (PEER_RUN)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--anew", action="store_true", help="measure how fast it trains again, too")
    parser.add_argument("--local", action="store_true", help="meet only peers on this computer")


def run(args: argparse.Namespace) -> int:
    """Run all checks, and print them."""
    from functools import partial

    import trio

    from peer.console.streams import print_json
    from peer.daemon.settings import choose
    from peer.doctor.checks import Check, CheckResult
    from peer.doctor.examination import DoctorProgress, Examination, fields, lines, may_take_part
    from peer.paths import data_dir, make_private
    from peer.settings.file import gather
    from peer.settings.preferences import Preferences
    from peer.settings.values import mapped_addresses

    folder = make_private(data_dir(args.data_dir))
    preferences, checks = Preferences(), []
    try:
        preferences = gather({}).preferences
    except PeerError as error:
        value, _, remedy = error.text.partition("; ")
        checks = [Check("settings", CheckResult.FAIL, value, "", remedy or "see `peer config`")]
    progress = DoctorProgress()
    announce, what = preferences.announce, " ".join(args.what) or os.environ.get("PEER_RUN") or None
    examination = Examination(
        folder,
        preferences,
        partial(choose, what, folder),
        progress.say,
        named=what is not None,
        anew=args.anew,
        local=args.local,
        checks=checks,
        announce=mapped_addresses(os.environ, preferences.port or 4001) if announce is None else announce,
    )
    try:
        checks = trio.run(examination.run)
    finally:
        progress.end()
    if args.json:
        print_json(fields(checks))
    else:
        print("\n".join(lines(checks)))
    return ExitCode.OK if may_take_part(checks) else ExitCode.FAILED
