"""`peer demo`: a whole swarm here, to see that it works."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from peer.commands import add_command
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from peer.commands import Subparsers

MAX_PEERS = 32


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(subparsers, "demo", "train with several peers on this computer, to see that it works", run)
    parser.add_argument("--peers", type=_count, default=3, metavar="N", help="how many peers (default: 3)")
    parser.add_argument("--rounds", type=_count, default=8, metavar="R", help="how many rounds (default: 8)")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end, and nothing else")
    parser.add_argument("--keep", action="store_true", help="keep the peers' directories, and say where they are")
    parser.add_argument(
        "--run", dest="run_file", type=Path, metavar="RUN.toml", help="another model or recipe than the demo's"
    )


def run(args: argparse.Namespace) -> int:
    """Start, watch, leave, sum up; exit code 1 when a peer failed or the digests differ."""
    import signal

    from peer.console.plain_json import print_json
    from peer.demo.screen import Screen, summary_lines
    from peer.demo.swarm import Demo, summary_fields

    if args.peers > MAX_PEERS:
        raise PeerError(f"{args.peers} peers do not fit on one computer; at most {MAX_PEERS}", ExitCode.USAGE)
    signal.signal(signal.SIGTERM, _interrupt)  # so that being told to end cleans up as Ctrl-C does
    signal.signal(signal.SIGHUP, _interrupt)
    with Demo(args.peers, args.rounds, args.run_file, keep=args.keep) as demo, Screen(demo, quiet=args.json) as screen:
        demo.start()
        demo.watch(screen.draw)
        summary = demo.summary()
        demo.leave()
    if args.json:
        print_json(summary_fields(summary))
    else:
        print("\n".join(summary_lines(summary, demo)))
    if args.keep and not args.json:
        print(f"The peers' directories are in {demo.folder}.")
    if not summary.equal:
        raise PeerError("the peers' states differ, which must never happen; please report it with the logs (--keep)")
    return ExitCode.OK


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 1 << 20:
        raise argparse.ArgumentTypeError(f"{text} is no count; give a whole number from 1")
    return int(text)
