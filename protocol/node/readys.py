"""The READYs heard by gossip, the newest of each peer: a round may begin here after others are ready for it."""

from __future__ import annotations

from protocol.audit.evidence import TwoStatements, slot
from protocol.wire.envelope import Envelope
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Ready

MAX_READYS = 1024
"""Of peers without heartbeats; those of others are limited by the membership."""


class Readys:
    """Remembers READYs between rounds, and finds two for one slot."""

    def __init__(self) -> None:
        self._newest: dict[PeerId, tuple[Ready, Envelope]] = {}

    def add(self, sender: PeerId, ready: Ready, envelope: Envelope, *, is_known: bool) -> bool | TwoStatements:
        """Whether it is news; or proof that its sender said two things for one slot.

        is_known: whether we hear heartbeats of the sender.
        """
        known = self._newest.get(sender)
        if known is not None and known[1].raw == envelope.raw:
            return False
        if known is not None and (ready.incarnation, ready.serial) <= (known[0].incarnation, known[0].serial):
            contradicts = slot(ready) == slot(known[0]) and ready != known[0]
            return TwoStatements(first=known[1].raw, second=envelope.raw) if contradicts else False
        if not is_known and len(self._newest) >= MAX_READYS:
            return False
        self._newest[sender] = (ready, envelope)
        return True

    def on(self, tip: Hash) -> list[tuple[PeerId, Ready, Envelope]]:
        """Those for the round on `tip`."""
        return [(peer, ready, envelope) for peer, (ready, envelope) in self._newest.items() if ready.base == tip]
