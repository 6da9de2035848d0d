"""This peer's copy of the run: what the run is, its record chain, and the state that the chain leads to."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.layout import Layout, chunk_layout
from protocol.run.manifest import RunManifest, SignedManifest
from protocol.state.base import Base, RoundSettings, round_settings
from protocol.state.history import History
from protocol.state.outer_state import OuterState
from protocol.state.store import Store


@dataclass(frozen=True)
class Replica:
    """The manifest with what follows from it, and everything that commits change.

    layout: the chunks of a contribution.  rounds: what the manifest says about rounds.
    """

    signed: SignedManifest
    layout: Layout
    rounds: RoundSettings
    history: History
    store: Store
    state: OuterState

    @classmethod
    def open(cls, signed: SignedManifest, store: Store, state: OuterState) -> Replica:
        """The copy that `store` holds on disk; `state` is where the outer state will be loaded."""
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
        """What the run is."""
        return self.signed.manifest

    @property
    def base(self) -> Base:
        """What the next round stands on."""
        return self.history.base
