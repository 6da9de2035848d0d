"""`peer leave` and `peer finish`: stop the peer of this data directory, now or when its round is complete."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from peer.commands import add_command
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from pathlib import Path

    from peer.commands import Subparsers

STOP_DEADLINE_S = 30.0


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    add_command(
        subparsers,
        "leave",
        "say goodbye and stop the peer here",
        run,
        epilog="Later the same `peer join` continues where the peer stopped.",
    )
    add_command(
        subparsers,
        "finish",
        "complete the running round, then stop the peer here",
        run_finish,
        epilog="`peer status` says what it waits for.  If nobody is left to complete the round with (no other trainer; for "
        "a trainer that waits for rollouts, no rollout peer), the peer leaves after 30 s without it, and in any case 30 "
        "minutes after its own training should be done.",
    )


def run(args: argparse.Namespace) -> int:
    """Ask the peer to leave and wait until it has."""
    from peer.control.client import ControlError
    from peer.paths import data_dir

    try:
        said = _leave_and_wait(data_dir(args.data_dir))
    except ControlError as error:
        raise PeerError(str(error), ExitCode.NOT_RUNNING) from error
    except TimeoutError as error:
        raise PeerError(f"the peer has not stopped after {STOP_DEADLINE_S:.0f} s; look at `peer status`") from error
    print(f"{said[:1].upper()}{said[1:]}.")
    return ExitCode.OK


def run_finish(args: argparse.Namespace) -> int:
    """Ask the peer to stop after this round."""
    from peer.control.client import ControlClient, ControlError
    from peer.formatting import duration
    from peer.paths import data_dir

    try:
        within_s = ControlClient(data_dir(args.data_dir)).request("finish").get("within_s")
    except ControlError as error:
        raise PeerError(str(error), ExitCode.NOT_RUNNING) from error
    within = f", in {duration(within_s)} at most" if isinstance(within_s, int | float) else ""
    print(f"The peer stops when its round is complete or nobody is left to complete it with{within}; see `peer status`.")
    return ExitCode.OK


def _leave_and_wait(folder: Path) -> str:
    """Return the daemon's last word: how it left, or why its stream of events ended."""
    from peer.control.client import ControlClient
    from peer.sentences import sentence
    from protocol.events.events import Left

    client, left = ControlClient(folder), ""
    with client.events() as stream:
        client.request("leave")
        while (stamped := stream.next(STOP_DEADLINE_S)) is not None:
            if isinstance(stamped.event, Left):
                left = sentence(stamped.event)
    _wait_for_end(stream.status.pid)
    return left or f"left ({stream.end})"


def _wait_for_end(pid: int) -> None:
    """Wait until the process is gone, so that `peer leave && peer join` finds the identity free."""
    import psutil

    end = time.monotonic() + STOP_DEADLINE_S
    while pid > 0 and time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return  # its parent has not asked for the exit code yet; the process holds nothing any more
        except psutil.NoSuchProcess:
            return
        time.sleep(0.05)
    if pid > 0:
        raise TimeoutError
