"""What a running peer is made of, handed to the shells that work on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from kernels.layout import ChunkSpan
from protocol.events import Event
from protocol.membership.liveness import Membership
from protocol.network.interface import Network
from protocol.node.pace import Pace
from protocol.offload import Offload
from protocol.run.manifest import RunManifest
from protocol.run.settings import NodeSettings
from protocol.state.base import RoundSettings
from protocol.state.history import History
from protocol.state.outer_state import OuterState
from protocol.state.store import Store
from protocol.trainer_link import TrainerLink
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId


@dataclass
class Parts:
    """`network` is set before anything runs."""

    identity: Identity
    run: Hash
    manifest_raw: bytes
    manifest: RunManifest
    rounds: RoundSettings
    settings: NodeSettings
    history: History
    store: Store
    state: OuterState
    layout: Sequence[ChunkSpan]
    membership: Membership
    trainer: TrainerLink | None
    offload: Offload
    emit: Callable[[Event], None]
    network: Network = field(init=False)
    serials: Iterator[int] = field(default_factory=count)
    """Numbers of this life's READYs."""
    pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        self.pace = Pace(self.manifest.data.sequences_per_step * self.manifest.data.sequence_length)

    @property
    def me(self) -> PeerId:
        return self.identity.peer_id
