"""Base of a round: the tip with its electors, and the manifest's settings of rounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from protocol.chain.progress import RunProgress, TasksInForce, open_amendment
from protocol.run.admission import TokenUses
from protocol.run.manifest import Admission, RunManifest
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import PeerId
from protocol.wire.messages import Extension
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
    settle_rounds: int
    settle_s: float
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
        settle_rounds=rounds.settle_rounds,
        settle_s=rounds.settle_s,
        listen_s=rounds.listen_s,
    )


@dataclass(frozen=True)
class Base:
    """The tip that a round stands on, with its electors and the facts that the round is checked against.

    electors: the peers that vote on the round, sorted; empty at the genesis of a run without founders.  contributors:
    members of the previous record whose parts it contains, sorted.  known: members of all records.  uses: uses of admission
    tokens in all records.  tasks: task sets of the version that the round begins with.  progress: of the run before the
    round.
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

    def check_amendment(self, run: Hash, manifest: RunManifest, raw: bytes | None) -> None:
        """Check that the next record may carry this amendment, or none; raises `Malformed` otherwise."""
        body = open_amendment(raw, run, PeerId(manifest.organiser)) if raw is not None else None
        self.progress.check(body if isinstance(body, Extension) else None)
        if isinstance(body, Amendment):
            self.tasks.flaw(body, has_rollouts=manifest.rl is not None)

    def ranked(self, peers: Iterable[PeerId]) -> list[PeerId]:
        """Return `peers` in proposing order, which is drawn by the tip: no key can be chosen for it in advance."""
        return sorted(peers, key=lambda peer: _lot(self.tip, peer))


@lru_cache(maxsize=4096)
def _lot(tip: Hash, peer: PeerId) -> Hash:
    """Return the draw of `peer` on this tip; cached, since each statement of a round needs it."""
    return hash_bytes("proposer", tip + peer.encode())
