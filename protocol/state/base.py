"""What a round stands on: the tip with the record before it, and what the manifest says about rounds."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.run.manifest import Admission, RunManifest
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Record


def fragment_of(round: int, fragments: int) -> int:
    """The fragment that a round exchanges: all take turns."""
    return round % fragments


@dataclass(frozen=True)
class RoundSettings:
    """What the manifest says about rounds.

    fragments: of the state; a round exchanges one.  chunks: chunks of a contribution.  max_tokens: of a member in a round.
    founders: sorted; None when anyone may found the run.  is_open: whether keys are admitted without being known.
    """

    run: Hash
    fragments: int
    chunks: int
    max_tokens: int
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

    def base(self, round: int, tip: Hash, previous: Record | None) -> Base:
        """What round `round` stands on, when `tip` is the hash of `previous`."""
        return Base(round, fragment_of(round, self.fragments), tip, previous)


def round_settings(run: Hash, manifest: RunManifest) -> RoundSettings:
    """The settings that `manifest` fixes."""
    rounds = manifest.rounds
    return RoundSettings(
        run=run,
        fragments=manifest.fragments,
        chunks=manifest.chunks,
        max_tokens=manifest.tokens_per_round,
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
    """What the round stands on: its number, the fragment it exchanges, the tip, the previous record (None at genesis)."""

    round: int
    fragment: int
    tip: Hash
    previous: Record | None

    @property
    def electors(self) -> tuple[PeerId, ...]:
        """The members of the previous record; empty at genesis."""
        return tuple(PeerId(member.peer) for member in self.previous.members) if self.previous else ()
