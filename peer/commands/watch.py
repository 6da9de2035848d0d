"""`peer watch` and `peer replay`: the terminal interface on a running peer, or on a recorded event log."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from peer.commands import Subparsers, add_command, become_interface, option, whole_number
from peer.environment import ChildKind, child_environment
from peer.errors import ExitCode, PeerError

WEB_PORT = 8321


def register(subparsers: Subparsers) -> None:
    """Describe the command lines."""
    watch = add_command(
        subparsers,
        "watch",
        "watch a running peer: curves, rounds, swarm, transfers, log",
        run_watch,
        epilog="q closes the view, and the peer goes on; ? shows every key.  Any number of views may watch one peer.",
    )
    option(
        watch,
        "address ADDRESS",
        "address of a peer elsewhere whose `owner` is this one, as /ip4/203.0.113.7/tcp/4001/p2p/12D3…; default: "
        "the peer here",
        nargs="?",
    )
    option(
        watch,
        "--web PORT",
        f"show it in a browser on this computer instead, at this port of 127.0.0.1 (default: {WEB_PORT}); needs the "
        "extra `web`",
        nargs="?",
        type=whole_number(1024, 65_535),
        const=WEB_PORT,
    )
    replay = add_command(
        subparsers,
        "replay",
        "replay a recorded event log, forwards and backwards",
        run_replay,
        epilog="space plays and stops, the arrows move, n goes to the next round; ? shows every key.",
    )
    option(
        replay,
        "events EVENTS",
        "an events.jsonl, or the folder of a run or of a peer (default: the last run of the peer here)",
        nargs="?",
    )


def run_watch(args: argparse.Namespace) -> int:
    """Replace this process by the terminal interface; for a remote peer, keep running and forward its bytes."""
    from peer.console.streams import draws

    folder = args.data_dir
    if args.web is not None:
        return _watch_in_a_browser(args.address, folder, args.web)
    if not (sys.stdin.isatty() and draws(sys.stdout)):
        raise PeerError(
            "this terminal cannot show the interface; use `peer status`, or `peer status --json`", ExitCode.USAGE
        )
    if args.address is not None:
        return _watch_there(args.address, folder)
    _check_that_a_peer_runs(folder)
    become_interface(ChildKind.INTERFACE, str(folder))


def _check_that_a_peer_runs(folder: Path) -> None:
    """Raise PeerError if no peer runs; the view itself waits for one that is starting."""
    from peer.control.client import ControlClient, NotRunning, StillStarting

    try:
        ControlClient(folder).status()
    except StillStarting:
        return
    except NotRunning as error:
        raise PeerError(error.with_remedy, ExitCode.NOT_RUNNING) from error


def _watch_in_a_browser(address: str | None, folder: Path, port: int) -> int:
    from peer.console.web_view import serve

    if address is not None:
        raise PeerError("--web shows the peer here; run `peer watch ADDRESS` in a terminal", ExitCode.USAGE)
    _check_that_a_peer_runs(folder)
    serve(str(folder), port, lambda address: print(f"{address}\nCtrl-C closes the view; the peer goes on.", flush=True))
    return ExitCode.OK


def _watch_there(address: str, folder: Path) -> int:
    import signal
    import tempfile

    import trio

    from peer.control.remote import bridge
    from peer.keyfile import load_or_create_identity
    from peer.paths import make_private

    identity = load_or_create_identity(make_private(folder))

    async def watch() -> int:
        with tempfile.TemporaryDirectory(prefix="manyhands-") as place:
            async with bridge(Path(place), address, identity):
                done = await trio.run_process(
                    [sys.executable, "-m", "tui", place], env=child_environment(ChildKind.INTERFACE), stdin=None, check=False
                )
                return done.returncode

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the interface
    return trio.run(watch)


def run_replay(args: argparse.Namespace) -> int:
    """Replace this process by the interface, which is a separate program."""
    from peer.console.streams import draws

    if not (sys.stdin.isatty() and draws(sys.stdout)):
        raise PeerError(
            "this terminal cannot show the interface; read events.jsonl in the run's folder, one JSON object a line",
            ExitCode.USAGE,
        )
    files = recorded(Path(args.events) if args.events is not None else args.data_dir)
    become_interface(ChildKind.INTERFACE, "--replay", *map(str, files))


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
