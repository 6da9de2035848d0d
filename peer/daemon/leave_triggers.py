"""What tells a peer to leave from outside: a signal, the end of standard input, a reader that went away."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

import trio

from peer.console.output import Output
from peer.console.standard_streams import wait_for_a_word, wait_for_eof
from peer.daemon.failure import reader_gone
from peer.errors import PeerError


class Peer(Protocol):
    """Whom to tell: the daemon."""

    def notice(self, level: str, text: str) -> None: ...

    def leave(self) -> None: ...

    def leave_at_once(self) -> None: ...

    def stop(self, problem: PeerError) -> None: ...


def open_signals() -> AbstractContextManager[AsyncIterator[int]]:
    """The signals that ask a peer to leave.  Under `nohup` a terminal that hangs up is none of our business."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP]))


async def obey_signals(peer: Peer, signals: AsyncIterator[int]) -> None:
    """The first one leaves gracefully, each further one at once."""
    async for _ in signals:
        peer.notice("info", "leaving; once more leaves at once")
        peer.leave()
        break
    async for _ in signals:
        peer.leave_at_once()


async def leave_at_eof(peer: Peer) -> None:
    """Whoever started us holds the other end of our standard input, and is gone when that ends."""
    wait = partial(trio.to_thread.run_sync, wait_for_eof, sys.stdin.fileno())
    await wait(abandon_on_cancel=True)  # type: ignore[call-arg]  # libp2p brings stale stubs of trio
    peer.leave()


async def leave_with_the_view(peer: Peer) -> None:
    """The terminal interface that started us holds our standard input, and writes there when we are to go on alone."""
    wait = partial(trio.to_thread.run_sync, wait_for_a_word, sys.stdin.fileno())
    if await wait(abandon_on_cancel=True):  # type: ignore[call-arg]  # libp2p brings stale stubs of trio
        peer.notice("info", "detached from the terminal; `peer watch` shows this peer, `peer leave` stops it")
    else:
        peer.notice("info", "the terminal is gone; leaving")
        peer.leave()


async def leave_with_the_reader(peer: Peer, output: Output, ignore: bool) -> None:
    """A peer that nobody watches any more, and nobody told to go on, would train unseen for ever."""
    await output.until_gone()
    if ignore:
        peer.notice("warning", "nobody reads standard output any more; going on all the same")
    else:
        peer.stop(reader_gone())
