"""Which peers of the simulated network can reach each other: partitions, cut links, and peers that were forgotten."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from protocol.wire.identity import PeerId


class Topology:
    """Without partitions and cuts every peer reaches every other."""

    def __init__(self) -> None:
        self._side: dict[PeerId, int] = {}
        self._cut: dict[tuple[PeerId, PeerId], None] = {}
        self._forgotten: dict[tuple[PeerId, PeerId], None] = {}

    def partition(self, *sides: Sequence[PeerId]) -> None:
        """Separate peers of different sides; a peer that is not named is on the first side."""
        self._side = {peer: number for number, side in enumerate(sides) for peer in side}

    def cut(self, sender: PeerId, receiver: PeerId) -> None:
        """Let nothing pass from `sender` to `receiver` directly any more; the other way still works."""
        self._cut[sender, receiver] = None

    def mend(self) -> None:
        """Remove all cuts."""
        self._cut.clear()

    def forget(self, one: PeerId, other: PeerId) -> None:
        """Separate two peers for good."""
        self._forgotten[one, other] = self._forgotten[other, one] = None

    def linked(self, one: PeerId, other: PeerId) -> bool:
        """Whether two peers are connected; a cut does not disconnect them."""
        return one != other and self._side.get(one, 0) == self._side.get(other, 0) and (one, other) not in self._forgotten

    def carries(self, sender: PeerId, receiver: PeerId) -> bool:
        """Whether messages pass from `sender` to `receiver` directly."""
        return self.linked(sender, receiver) and (sender, receiver) not in self._cut

    def hops(self, sender: PeerId, receiver: PeerId, others: Iterable[PeerId]) -> int:
        """The hops that gossip takes from one linked peer to another, 2 through one of `others` at most; 0: no way."""
        if not self._cut or self.carries(sender, receiver):
            return 1
        return 2 if any(self.carries(sender, other) and self.carries(other, receiver) for other in others) else 0
