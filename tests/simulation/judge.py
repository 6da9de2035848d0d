"""The invariants of the protocol, checked while it runs.

    Agreement  no two different records on one tip are certified by the whole electorate (except the first: two founders may
               begin a run twice)
    Parity     the same tip means the same state digest
    Mass       each chunk of a result is what the run's rule makes of exactly the contributions in its mask
    No loss    whose READY the proposer had heard, and whom it took for alive, is in its plan
    Justice    nobody honest is ever ejected
    Calm       no statement makes its handler raise
    End        no record stands on one that has reached the run's total, but one that carries an extension
    Once       the rows that the trainers read for the records of a chain are those of their leases, each read once; with the
               returned rows they are all rows below the cursor
    Order      a peer applies each round once, in order; it jumps only to a checkpoint, and goes back only by a fork

Progress, healing and the return from crashes are asserted by the scenarios: they are about time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernels.aggregate import aggregate
from protocol.allreduce.assignment import contribution_leaves
from protocol.allreduce.lateness import MAX_ROUNDS
from protocol.chain.base import Base, round_settings
from protocol.chain.electorate import Electorate, Roster
from protocol.chain.leases import Ranges, RowRange, stretches_in
from protocol.chain.progress import extension_of
from protocol.chain.records import is_full
from protocol.events.events import (
    Event,
    HandlerFailed,
    MemberLost,
    PeerEjected,
    PeerGone,
    PeerJoined,
    PeerSuspected,
    RolledBack,
    RoundCommitted,
    RoundProposed,
    StateApplied,
    StateLoaded,
)
from protocol.node.node import Node
from protocol.run.manifest import RunManifest, run_id
from protocol.run.sections import Unit
from protocol.wire.hashes import Hash, chunk_hash, tree_root
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit, Ready, members_in

CALM_S = 30.0
"""Undisturbed for so long, a peer is owed a place in the record."""
REMEMBERED_ROUNDS = 2 * MAX_ROUNDS
"""For so many rounds at the most a stall may be remembered, of a peer that takes part in them."""
HEARD_S = 0.1
"""A READY heard only so long before the proposal may have crossed it."""


class Violation(AssertionError):
    """An invariant does not hold; the text says which and where."""


class Judge:
    """Told of everything; raises `Violation`."""

    def __init__(self, manifest: RunManifest) -> None:
        self._manifest, self._rule = manifest, manifest.aggregation
        self._settings = round_settings(run_id(manifest), manifest)
        self._layouts = manifest.layouts
        self._records: dict[bytes, dict[str, bool]] = {}
        """What was committed after each tip, and whether anybody had a full certificate for it."""
        self._digests: dict[str, str] = {}
        self._contributions: dict[bytes, memoryview] = {}
        self._read: dict[bytes, dict[Ranges | None, None]] = {}
        """The rows that were read for each contribution, by each trainer that made the same one."""
        self._checked: dict[str, None] = {}
        self._heard: dict[tuple[PeerId, Hash], dict[PeerId, float]] = {}
        self._alive: dict[PeerId, dict[PeerId, None]] = {}
        self._left_out: dict[tuple[int, tuple[str, ...]], list[PeerId]] = {}
        self._disturbed: dict[PeerId, float] = {}
        self._stalled: dict[PeerId, dict[int, None]] = {}
        """The rounds in whose exchange somebody gave this peer up."""
        self._applied: dict[PeerId, int] = {}
        self._now = 0.0
        self._unit, self._total = manifest.goal.unit, manifest.goal.total
        self._done: dict[str, tuple[int, int, Electorate]] = {}
        """After each tip, how much of the run's total is done, the total, and the electors."""
        self.liars: dict[PeerId, None] = {}
        self.false_chunks = 0
        self.ejections: dict[PeerId, dict[PeerId, float]] = {}
        self.commits_checked = 0

    def on_contribution(self, author: PeerId, data: memoryview, rows: Ranges | None) -> None:
        """rows: that the trainer read; None if it does not tell."""
        root = tree_root(contribution_leaves(author, data, self._layouts.contribution))
        self._contributions[root] = data
        self._read.setdefault(root, {})[rows] = None

    def on_start(self, peer: PeerId) -> None:
        self._disturbed[peer] = self._now
        self._applied.pop(peer, None)
        self._alive[peer] = {}

    def on_disturbance(self, peer: PeerId) -> None:
        self._disturbed[peer] = self._now

    def on_ready_heard(self, listener: PeerId, speaker: PeerId, ready: Ready, now: float) -> None:
        """`listener` was handed this READY."""
        self._heard.setdefault((listener, Hash(ready.base)), {}).setdefault(speaker, now)

    def on_event(self, peer: PeerId, node: Node, event: Event, now: float) -> None:
        self._now = now
        if isinstance(event, HandlerFailed):
            raise Violation(f"calm: a {event.what} of {event.peer} at {peer}: {event.reason}")
        if isinstance(event, RoundCommitted):
            commit = node.commit_at(event.round)
            self._agreement(peer, event.round, event.tip, commit)
            self._end(peer, event.round, event.tip, commit)
            self._mass(commit, event.tip)
            self._no_loss(peer, event, now)
        elif isinstance(event, StateApplied):
            self._order(peer, event)
            if event.rounds:
                self._mass(node.commit_at(event.rounds - 1), node.tip_at(event.rounds).hex())
            self._parity(peer, node.tip_at(event.rounds).hex(), event.digest)
        elif isinstance(event, StateLoaded):
            self._applied[peer] = event.rounds
        elif isinstance(event, PeerEjected):
            self._justice(PeerId(event.peer), peer, now)
        elif isinstance(event, MemberLost):
            self._stalled.setdefault(PeerId(event.peer), {})[event.round] = None
        elif isinstance(event, RoundProposed):
            self._proposal(peer, node, event, now)
        elif isinstance(event, RolledBack):
            self._disturbed[peer] = now
        elif isinstance(event, PeerSuspected | PeerGone):
            self._alive[peer].pop(PeerId(event.peer), None)
        elif isinstance(event, PeerJoined):
            self._alive[peer][PeerId(event.peer)] = None

    def _agreement(self, peer: PeerId, round: int, tip: str, commit: Commit) -> None:
        seen = self._records.setdefault(commit.record.previous, {})
        seen[tip] = seen.get(tip, False) or is_full(commit.certificate)
        if len(seen) == 1 or round == 0:
            return
        if sum(seen.values()) > 1:
            raise Violation(f"agreement: round {round} was committed as {sorted(seen)}, at last by {peer}")

    def _end(self, peer: PeerId, round: int, tip: str, commit: Commit) -> None:
        """Count anew what is done, and what the total is, after each tip."""
        start = (round if self._unit is Unit.ROUNDS else 0, self._total, Electorate.start(self._settings))
        done, total, electorate = self._done.get(commit.record.previous.hex(), start)
        extension = extension_of(commit.record)
        if done >= total and extension is None:
            raise Violation(f"end: {peer} committed round {round} after the final record")
        added = 1 if self._unit is Unit.ROUNDS else electorate.counted_tokens(commit)
        total = extension.total if extension is not None else total
        self._done[tip] = done + added, total, electorate.after_commit(commit)

    def _justice(self, accused: PeerId, judge: PeerId, now: float) -> None:
        if accused not in self.liars:
            raise Violation(f"justice: {judge} ejected {accused}, which is honest")
        self.ejections.setdefault(accused, {})[judge] = now

    def _parity(self, peer: PeerId, tip: str, digest: str) -> None:
        if self._digests.setdefault(tip, digest) != digest:
            raise Violation(f"parity: {peer} has another state on tip {tip}")

    def on_end(self, node: Node) -> None:
        """Read the chain of this honest peer again: who read which rows."""
        manifest, history = self._manifest, node._history
        roster, ranges = Roster.start(round_settings(node._replica.signed.run, manifest)), list[RowRange]()
        for round in range(history.length):
            commit = history.commit_at(round)
            base, after = history.base_on(round, history.tip_at(round), roster), roster.after(commit)
            if manifest.leases_rows(round):
                ranges += self._rows_of(commit, base, after.contributors)
            roster = after
        pool = roster.leases.pool
        early = [each for _, rows in roster.leases.early for each in rows]
        reached = 0
        for start, end in sorted([*ranges, *pool.returned, *early]):
            if start != reached:
                raise Violation(f"once: rows {min(start, reached)} to {max(start, reached)} are read twice, or never")
            reached = end
        if reached != pool.cursor or pool.skipped:
            raise Violation(f"once: rows were read or returned up to {reached}, and leased up to {pool.cursor}")

    def _rows_of(self, commit: Commit, base: Base, contributing: Sequence[PeerId]) -> list[RowRange]:
        """The rows that were read for a record, by those whose parts it contains."""
        rows = dict[Ranges, PeerId]()
        for member in commit.record.members:
            peer = PeerId(member.peer)
            leased = base.rows_read(self._manifest, peer, member.steps, stretches_in(member.stretches))
            read = self._read.get(member.root, {None: None})
            if not {None, leased} & read.keys() and peer not in self.liars:
                raise Violation(f"once: in round {base.round} {peer} read the rows {[*read]}, and its lease has {leased}")
            if leased and peer in contributing:
                if leased in rows and len(commit.record.members) > self._manifest.rounds.min_members:
                    raise Violation(f"once: in round {base.round} {peer} and {rows[leased]} read the same rows")
                rows[leased] = peer
        return [each for ranges in rows for each in ranges]

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
        for span, averaged, entry in zip(self._layouts.contribution, self._layouts.result, commit.index, strict=True):
            chosen = [members[index] for index in members_in(entry.mask, len(members))]
            if any(member.root not in self._contributions for member in chosen):
                raise Violation(f"mass: round {commit.record.round} has a contribution that nobody made")
            parts = [self._contributions[member.root][span.encoded] for member in chosen]
            result, codec = memoryview(bytearray(averaged.size)), self._layouts.codec
            aggregate(self._rule, codec, parts, [member.tokens for member in chosen], span.count, result)
            if chunk_hash(result) != Hash(entry.hash) and self.liars:
                self.false_chunks += 1
            elif chunk_hash(result) != Hash(entry.hash):
                raise Violation(f"mass: a chunk of round {commit.record.round} is not what its mask aggregates to")

    def _proposal(self, proposer: PeerId, node: Node, event: RoundProposed, now: float) -> None:
        """Who was owed a place in this plan, when it was made, and has none."""
        heard = self._heard.get((proposer, node.tip), {})
        owed = [
            peer
            for peer, since in heard.items()
            if since + HEARD_S < now
            and peer in self._alive[proposer]
            and (peer in node._history.base.electors or not self._may_wait(peer, event.round))
            and peer not in event.members
            and self._reads_alone(peer, map(PeerId, event.members), node._history.base)
            and peer not in node.audits.aside(event.round)
            and now - self._disturbed.get(peer, 0.0) > CALM_S
        ]
        self._left_out.setdefault((event.round, tuple(event.members)), owed)

    def _reads_alone(self, peer: PeerId, others: Iterable[PeerId], base: Base) -> bool:
        """Whether no other peer drew the same lease: of two newcomers that did, a plan names one."""
        return not any(base.shares_slots(self._manifest, (peer, other)) for other in others if other != peer)

    def _may_wait(self, peer: PeerId, round: int) -> bool:
        """Whether a newcomer may have to wait for its turn, because a peer kept an exchange waiting."""
        lately = [stalled for rounds in self._stalled.values() for stalled in rounds if stalled > round - REMEMBERED_ROUNDS]
        return peer in self.liars or bool(lately)

    def _no_loss(self, peer: PeerId, event: RoundCommitted, now: float) -> None:
        left_out = self._left_out.get((event.round, tuple(event.members)), [])
        if peer in left_out and now - self._disturbed.get(peer, 0.0) > CALM_S:
            raise Violation(f"no loss: {peer} was ready in round {event.round} and is not in its record")
