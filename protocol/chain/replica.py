"""This peer's copy of the run: its manifest, its record chain, and the state that the chain leads to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels.layout import Layout, chunk_layout, payload_bytes
from protocol.chain.base import Base, RoundSettings, round_settings
from protocol.chain.history import History
from protocol.chain.outer_state import OuterState
from protocol.chain.results import ResultName
from protocol.chain.store import Store
from protocol.run.manifest import RunManifest, SignedManifest
from protocol.wire.hashes import chunk_hash
from protocol.wire.messages import ChunkEntry, Record


@dataclass(frozen=True)
class Replica:
    """The manifest with the settings that follow from it, and everything that commits change.

    layout: the chunks of a contribution.  rounds: the manifest's settings of rounds.
    """

    signed: SignedManifest
    layout: Layout
    rounds: RoundSettings
    history: History
    store: Store
    state: OuterState

    @classmethod
    def open(cls, signed: SignedManifest, store: Store, state: OuterState) -> Replica:
        """Open the copy that `store` holds on disk; the outer state will be loaded into `state`."""
        manifest = signed.manifest
        rounds = round_settings(signed.run, manifest)
        return cls(
            signed,
            chunk_layout(manifest.parameters, manifest.chunk_parameters),
            rounds,
            History(rounds, store),
            store,
            state,
        )

    @property
    def manifest(self) -> RunManifest:
        """Manifest of the run."""
        return self.signed.manifest

    def result(self, record: Record, index: Sequence[ChunkEntry]) -> memoryview | None:
        """Return a stored result whose chunks match `index`, else None; one with other bytes is demoted.  Blocking."""
        name, results = ResultName.of(record), self.store.results
        view = results.view(name, payload_bytes(self.layout))
        if view is None or all(
            chunk_hash(view[span.encoded]) == entry.hash for span, entry in zip(self.layout, index, strict=True)
        ):
            return view
        results.demote(name)
        return None

    def name_state(self) -> bytes:
        """Return the name of the present state in READYs and records (`protocol.wire.ready.OnState.state`).  Blocking."""
        return self.state.digest() + (self.state.weights_root() if self.manifest.rl is not None else b"")

    @property
    def base(self) -> Base:
        """Base of the next round."""
        return self.history.base
