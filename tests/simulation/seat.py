"""A peer's place in a simulated world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from protocol.node.node import Node
from protocol.offload import Offload
from protocol.wire.identity import Identity, PeerId
from protocol.wire.presence import Role
from tests.simulation.arithmetic_trainer import ArithmeticTrainer
from tests.simulation.determinism import inline
from tests.simulation.disks import Platter
from tests.simulation.processes import Process


@dataclass
class Seat:
    """What survives the deaths of a peer, and its present life.

    farewell: the sentence with which its last life stopped by itself.
    disk_fault: what its disk will do, `disk_operations` fitting operations from now.
    """

    identity: Identity
    number: int
    folder: Path
    step_s: float
    platter: Platter
    lives: int = 0
    process: Process | None = None
    node: Node | None = None
    trainer: ArithmeticTrainer | None = None
    make_trainer: Callable[..., ArithmeticTrainer] = ArithmeticTrainer
    """A hostile peer has its own contributions."""
    offload: Offload = inline
    """How its node runs blocking work; a hostile peer has its own ways."""
    role: Role = Role.TRAINER
    admission: bytes = b""
    introduced: frozenset[PeerId] = frozenset()
    is_copy: bool = False
    state_on_disk: bool = False
    disk_fault: str | None = None
    disk_operations: int = 0
    farewell: str = ""
    stop_after: int | None = None
    until_end: bool = False
    clock_ahead_s: float = 0.0
    died_at: float = 0.0

    @property
    def peer(self) -> PeerId:
        return self.identity.peer_id

    @property
    def up(self) -> bool:
        return self.process is not None

    @property
    def phase(self) -> str:
        return self.node.phase.value if self.node is not None else "starting"
