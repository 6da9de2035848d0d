"""N peers of the real protocol in one process: started, crashed, restarted, frozen, split, on a simulated network.

Everything that a peer emits goes, with the virtual time, into one trace; the `Judge` sees it first.  The same seed gives
the same trace.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import trio

from protocol.disk import Disk
from protocol.events import ComputeProgress, Event, ExchangeProgress, PhaseChanged
from protocol.identity import Identity, PeerId
from protocol.manifest import DataSection, ModelSection, RoundSection, RunManifest, SignedManifest, sign
from protocol.memory_network import MemoryNetwork, MemoryWire, Weather
from protocol.messages import Role
from protocol.node import Node
from protocol.outer_state import OuterState
from protocol.parts import NodeSettings, Offload
from protocol.store import Store
from tests.simulation.arithmetic_trainer import ArithmeticTrainer
from tests.simulation.determinism import inline
from tests.simulation.judge import Judge

NOISE = (ComputeProgress, ExchangeProgress, PhaseChanged)
"""Events that would make the trace long and say little."""


@lru_cache(maxsize=8)
def simulated_run(min_members: int = 1) -> SignedManifest:
    """A run of a few thousand parameters and rounds of a few seconds."""
    organiser = Identity.from_seed(b"\x2a" * 32)
    return sign(organiser, RunManifest(
        name="simulation", organiser=organiser.peer_id, seed=1,
        model=ModelSection(vocab=256, dim=8, layers=1, heads=1, kv_heads=1, ffn=8),
        data=DataSection(sequence_length=8, sequences_per_step=1),
        rounds=RoundSection(inner_steps=10, min_members=min_members, max_members=64, grace_s=4, eviction_s=20, stall_s=5),
        chunk_parameters=1024, checkpoint_interval=4, checkpoint_chunk_bytes=4096, total_tokens=10**9))


@dataclass
class Seat:
    """A peer's place in the world: what survives its deaths, and its present life."""

    identity: Identity
    number: int
    folder: Path
    step_s: float
    lives: int = 0
    node: Node | None = None
    trainer: ArithmeticTrainer | None = None
    scope: trio.CancelScope | None = None
    offload: Offload = inline
    """How its node runs blocking work; a hostile peer has its own ways."""

    @property
    def peer(self) -> PeerId:
        return self.identity.peer_id

    @property
    def up(self) -> bool:
        return self.node is not None


