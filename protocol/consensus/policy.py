"""The policy of a round: when it may be closed, by which proposer, and with which members.

Pure.  Nothing here is needed for safety: two peers may judge differently, and the ballots of
`protocol.consensus.acceptor` settle it.

* A round is closed when every live trainer on this tip is ready; or when half of them are ready and `grace_s` has
  passed, after which the late ones are asked to finish and get `FINISH_S` more.
* A trainer that is a round or two behind is about to arrive, and gets `grace_s` to do so: where rounds are short, it
  would otherwise run after the swarm for ever.
* The proposer is the live ready elector with the lowest hash(tip, attempt, peer); when no elector is ready, the live
  ready peer with the lowest hash.  Only peers on the most common state count.
* Evicted are electors that said goodbye; those silent for `eviction_s` only if there is no quorum otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.consensus.effects import RoundEffect, Send
from protocol.consensus.terms import View
from protocol.exchange.assignment import assign_owners
from protocol.state.base import Base, RoundSettings
from protocol.state.chain import quorum_size
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import PeerId
from protocol.wire.messages import Finish, Member, Plan, Ready

FINISH_S = 5.0
"""Seconds that late trainers get to contribute what they have, after the grace time."""
RESEND_S = 2.0
"""Seconds between two sendings of an unanswered proposal or motion."""


class ClosingPolicy:
    """Collects the READYs of the round on `base`, and says what follows from them.  `now` is trio time."""

    def __init__(self, me: PeerId, settings: RoundSettings, base: Base) -> None:
        self.me, self.settings, self.base = me, settings, base
        self.readys: dict[PeerId, Ready] = {}
        self._quorum_since: float | None = None
        self._all_since: float | None = None
        self._asked: dict[PeerId, float] = {}

    def add(self, peer: PeerId, ready: Ready) -> bool:
        """Take a READY.  False when it is not for this round, or no newer than the one we have from this peer."""
        if ready.round != self.base.round or ready.base != self.base.tip:
            return False
        if ready.fragment != self.base.fragment or ready.tokens > self.settings.max_tokens:
            return False
        known = self.readys.get(peer)
        if known is not None and (ready.incarnation, ready.serial) <= (known.incarnation, known.serial):
            return ready == known
        self.readys[peer] = ready
        return True

    def waiting_for(self, view: View) -> list[PeerId]:
        """Trainers at work on this tip that are not ready yet: without them the round cannot be closed at once."""
        return sorted(peer for peer, seen in view.items() if seen.on_tip and peer not in self.readys)

    def coming(self, view: View) -> list[PeerId]:
        """Trainers that will soon be at work on this tip."""
        return sorted(peer for peer, seen in view.items() if seen.near and not seen.on_tip and peer not in self.readys)

    def may_ask_to_finish(self, view: View) -> bool:
        """Whether, as we see it, at least half of the live trainers are ready: before that nobody has to stop."""
        return sum(self.lives(peer, view) for peer in self.readys) >= len(self.waiting_for(view))

    def gather(self, view: View, now: float) -> tuple[list[RoundEffect], bool]:
        """Requests to finish for late trainers, and whether the round may be closed now."""
        ready = [peer for peer in self.readys if self.lives(peer, view)]
        waiting = self.waiting_for(view)
        if len(ready) < self.settings.min_members:
            self._quorum_since = None
            return [], False
        if not waiting:
            self._all_since = now if self._all_since is None else self._all_since
            return [], not self.coming(view) or now - self._all_since >= self.settings.grace_s
        self._all_since = None
        if len(ready) < len(waiting):
            self._quorum_since = None
            return [], False
        if self._quorum_since is None:
            self._quorum_since = now
        late_s = now - self._quorum_since - self.settings.grace_s
        if late_s < 0:
            return [], False
        ask = tuple(peer for peer in waiting if now - self._asked.get(peer, -1e9) >= RESEND_S)
        for peer in ask:
            self._asked[peer] = now
        finish = Finish(round=self.base.round, base=self.base.tip)
        return ([Send(ask, finish)] if ask else []), late_s >= FINISH_S

    def proposer(self, view: View, attempt: int) -> PeerId | None:
        """The peer whose turn it is to propose in this attempt; None when nobody is ready."""
        agreed = self.agreed(view)
        electors = [peer for peer in self.base.electors if peer in agreed]
        return min(electors or agreed, key=lambda peer: self._draw(peer, attempt), default=None)

    def agreed(self, view: View) -> list[PeerId]:
        """Live ready peers that stand on the most common state, sorted; ties go to the lower digest."""
        by_digest: dict[bytes, list[PeerId]] = {}
        for peer in sorted(self.readys):
            if self.lives(peer, view):
                by_digest.setdefault(self.readys[peer].state_digest, []).append(peer)
        return min(by_digest.items(), key=lambda item: (-len(item[1]), item[0]), default=(b"", []))[1]

    def make_plan(self, view: View) -> Plan | None:
        """The plan of the agreed peers, with their mean loss by tokens; None when they are too few."""
        peers = self.agreed(view)[: self.settings.max_members]
        if len(peers) < self.settings.min_members:
            return None
        ready = self.readys
        members = [Member(peer=peer, tokens=ready[peer].tokens, root=ready[peer].root) for peer in peers]
        tokens = sum(member.tokens for member in members)
        loss = sum(ready[peer].loss * ready[peer].tokens for peer in peers) / tokens
        owners = assign_owners(
            self.base.tip, peers, self.settings.chunks, [view[peer].bytes_per_s if peer in view else 0.0 for peer in peers]
        )
        return Plan(
            round=self.base.round,
            fragment=self.base.fragment,
            base=self.base.tip,
            members=members,
            owners=owners,
            state_digest=ready[peers[0]].state_digest,
            loss=loss,
        )

    def evictable(self, view: View) -> tuple[PeerId, ...]:
        """Electors to evict, sorted: those that said goodbye; those long silent only if there is no quorum otherwise."""
        left = [peer for peer in self.base.electors if peer in view and view[peer].left]
        stay = [peer for peer in self.base.electors if peer not in left]
        if sum(self.lives(peer, view) for peer in stay) >= quorum_size(len(stay)):
            return tuple(sorted(left))
        return tuple(sorted(left + [peer for peer in stay if self.long_silent(peer, view)]))

    def may_evict(self, evicted: Sequence[str], view: View) -> bool:
        """Whether we agree that these electors are gone: they said goodbye, or we have not heard them for long either."""
        named = [PeerId(peer) for peer in evicted]
        return all(
            peer in self.base.electors and ((peer in view and view[peer].left) or self.long_silent(peer, view))
            for peer in named
        )

    def lives(self, peer: PeerId, view: View) -> bool:
        """Whether a peer is alive; we are."""
        return peer == self.me or (peer in view and view[peer].live)

    def long_silent(self, peer: PeerId, view: View) -> bool:
        """Whether a peer is not alive and has been silent for `eviction_s`."""
        seen = view.get(peer)
        return peer != self.me and seen is not None and not seen.live and seen.silent_s >= self.settings.eviction_s

    def _draw(self, peer: PeerId, attempt: int) -> bytes:
        return hash_bytes("proposer", self.base.tip + attempt.to_bytes(8, "big") + peer.encode())
