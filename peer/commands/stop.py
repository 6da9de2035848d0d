"""`peer leave`, `peer finish`, `peer pause` and `peer resume`: end the peer here, or pause its work."""

from __future__ import annotations

import argparse
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from peer.commands import Subparsers, add_command, option, seconds_of
from peer.console.asking import ask
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from pathlib import Path


def register(subparsers: Subparsers) -> None:
    """Describe the command lines."""
    add_command(
        subparsers,
        "leave",
        "say goodbye and stop the peer here",
        run_leave,
        epilog="Later the same `peer join` continues where the peer stopped.  A peer that alone has some of the run's data "
        "first stays until others have them, for half an hour at most; Ctrl-C, or a second `peer leave`, ends this wait.",
    )
    add_command(
        subparsers,
        "finish",
        "complete the running round, then stop the peer here",
        run_finish,
        epilog="`peer status` says what it waits for.  If nobody is left to complete the round with (no other trainer "
        "or, for a trainer that waits for rollouts, no rollout peer), the peer leaves without it after 30 s.  It leaves "
        "at the latest 30 minutes after its own training should be done.",
    )
    pause = add_command(
        subparsers,
        "pause",
        "compute nothing for a while, but stay in the run",
        run_pause,
        epilog="It prints the end of the pause.  A peer that is restarted meanwhile stays paused.",
    )
    option(
        pause,
        "time TIME",
        "length of the pause: 45s, 30m, 2h, 1d (default: until `peer resume`)",
        nargs="?",
        type=seconds_of,
    )
    add_command(subparsers, "resume", "go on after a pause", run_resume)


STOP_DEADLINE_S = 30.0
HANDING_OVER = "handing over"
"""Beginning of the sentences of a peer that hands data over before it leaves (`protocol.node.lifecycle.Departure`)."""


def run_leave(args: argparse.Namespace) -> int:
    """Ask the peer to leave, and wait until it has left."""
    try:
        said = _leave_and_wait(args.data_dir)
    except TimeoutError as error:
        raise PeerError(f"the peer has not stopped after {STOP_DEADLINE_S:.0f} s; look at `peer status`") from error
    print(f"{said[:1].upper()}{said[1:]}.")
    return ExitCode.OK


def run_finish(args: argparse.Namespace) -> int:
    """Ask the peer to stop after this round."""
    from peer.control.client import ControlClient
    from protocol.formatting import duration

    within_s = ControlClient(args.data_dir).request("finish").get("within_s")
    within = f", in {duration(within_s)} at most" if isinstance(within_s, int | float) else ""
    print(f"The peer stops when its round is complete or nobody is left to complete it with{within}; see `peer status`.")
    return ExitCode.OK


def _leave_and_wait(folder: Path) -> str:
    """Ask the peer to leave, and return its last sentence, or the reason why its stream of events ended.

    The function returns after the process has ended, so that `peer leave && peer join` finds the identity free.
    """
    import psutil

    from peer.control.client import ControlClient
    from protocol.events.events import Left, Notice
    from protocol.formatting import clean

    client, left = ControlClient(folder), ""
    with client.events() as stream:
        client.request("leave")
        while True:
            try:
                if (stamped := stream.next(STOP_DEADLINE_S)) is None:
                    break
            except KeyboardInterrupt:
                print("Leaving now, although only this peer has some of the run's data.", flush=True)
                client.request("leave")
                continue
            if isinstance(stamped.event, Left):
                left = stamped.event.sentence()
            elif isinstance(stamped.event, Notice) and stamped.event.text.startswith(HANDING_OVER):
                print(f"{clean(stamped.event.text, 200)}  (Ctrl-C: leave now)", flush=True)
    pid, end = stream.status.pid, time.monotonic() + STOP_DEADLINE_S
    with suppress(psutil.NoSuchProcess):  # a zombie holds no resources; its parent has just not reaped it yet
        while pid > 0 and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > end:
                raise TimeoutError
            time.sleep(0.05)
    return left or f"left ({stream.end})"


def run_pause(args: argparse.Namespace) -> int:
    """Pause the peer here."""
    from protocol.formatting import clean

    told = ask(args, "pause", **({"seconds": args.time} if args.time is not None else {}))
    print(f"Paused {clean(told['until'], 100)}, even if the peer is restarted meanwhile.")
    return ExitCode.OK


def run_resume(args: argparse.Namespace) -> int:
    """Let the peer here compute again; print the reason if it still rests."""
    from protocol.formatting import clean

    rests = ask(args, "resume").get("rests", "")
    print(f"Resumed, but {clean(rests, 200)}." if rests else "Resumed.")
    return ExitCode.OK