class World:
    """Seats for `peers`, none of them started."""

    def __init__(self, nursery: trio.Nursery, folder: Path, seed: int, peers: int, weather: Weather | None = None,
                 signed: SignedManifest | None = None) -> None:
        self.random = Random(seed)
        self.signed = signed or simulated_run()
        self.wire = MemoryWire(nursery, Random(seed + 1), weather)
        self.judge = Judge(self.signed.manifest)
        self.trace: list[str] = []
        self._nursery = nursery
        self.seats: list[Seat] = []
        for number in range(peers):
            seed_bytes = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=32).digest()
            step_s = 0.25 + 0.1 * self.random.random()
            self.seats.append(Seat(Identity.from_seed(seed_bytes), number, folder / f"{number:03}", step_s))

    # -- what happens to a peer ---------------------------------------------------------------------------------------

    def start(self, seat: Seat) -> None:
        """A new life with the disk as it is."""
        assert not seat.up
        seat.lives += 1
        store = Store(seat.folder, Disk(durable=False))
        seat.trainer = ArithmeticTrainer(self.signed.manifest, seat.number, seat.step_s, self.judge.on_contribution)
        settings = NodeSettings(name=f"sim-{seat.number}", role=Role.TRAINER, version="0", incarnation=seat.lives,
                                eval_every=0)
        state = OuterState(self.signed.manifest)
        seat.node = Node(seat.identity, self.signed, store, state, seat.trainer, settings,
                         partial(self._on_event, seat), offload=seat.offload)
        network = MemoryNetwork(self.wire, seat.peer, seat.node.reception)
        seat.node.attach(network)
        seat.scope = trio.CancelScope()
        self.note(seat, f"starts life {seat.lives}")
        self.judge.on_start(seat.peer)
        self._nursery.start_soon(self._live, seat, seat.node, network, seat.scope)

    async def _live(self, seat: Seat, node: Node, network: MemoryNetwork, scope: trio.CancelScope) -> None:
        with scope:
            self.wire.join(network)
            await node.run()
        if seat.node is node:
            self._gone(seat)

    def crash(self, seat: Seat) -> None:
        """From one moment to the next; the disk stays."""
        assert seat.up and seat.scope is not None
        self.note(seat, "crashes")
        seat.scope.cancel()
        self._gone(seat)

    def leave(self, seat: Seat) -> None:
        assert seat.node is not None
        self.note(seat, "leaves")
        self.judge.on_disturbance(seat.peer)
        seat.node.leave()

    def freeze(self, seat: Seat) -> None:
        self.note(seat, "freezes")
        self.judge.on_disturbance(seat.peer)
        self.wire.freeze(seat.peer)

    def thaw(self, seat: Seat) -> None:
        self.note(seat, "thaws")
        self.judge.on_disturbance(seat.peer)
        self.wire.thaw(seat.peer)

    def kill_trainer(self, seat: Seat) -> None:
        assert seat.trainer is not None
        self.note(seat, "loses its trainer")
        seat.trainer.kill()

    def partition(self, *sides: list[Seat]) -> None:
        self.note(None, "splits: " + " | ".join(",".join(str(seat.number) for seat in side) for side in sides))
        self.judge.on_partition()
        self.wire.partition(*[[seat.peer for seat in side] for side in sides])

    def heal(self) -> None:
        self.note(None, "heals")
        self.wire.heal()

    def _gone(self, seat: Seat) -> None:
        self.judge.on_disturbance(seat.peer)
        self.wire.crash(seat.peer)
        seat.node, seat.trainer, seat.scope = None, None, None

    # -- looking ------------------------------------------------------------------------------------------------------

    def up(self) -> list[Seat]:
        return [seat for seat in self.seats if seat.up]

    def rounds(self) -> list[int]:
        """How many rounds each running peer has committed."""
        return [seat.node.rounds for seat in self.up() if seat.node]

    async def until(self, what: str, condition: Callable[[], bool], within_s: float) -> None:
        """Let virtual time pass until it holds; AssertionError when it does not within `within_s`."""
        with trio.move_on_after(within_s):
            while not condition():
                await trio.sleep(0.25)
            return
        state = [(seat.number, seat.node.status()["phase"], seat.node.status()["why_detail"], seat.node.rounds)
                 for seat in self.up() if seat.node]
        raise AssertionError(f"not within {within_s:.0f} s: {what}; peers: {state}")

    async def until_round(self, round: int, within_s: float) -> None:
        """Every running peer has committed `round` rounds."""
        await self.until(f"round {round} at every peer", lambda: min(self.rounds(), default=0) >= round, within_s)

    async def until_equal(self, within_s: float) -> None:
        """All running peers stand on one tip with one digest."""
        def equal() -> bool:
            marks = [(seat.node.tip, seat.node.state_mark) for seat in self.up() if seat.node]
            return len(set(marks)) == 1
        await self.until("one tip and one state everywhere", equal, within_s)

    def note(self, seat: Seat | None, text: str) -> None:
        who = f"peer {seat.number:3}" if seat else "world   "
        self.trace.append(f"{trio.current_time():9.3f}  {who}  {text}")

    def _on_event(self, seat: Seat, event: Event) -> None:
        if not isinstance(event, NOISE):
            fields = {key: value for key, value in event.to_fields().items() if key != "event"}
            self.note(seat, f"{type(event).__name__} {fields}")
        if seat.node is not None:
            self.judge.on_event(seat.peer, seat.node, event, trio.current_time())

    def trace_hash(self) -> str:
        return hashlib.blake2b("\n".join(self.trace).encode(), digest_size=16).hexdigest()


@contextmanager
def disk_space() -> Iterator[Path]:
    """Room for the peers' disks, in memory where the system has such a place."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)
