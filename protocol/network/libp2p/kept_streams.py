"""Streams on which a question was answered, kept for the next ones: to open and close one costs more than to ask.

The end that answers says whether it waits for a further question.  It waits longer than the end that asks keeps a stream, so
that no question meets a stream that has just been closed.
"""

from __future__ import annotations

import trio

from protocol.network.libp2p.library import Stream
from protocol.network.libp2p.streams import finish
from protocol.wire.identity import PeerId

MOST_KEPT = 4
"""Of one peer, at either end."""
KEPT_S, WAITED_S = 15.0, 45.0
"""How long the end that asks keeps a stream, and the other one waits."""


class KeptStreams:
    """Those of the end that asks; `run` closes them in time."""

    def __init__(self) -> None:
        self._kept: dict[PeerId, list[tuple[float, Stream]]] = {}
        """With the time until which each is kept, the next to end first."""

    def take(self, peer: PeerId) -> Stream | None:
        """A stream on which this peer waits for a question, if there is one."""
        kept = self._kept.get(peer, [])
        if not kept or kept[-1][0] <= trio.current_time():
            return None
        return kept.pop()[1]

    def keep(self, peer: PeerId, stream: Stream) -> bool:
        """Keep a stream; False when there are enough."""
        kept = self._kept.setdefault(peer, [])
        if len(kept) >= MOST_KEPT:
            return False
        kept.append((trio.current_time() + KEPT_S, stream))
        return True

    def forget(self, peer: PeerId) -> None:
        """The connection that they are on is closed."""
        self._kept.pop(peer, None)

    async def run(self) -> None:
        """Close, until cancelled, what nobody has used for a while."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(KEPT_S / 2)
                now = trio.current_time()
                for peer, kept in list(self._kept.items()):
                    for _, stream in [each for each in kept if each[0] <= now]:
                        nursery.start_soon(finish, stream)
                    kept[:] = [each for each in kept if each[0] > now]
                    if not kept:
                        del self._kept[peer]
