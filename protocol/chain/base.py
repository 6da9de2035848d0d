"""What a round stands on: the tip with its electors, and what the manifest says about rounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from protocol.chain.amendment import open_amendment
from protocol.chain.progress import RunProgress
from protocol.chain.tasks_in_force import TasksInForce
from protocol.run.admission import TokenUses
from protocol.run.manifest import Admission, RunManifest
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import PeerId
from protocol.wire.messages import Extension
from protocol.wire.tasks import Amendment


def fragment_of(round: int, fragments: int) -> int:
    """The fragment that a round exchanges: all take turns."""
    return round % fragments


@dataclass(frozen=True)
class RoundSettings:
    """What the manifest says about rounds.

    fragments: of the state; a round exchanges one.  chunks: chunks of a contribution.
    founders: sorted; None when anyone may found the run.  is_open: whether keys are admitted without being known.
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
    """The settings that `manifest` fixes."""
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
    """What a round stands on.

    electors: who votes on it, sorted; none at the genesis of a run without founders.  contributors: the members of the
    record before whose parts are in it, sorted.  known: the members of all records.  uses: of admission tokens, in all of
    them.  tasks: the sets of tasks of the version that the round begins with.  progress: of the run before the round.
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
        """In the order in which these peers propose: the tip draws it, so nobody can choose a key for it in advance."""
        return sorted(peers, key=lambda peer: _lot(self.tip, peer))


@lru_cache(maxsize=4096)
def _lot(tip: Hash, peer: PeerId) -> Hash:
    """Asked for again with each statement of a round."""
    return hash_bytes("proposer", tip + peer.encode())
