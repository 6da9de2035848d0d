"""`peer page`: a web page about a run, for people who run no peer."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from peer.commands import add_command, add_run
from peer.commands.stop import seconds_of
from peer.errors import ExitCode

if TYPE_CHECKING:
    from peer.commands import Subparsers
    from peer.page.writer import Written


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(
        subparsers,
        "page",
        "write a web page about the run, to share",
        run,
        epilog="Writes `index.html`, which needs no script, no server and no other file, and `run.json` with the same "
        "facts.  Without a running peer it tells what is on this disk: no peers that are here, and no invitation.  A peer "
        "that was joined with `--page FOLDER` keeps its page current by itself.",
    )
    parser.add_argument("folder", metavar="FOLDER", help="where the page is written; a web server may serve it as it is")
    add_run(parser)
    parser.add_argument(
        "--every",
        metavar="TIME",
        type=seconds_of,
        help="write it again and again, with this time between: 60s, 5m (default: once)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the page once, or until the command is interrupted."""
    from peer.control.client import running_status
    from peer.control.history import RunHistory
    from peer.joining.run_source import chosen_run
    from peer.page.writer import FACTS, write_page
    from peer.paths import run_dir
    from protocol.formatting import clean, many, size, visible

    data = args.data_dir
    signed = chosen_run(args.run_id, data)
    history, folder = RunHistory(signed, run_dir(data, signed.run)), Path(os.path.expanduser(args.folder)).absolute()

    def write() -> Written:
        history.read()
        return write_page(history, running_status(data, signed.run), folder)

    written = write()
    print(
        f"Wrote {written.path} and {FACTS} ({size(written.size_bytes)}): run {clean(written.name)}, "
        f"{many(written.rounds, 'round')}.",
        flush=True,
    )
    told = ""
    while args.every is not None:
        time.sleep(args.every)
        try:
            write()
            problem = ""
        except OSError as error:  # a full disk gets room again
            problem = f"the page cannot be written: {error}; it is tried again"
        if problem and problem != told:
            print(f"peer: {visible(problem)}", file=sys.stderr, flush=True)
        told = problem
    return ExitCode.OK
