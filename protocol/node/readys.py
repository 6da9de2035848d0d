"""The READYs heard by gossip, the newest of each peer: a round may begin here after others are ready for it.

They are forgotten when their round is over.  Those of members have room of their own; strangers, of whom there may be any
number, share as many places as two rounds have members.  A stranger that is alive takes the place of one that is not.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.audit.evidence import TwoStatements
from protocol.consensus.contradictions import slot
from protocol.network.interface import Members
from protocol.wire.envelope import Envelope
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Ready

MAX_OF_MEMBERS = 2048
STRANGERS_PER_MEMBER = 2


@dataclass(frozen=True)
class _Heard:
    ready: Ready
    envelope: Envelope
    was_live: bool


class Readys:
    """Remembers READYs between rounds, and finds two for one slot.

    members: tells members from strangers.  round_members: the most members that a round may have.
    """

    def __init__(self, members: Members, round_members: int) -> None:
        self._members, self._strangers_room = members, STRANGERS_PER_MEMBER * round_members
        self._round = 0
        self._of_members: dict[PeerId, _Heard] = {}
        self._of_strangers: dict[PeerId, _Heard] = {}

    def __len__(self) -> int:
        return len(self._of_members) + len(self._of_strangers)

    def add(self, sender: PeerId, ready: Ready, envelope: Envelope, *, is_live: bool) -> bool | TwoStatements:
        """Whether it is news; or proof that its sender said two things for one slot.

        is_live: whether we take the sender for alive.
        """
        if ready.round < self._round:
            return False
        known = self._of_members.get(sender) or self._of_strangers.get(sender)
        if known is not None and known.envelope.raw == envelope.raw:
            return False
        if known is not None and (ready.incarnation, ready.serial) <= (known.ready.incarnation, known.ready.serial):
            contradicts = slot(ready) == slot(known.ready) and ready != known.ready
            return TwoStatements(first=known.envelope.raw, second=envelope.raw) if contradicts else False
        return self._keep(sender, _Heard(ready, envelope, is_live))

    def _keep(self, sender: PeerId, heard: _Heard) -> bool:
        """Whether there is room."""
        if self._members.has_member(sender):
            self._of_strangers.pop(sender, None)
            if sender not in self._of_members and len(self._of_members) >= MAX_OF_MEMBERS:
                return False
            self._of_members[sender] = heard
            return True
        self._of_members.pop(sender, None)
        if sender not in self._of_strangers and len(self._of_strangers) >= self._strangers_room:
            dead = next((peer for peer, other in self._of_strangers.items() if not other.was_live), None)
            if dead is None or not heard.was_live:
                return False
            del self._of_strangers[dead]
        self._of_strangers[sender] = heard
        return True

    def begin(self, round: int, tip: Hash) -> list[tuple[PeerId, Ready, Envelope]]:
        """Those for the round that begins here on `tip`.  Those for rounds before it are forgotten, and no news from now on.

        Of strangers only those for this round are kept: whoever is ready says so again with each heartbeat.
        """
        self._round = round
        self._of_members = {peer: heard for peer, heard in self._of_members.items() if heard.ready.round >= round}
        self._of_strangers = {peer: heard for peer, heard in self._of_strangers.items() if heard.ready.base == tip}
        found = (*self._of_members.items(), *self._of_strangers.items())
        return [(peer, heard.ready, heard.envelope) for peer, heard in found if heard.ready.base == tip]
