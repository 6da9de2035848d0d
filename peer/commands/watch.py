"""`peer watch`: shows a running peer in the terminal."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from peer.commands import add_command
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from pathlib import Path

    from peer.commands import Subparsers


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(
        subparsers,
        "watch",
        "look at a running peer: curves, rounds, swarm, transfers, log",
        run,
        epilog="q closes the view and the peer goes on; ? shows every key.  Any number of views may look at one peer.",
    )
    parser.add_argument(
        "address",
        metavar="ADDRESS",
        nargs="?",
        help="of a peer elsewhere whose `owner` is this one, as /ip4/203.0.113.7/tcp/4001/p2p/12D3…; default: the peer here",
    )


def run(args: argparse.Namespace) -> int:
    """Replace this process by the terminal interface; for a peer elsewhere, stay and carry its bytes."""
    from peer.console.streams import draws
    from peer.paths import data_dir

    if not (sys.stdin.isatty() and draws(sys.stdout)):
        raise PeerError("this is no terminal to draw on; use `peer status`, or `peer status --json`", ExitCode.USAGE)
    folder = data_dir(args.data_dir)
    return _watch_here(folder) if args.address is None else _watch_there(args.address, folder)


def _watch_here(folder: Path) -> int:
    from peer.control.client import ControlClient, ControlError
    from peer.installation import child_environment

    try:
        ControlClient(folder).status()
    except ControlError as error:
        raise PeerError(f"{error}; start it with `peer join`", ExitCode.NOT_RUNNING) from error
    sys.stdout.flush()
    os.execve(sys.executable, _interface(folder), child_environment(os.environ))


def _watch_there(address: str, folder: Path) -> int:
    import signal
    import tempfile
    from pathlib import Path

    import trio

    from peer.control.remote import bridge
    from peer.installation import child_environment
    from peer.keyfile import load_or_create_identity
    from peer.paths import make_private

    identity = load_or_create_identity(make_private(folder))

    async def watch() -> int:
        with tempfile.TemporaryDirectory(prefix="manyhands-") as place:
            async with bridge(Path(place), address, identity):
                done = await trio.run_process(
                    _interface(Path(place)), env=child_environment(os.environ), stdin=None, check=False
                )
                return done.returncode

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the interface
    return trio.run(watch)


def _interface(folder: Path) -> list[str]:
    return [sys.executable, "-m", "tui", str(folder)]
