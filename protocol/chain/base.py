"""Base of a round: the tip with its electors, and the manifest's settings of rounds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from protocol.chain.finality import RecentWork
from protocol.chain.leases import (
    MAX_COLUMN,
    Leases,
    Ranges,
    Stretches,
    by_slot_of_column,
    count_rows,
    holder_slots,
    lease_terms,
    own_rows,
    rows_among,
    spare_slot,
    stretches_in,
    union,
)
from protocol.chain.progress import RunProgress, TasksInForce, open_amendment
from protocol.run.admission import TokenUses
from protocol.run.manifest import Admission, RunManifest
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import PeerId
from protocol.wire.messages import Extension, Member
from protocol.wire.rollouts import Amendment


def fragment_of(round: int, fragments: int) -> int:
    """Return the fragment that a round exchanges; the fragments take turns."""
    return round % fragments


@dataclass(frozen=True)
class RoundSettings:
    """The manifest's settings of rounds.

    fragments: number of fragments of the state; a round exchanges one.  chunks: number of chunks of a contribution.
    founders: sorted; None if anyone may found the run.  is_open: True if unknown keys are admitted.
    """

    run: Hash
    manifest: RunManifest
    fragments: int
    chunks: int
    codec: str
    min_members: int
    max_members: int
    grace_s: float
    eviction_s: float
    stall_s: float
    founders: tuple[PeerId, ...] | None
    is_open: bool
    seasoning_rounds: int
    tenure_rounds: int
    listen_s: float


def round_settings(run: Hash, manifest: RunManifest) -> RoundSettings:
    """Return the settings that `manifest` fixes."""
    rounds = manifest.rounds
    return RoundSettings(
        run=run,
        manifest=manifest,
        fragments=manifest.fragments,
        chunks=manifest.chunks,
        codec=manifest.codec,
        min_members=rounds.min_members,
        max_members=rounds.max_members,
        grace_s=rounds.grace_s,
        eviction_s=rounds.eviction_s,
        stall_s=rounds.stall_s,
        founders=None if manifest.founders == "anyone" else tuple(map(PeerId, manifest.founders)),
        is_open=manifest.admission is Admission.OPEN,
        seasoning_rounds=rounds.seasoning_rounds,
        tenure_rounds=rounds.tenure_rounds,
        listen_s=rounds.listen_s,
    )


@dataclass(frozen=True)
class Base:
    """The tip that a round stands on, with its electors and the facts that the round is checked against.

    electors: the peers that vote on the round, sorted; empty at the genesis of a run without founders.  contributors:
    members of the previous record whose parts it contains, sorted.  known: members of all records.  uses: uses of admission
    tokens in all records.  tasks: task sets of the version that the round begins with.  progress: the progress of the run
    before the round.  leases: state of the leases before the round.  work: the recent work of the members.
    """

    round: int
    fragment: int
    tip: Hash
    electors: tuple[PeerId, ...]
    contributors: tuple[PeerId, ...] = ()
    known: frozenset[PeerId] = frozenset()
    uses: TokenUses = TokenUses()
    tasks: TasksInForce = TasksInForce()
    progress: RunProgress = RunProgress()
    leases: Leases = Leases()
    work: RecentWork = RecentWork()

    def check_amendment(self, run: Hash, manifest: RunManifest, raw: bytes | None) -> None:
        """Check that the next record may carry this amendment, or none; raises `Malformed` otherwise."""
        body = open_amendment(raw, run, PeerId(manifest.organiser)) if raw is not None else None
        self.progress.check(body if isinstance(body, Extension) else None)
        if isinstance(body, Amendment):
            self.tasks.flaw(body, has_rollouts=manifest.rl is not None)

    # -- leases -------------------------------------------------------------------------------------------------------

    @cached_property
    def _holders(self) -> dict[PeerId, int]:
        """The slots of the peers that have one of their own."""
        return holder_slots(self.leases.beacon, {*self.contributors, *self.electors})

    @cached_property
    def _early(self) -> dict[PeerId, Ranges]:
        return dict(self.leases.early)

    def slot(self, manifest: RunManifest, peer: PeerId) -> int:
        """Return the slot of a peer in this round (`protocol.chain.leases`); a negative number stands for an early lease."""
        if peer in self._early:
            return -1 - list(self._early).index(peer)
        if (own := self._holders.get(peer)) is not None:
            return self._slots_before(manifest) + own
        terms, holders, before = lease_terms(manifest), len(self._holders), self._slots_before(manifest)
        slots, spares = self.leases.pool.slots(terms.rows, terms.limit), terms.spares
        if slots is not None:  # without rows, a slot is of no use
            spares = max(1, min(spares, (slots - before - holders) // (holders + 1)))
        return before + spare_slot(self.tip, peer, holders, spares)

    def _slots_before(self, manifest: RunManifest) -> int:
        """Return the number of slots that become early leases for the next record."""
        return len(self._holders) if manifest.is_streamed else 0

    def _slot_of_column(self, manifest: RunManifest, peer: PeerId, place: int) -> int | None:
        """Return a slot of a peer's column by its place in it; None if the column has none there.

        An early lease is the first slot of its column; the slots of a holder of this round follow it.
        """
        if place == 0 or place >= MAX_COLUMN or not manifest.leases_rows(self.round):
            return self.slot(manifest, peer) if place == 0 else None
        if (own := self._holders.get(peer)) is None:
            return None
        rounds = place - 1 if peer in self._early else place
        return self._slots_before(manifest) + own + rounds * (len(self._holders) + 1)

    def lease_of_column(self, manifest: RunManifest, peer: PeerId, place: int) -> Ranges:
        """Return the rows of the slot at `place` in a peer's column; place 0 is the peer's lease."""
        if place == 0:
            return self.lease(manifest, peer)
        slot, terms = self._slot_of_column(manifest, peer, place), lease_terms(manifest)
        return self.leases.pool.lease(slot, terms.rows, terms.limit) if slot is not None else ()

    def rows_read(self, manifest: RunManifest, peer: PeerId, steps: int, stretches: Stretches = ()) -> Ranges:
        """Return the rows of a peer's inner steps in this round, in reading order, as far as there are such rows.

        stretches: as the peer's READY states them; empty for the first steps of its column.
        """
        terms = lease_terms(manifest)
        parts = by_slot_of_column(stretches or ((0, steps),), manifest.round_steps, terms.step_rows)
        leases = [rows_among(self.lease_of_column(manifest, peer, place), rows) for place, rows in sorted(parts.items())]
        return tuple(each for lease in leases for each in lease)

    def lease(self, manifest: RunManifest, peer: PeerId) -> Ranges:
        """Return the rows that a peer reads in this round; none if the round's members learn from rollouts."""
        if manifest.learns_from_rollouts(self.round):
            return ()
        terms = lease_terms(manifest)
        if not manifest.leases_rows(self.round):
            return own_rows(terms, self.round)
        if peer in self._early:
            return self._early[peer]
        return self.leases.pool.lease(self.slot(manifest, peer), terms.rows, terms.limit)

    def next_lease(self, manifest: RunManifest, peer: PeerId) -> Ranges:
        """Return the rows that a peer reads in the next round if all holders and the peer consume their leases in this one.

        For fetching ahead: the next record may be different.  In a streamed run, these are the rows of the peer's early
        lease, whatever the record is; none if it gets no early lease.
        """
        terms = lease_terms(manifest)
        if manifest.is_streamed:
            if manifest.data.is_local:
                return own_rows(terms, self.round + 1)
            slot = self._holders.get(peer)
            return self.leases.pool.lease(slot, terms.rows, terms.limit) if slot is not None else ()
        if not manifest.leases_rows(self.round + 1):
            return ()
        slots = {*self._holders.values(), self.slot(manifest, peer)}
        whole: Ranges = ((0, terms.rows),)
        pool = self.leases.pool.after(dict.fromkeys(slots, whole), terms.rows, terms.limit)
        following = holder_slots(self.leases.beacon, {*self._holders, peer})
        return pool.lease(following[peer], terms.rows, terms.limit)

    def count_leased(self, manifest: RunManifest, peer: PeerId) -> int:
        """Return the number of rows that a peer may read in a round of text."""
        terms = lease_terms(manifest)
        if not manifest.leases_rows(self.round):
            return terms.rows
        if peer in self._early:
            return count_rows(self._early[peer])
        return self.leases.pool.count(self.slot(manifest, peer), terms.rows, terms.limit)

    def shares_slots(self, manifest: RunManifest, peers: Collection[PeerId]) -> bool:
        """Return True if two of these peers would read the same rows in this round."""
        return manifest.leases_rows(self.round) and len({self.slot(manifest, peer) for peer in peers}) < len(peers)

    def leases_after(self, manifest: RunManifest, members: Sequence[Member], contributing: Collection[PeerId]) -> Leases:
        """Return the state of the leases after the record of this round."""
        if not manifest.leases_rows(self.round):
            return self.leases
        terms, consumed, done = lease_terms(manifest), dict[int, Ranges](), dict[PeerId, Ranges]()
        for member in members:
            peer = PeerId(member.peer)
            stretches = stretches_in(member.stretches) or ((0, member.steps),)
            parts = by_slot_of_column(stretches, manifest.round_steps, terms.step_rows)
            for place, rows in parts.items() if peer in contributing else ():
                slot = self._slot_of_column(manifest, peer, place)
                if slot is not None and slot < 0:
                    done[peer] = rows
                elif slot is not None:
                    consumed[slot] = union([*rows, *consumed.get(slot, ())])
        if manifest.is_streamed:
            return self.leases.streamed_after(terms, consumed, done, list(self._holders))
        return self.leases.after(terms, consumed)

    # -- order --------------------------------------------------------------------------------------------------------

    def in_turn(self, peers: Iterable[PeerId]) -> list[PeerId]:
        """Return `peers` in proposing order: by peer ID, and in each round one place further, so that all take turns.

        The order is not drawn.  The owner of the last chunk of an exchange can vary the tip.  If the tip drew the order, it
        could propose in every round, and leave out for ever the contributors whom no view change demands.
        """
        order = sorted(peers)
        first = self.round % len(order) if order else 0
        return [*order[first:], *order[:first]]

    def ranked(self, peers: Iterable[PeerId]) -> list[PeerId]:
        """Return `peers` in an order drawn by the tip: no key can be chosen for it in advance."""
        return sorted(peers, key=lambda peer: _lot(self.tip, peer))


@lru_cache(maxsize=4096)
def _lot(tip: Hash, peer: PeerId) -> Hash:
    """Return the draw of `peer` on this tip; cached, since each statement of a round needs it."""
    return hash_bytes("rank", tip + peer.encode())
