"""What a running peer is made of, handed to the shells that work on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from protocol.consensus.terms import RoundSettings
from protocol.events import Event
from protocol.exchange.assignment import ChunkSpan
from protocol.membership.liveness import Membership
from protocol.network.interface import Network
from protocol.node.pace import Pace
from protocol.run.manifest import RunManifest
from protocol.state.history import History
from protocol.state.outer_state import OuterState
from protocol.state.store import Store
from protocol.trainer_link import TrainerLink
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Role

Offload = Callable[..., Awaitable[Any]]
"""Runs a blocking function where it does not hold up the event loop: `trio.to_thread.run_sync`, or inline."""


def _no_clock() -> float:
    """For peers of runs without tokens."""
    return 0.0


@dataclass(frozen=True)
class NodeSettings:
    """What the person at this computer decided.

    incarnation: grows with every start of this identity.
    wait_for_contact: an invitation named somebody, so do not begin the run alone.
    stop_after: leave after so many rounds of the run; None to go on.
    token: the invitation's, to show at the door.
    introduced: peers whose addresses the invitation names; they are heard until a chain says who is in.
    wall_clock: unix seconds, for the expiry of tokens alone.
    """

    name: str
    role: Role
    version: str
    incarnation: int
    wait_for_contact: bool = False
    stop_after: int | None = None
    token: bytes | None = None
    introduced: frozenset[PeerId] = frozenset()
    wall_clock: Callable[[], float] = _no_clock


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
