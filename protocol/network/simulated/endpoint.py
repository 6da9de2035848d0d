"""One peer's end of the simulated network as the wire sees it, and the calls between two ends."""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from protocol.network.interface import Handlers, NetworkError, Unreachable
from protocol.network.simulated.links import Access, Transfer
from protocol.wire.identity import PeerId


class Call:
    """A question or a push under way.  It belongs to its caller; the receiver serves it.

    delivered: set when a push's data has arrived, or never will (`broken`).
    """

    def __init__(self, caller: PeerId, receiver: PeerId) -> None:
        self.caller, self.receiver = caller, receiver
        self.ended, self.delivered = trio.Event(), trio.Event()
        self.broken = False
        self.answer = b""
        self.error: NetworkError | None = None
        self.transfers: list[Transfer] = []

    def finish(self, answer: bytes) -> None:
        """The answer has arrived."""
        self.answer = answer
        self.ended.set()

    def fail(self, error: NetworkError) -> None:
        """The call has ended with an error, unless it had ended before."""
        if not self.ended.is_set():
            self.error = error
            self.ended.set()

    def break_off(self) -> None:
        """The receiver learns that no more data comes."""
        if not self.delivered.is_set():
            self.broken = True
            self.delivered.set()

    def abandon(self) -> None:
        """What has not left yet takes no time of the links any more."""
        for transfer in self.transfers:
            transfer.abandon()


class Endpoint:
    """A peer's links, its inbox, and its calls.

    `handlers` are set before it joins the wire, which then sets `access`.  up_bytes, down_bytes: of payload since the start.
    """

    access: Access
    handlers: Handlers

    def __init__(self, peer_id: PeerId) -> None:
        self._peer_id = peer_id
        self.up_bytes = self.down_bytes = 0
        self.calls: dict[Call, None] = {}
        """Its own."""
        self.served: dict[Call, None] = {}
        """Those of others that it handles."""
        self._post, self._inbox = trio.open_memory_channel[Callable[[], object]](math.inf)
        self._nursery: trio.Nursery | None = None

    @property
    def peer_id(self) -> PeerId:
        """The peer ID."""
        return self._peer_id

    async def run(self) -> None:
        """Handle what arrives, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            async for arrival in self._inbox:
                arrival()

    def spawn(self, function: Callable[..., object], *arguments: object) -> None:
        """Start a task of this peer."""
        assert self._nursery is not None
        self._nursery.start_soon(function, *arguments)  # type: ignore[arg-type]

    def post(self, arrival: Callable[[], object]) -> None:
        """Put something that arrives into the inbox; it is handled when this peer runs."""
        self._post.send_nowait(arrival)

    def crash(self) -> None:
        """This peer has crashed."""
        for call in [*self.calls, *self.served]:
            call.abandon()

    def lose(self, peer: PeerId) -> None:
        """Another peer has crashed: the calls to it fail, those from it break off."""
        for call in [call for call in self.calls if call.receiver == peer]:
            call.fail(Unreachable(f"the connection to {peer} broke"))
        for call in [call for call in self.served if call.caller == peer]:
            call.break_off()
