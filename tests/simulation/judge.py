"""The invariants of the protocol, checked while it runs.

    Agreement  no two peers commit different records for one round, unless a partition was made, or two
               founders that did not hear each other began the run twice
    Parity     the same tip means the same state digest
    Mass       each chunk of a result is what the run's rule makes of exactly the contributions in its mask
    No loss    an undisturbed peer's contribution is in the record when it was ready before the round was proposed
    Justice    nobody honest is ever ejected
    Order      a peer applies each round once, in order; it jumps only to a checkpoint, and goes back only by a fork

Progress, healing and the return from crashes are asserted by the scenarios: they are about time.
"""

from __future__ import annotations

from kernels.aggregate import aggregate
from kernels.codec import encoded_bytes
from protocol.chain import members_in
from protocol.events import (
    CheckpointWritten,
    Event,
    PeerEjected,
    ReadySent,
    RolledBack,
    RoundCommitted,
    RoundProposed,
    StateApplied,
)
from protocol.exchange_plan import chunk_layout, contribution_leaves
from protocol.hashes import Hash, chunk_hash, tree_root
from protocol.identity import PeerId
from protocol.manifest import RunManifest
from protocol.messages import Commit
from protocol.node import Node

CALM_S = 30.0
"""Undisturbed for so long, a peer is owed a place in the record."""


class Violation(AssertionError):
    """An invariant does not hold; the text says which and where."""


class Judge:
    """Told of everything; raises `Violation`."""

    def __init__(self, manifest: RunManifest) -> None:
        self._rule = manifest.aggregation
        self._layout = chunk_layout(manifest.parameters, manifest.chunk_parameters)
        self._records: dict[int, dict[str, list[PeerId]]] = {}
        self._digests: dict[str, str] = {}
        self._contributions: dict[bytes, memoryview] = {}
        self._checked: dict[str, None] = {}
        self._ready: dict[tuple[PeerId, int], float] = {}
        self._proposed: dict[int, float] = {}
        self._disturbed: dict[PeerId, float] = {}
        self._applied: dict[PeerId, int] = {}
        self._now = 0.0
        self.forks_allowed = False
        self.liars: dict[PeerId, None] = {}
        self.false_chunks = 0
        self.ejections: dict[PeerId, dict[PeerId, float]] = {}
        self.commits_checked = 0

    def on_contribution(self, data: memoryview) -> None:
        self._contributions[tree_root(contribution_leaves(data, self._layout))] = data

    def on_start(self, peer: PeerId) -> None:
        self._disturbed[peer] = self._now
        self._applied.pop(peer, None)

    def on_disturbance(self, peer: PeerId) -> None:
        self._disturbed[peer] = self._now

    def on_partition(self) -> None:
        self.forks_allowed = True

    def on_event(self, peer: PeerId, node: Node, event: Event, now: float) -> None:
        self._now = now
        if isinstance(event, RoundCommitted):
            self._agreement(peer, event)
            self._mass(node.commit_at(event.round), event.tip)
            self._no_loss(peer, event, now)
        elif isinstance(event, StateApplied):
            self._order(peer, event)
            self._parity(peer, node.tip_at(event.rounds).hex(), event.digest)
        elif isinstance(event, CheckpointWritten):
            self._applied[peer] = event.rounds
        elif isinstance(event, PeerEjected):
            self._justice(PeerId(event.peer), peer, now)
        elif isinstance(event, ReadySent):
            self._ready[peer, event.round] = now
        elif isinstance(event, RoundProposed):
            self._proposed.setdefault(event.round, now)
        elif isinstance(event, RolledBack):
            self._applied[peer] = min(event.to_round, self._applied.get(peer, event.to_round))
            self._disturbed[peer] = now
            self.forks_allowed = self.forks_allowed or not event.winner  # its results died with their holders

    def _agreement(self, peer: PeerId, event: RoundCommitted) -> None:
        tips = self._records.setdefault(event.round, {})
        tips.setdefault(event.tip, []).append(peer)
        if len(tips) > 1 and event.round == 0:
            self.forks_allowed = True  # founders that could not hear each other: it heals as a partition does
        if len(tips) > 1 and not self.forks_allowed:
            raise Violation(f"agreement: round {event.round} was committed as {sorted(tips)}")

    def _justice(self, accused: PeerId, judge: PeerId, now: float) -> None:
        if accused not in self.liars:
            raise Violation(f"justice: {judge} ejected {accused}, which is honest")
        self.ejections.setdefault(accused, {})[judge] = now

    def _parity(self, peer: PeerId, tip: str, digest: str) -> None:
        if self._digests.setdefault(tip, digest) != digest:
            raise Violation(f"parity: {peer} has another state on tip {tip}")

    def _order(self, peer: PeerId, event: StateApplied) -> None:
        before = self._applied.get(peer)
        if before is not None and event.rounds > before + 1:
            raise Violation(f"order: {peer} went from {before} to {event.rounds} rounds")
        self._applied[peer] = event.rounds

    def _mass(self, commit: Commit, tip: str) -> None:
        """Aggregate the contributions in each mask again, from what the trainers really made."""
        if tip in self._checked:
            return
        self._checked[tip] = None
        self.commits_checked += 1
        members = commit.record.members
        for span, entry in zip(self._layout, commit.index, strict=True):
            chosen = [members[index] for index in members_in(entry.mask, len(members))]
            parts = [self._contributions[member.root][span.offset : span.offset + span.size] for member in chosen]
            result = memoryview(bytearray(encoded_bytes(span.count)))
            aggregate(self._rule, parts, [member.tokens for member in chosen], span.count, result)
            if chunk_hash(result) != Hash(entry.hash) and self.liars:
                self.false_chunks += 1
            elif chunk_hash(result) != Hash(entry.hash):
                raise Violation(f"mass: a chunk of round {commit.record.round} is not what its mask aggregates to")

    def _no_loss(self, peer: PeerId, event: RoundCommitted, now: float) -> None:
        ready, proposed = self._ready.get((peer, event.round)), self._proposed.get(event.round)
        calm = now - self._disturbed.get(peer, 0.0) > CALM_S
        if calm and not event.mine and not self.forks_allowed and ready is not None and proposed is not None:
            if ready + 1.0 < proposed:
                raise Violation(f"no loss: {peer} was ready in round {event.round} and is not in its record")
