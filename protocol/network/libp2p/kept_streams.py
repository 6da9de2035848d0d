"""Streams on which a question was answered, kept for the next ones: to open and close one costs more than to ask.

The end that answers says whether it waits for a further question.  It waits longer than the end that asks keeps a stream, so
that questions seldom meet a stream that has just been closed.  Neither keeps one that brought it more than a little: the
library widens the window of a stream with what comes, and no limit of ours counts what waits there unread.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from protocol.network.libp2p.library import Stream
from protocol.network.libp2p.streams import finish
from protocol.wire.identity import PeerId

MOST_KEPT = 4
"""Of one peer, at either end."""
KEPT_S, WAITED_S = 15.0, 45.0
"""How long the end that asks keeps a stream, and the other one waits."""
KEPT_BYTES = 64 << 10
"""A stream that brought more than this is not kept by the end that it came to."""


@dataclass
class KeptStream:
    """A stream of the end that asks.  brought_bytes: by all answers.  is_new: nothing was asked on it before."""

    stream: Stream
    is_new: bool = True
    brought_bytes: int = 0
    until: float = 0.0


class KeptStreams:
    """Those of the end that asks; `run` closes them in time."""

    def __init__(self) -> None:
        self._kept: dict[PeerId, list[KeptStream]] = {}
        """The next to end first."""

    def take(self, peer: PeerId) -> KeptStream | None:
        """A stream on which this peer waits for a question, if there is one."""
        kept = self._kept.get(peer, [])
        return kept.pop() if kept and kept[-1].until > trio.current_time() else None

    def keep(self, peer: PeerId, kept: KeptStream) -> bool:
        """Keep a stream; False when there are enough, or it brought too much."""
        others = self._kept.setdefault(peer, [])
        if len(others) >= MOST_KEPT or kept.brought_bytes > KEPT_BYTES:
            return False
        kept.is_new, kept.until = False, trio.current_time() + KEPT_S
        others.append(kept)
        return True

    def forget_closed(self, peer: PeerId) -> None:
        """A connection to this peer is closed: so are the streams on it."""
        kept = [each for each in self._kept.pop(peer, []) if not each.stream.muxed_conn.is_closed]
        if kept:
            self._kept[peer] = kept

    async def run(self) -> None:
        """Close, until cancelled, what nobody has used for a while."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(KEPT_S / 2)
                now = trio.current_time()
                for peer, kept in list(self._kept.items()):
                    for each in kept:
                        if each.until <= now:
                            nursery.start_soon(finish, each.stream)
                    kept[:] = [each for each in kept if each.until > now]
                    if not kept:
                        del self._kept[peer]
