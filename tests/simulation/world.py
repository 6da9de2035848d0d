"""N peers of the real protocol on a simulated network: started, watched, and waited for.

Everything that a peer emits goes, with the virtual time, into one trace; the `Judge` sees it first.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import trio

from protocol.chain.electorate import quorum_size
from protocol.chain.outer_state import OuterState
from protocol.chain.replica import Replica
from protocol.chain.store import Store
from protocol.disk import ScratchFolder, StoreFailed
from protocol.events.events import PROGRESS, Event, PhaseChanged
from protocol.formats.model import ModelConfig
from protocol.node.node import Node
from protocol.run.manifest import OuterSection, RoundSection, RunManifest, SignedManifest, sign
from protocol.run.sections import DataSection
from protocol.run.settings import NodeSettings
from protocol.transport.interface import Session
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Ready, unpack
from tests.simulation.disks import FaultyDisk, Platter
from tests.simulation.faults import Faults
from tests.simulation.judge import Judge
from tests.simulation.network import MemoryNetwork
from tests.simulation.processes import PROCESS, Killed, Process
from tests.simulation.seat import Seat
from tests.simulation.trace import Trace, world_time
from tests.simulation.wire import Agenda, MemoryWire, Weather

NOISE = (*PROGRESS, PhaseChanged)
"""Events that would make the trace long and say little."""


ORGANISER = Identity.from_seed(b"\x2a" * 32)
FRAGMENTS = int(os.environ.get("SIMULATED_FRAGMENTS", "1"))
"""Fragments of a simulated run; with several, members train while a round is agreed on (`make test-streamed`)."""
DELAY = 5 if FRAGMENTS > 1 else 0


@lru_cache(maxsize=8)
def simulated_run(min_members: int = 1, fragments: int = FRAGMENTS, delay: int = DELAY) -> SignedManifest:
    """A run of a few thousand parameters a fragment, and rounds of a few seconds."""
    return sign(
        ORGANISER,
        RunManifest(
            name="simulation",
            organiser=ORGANISER.peer_id,
            founders="anyone",
            seed=1,
            model=ModelConfig(vocab=256 * fragments, dim=8, layers=1, heads=1, kv_heads=1, ffn=8),
            data=DataSection(sequence_length=8, sequences_per_step=1),
            outer=OuterSection(lr=0.7, momentum=0.9),
            rounds=RoundSection(
                inner_steps=10 * fragments,
                delay=delay,
                min_members=min_members,
                max_members=64,
                grace_s=4,
                eviction_s=20,
                stall_s=5,
            ),
            fragments=fragments,
            chunk_parameters=1024,
            checkpoint_interval=4,
            checkpoint_chunk_bytes=4096,
            total_tokens=10**9,
        ),
    )


def changed(signed: SignedManifest, **changes: object) -> SignedManifest:
    """The same run with these fields of its manifest changed, signed anew."""
    return sign(ORGANISER, signed.manifest.model_copy(update=changes))


def seat_identity(seed: int, number: int) -> Identity:
    """Return the identity of the seat with this number in a world of this seed."""
    return Identity.from_seed(hashlib.blake2b(f"{seed} {number}".encode(), digest_size=32).digest())


class World:
    """Seats for `peers`, none of them started."""

    def __init__(
        self,
        nursery: trio.Nursery,
        folder: Path,
        seed: int,
        peers: int,
        weather: Weather | None = None,
        signed: SignedManifest | None = None,
        agenda: Agenda | None = None,
    ) -> None:
        self.random = Random(seed)
        self.signed = signed or simulated_run()
        self.wire = MemoryWire(nursery, Random(seed + 1), weather, agenda)
        self.judge = Judge(self.signed.manifest)
        self.trace = Trace()
        self.listeners: list[Callable[[Seat, Event], None]] = []
        """Told of every event, after the judge."""
        self.ambush: tuple[str, Callable[[Seat], None]] | None = None
        """What happens to the next peer that enters this phase, or emits this event."""
        self._nursery = nursery
        self._processes: list[Process] = []
        self.seats: list[Seat] = []
        for number in range(peers):
            step_s = 0.25 + 0.1 * self.random.random()
            platter = Platter(Random(f"{seed} {number}"))
            self.seats.append(Seat(seat_identity(seed, number), number, folder / f"{number:03}", step_s, platter))
        self.faults = Faults(self.seats, self.wire, self.judge, self.trace)
        self.wire.on_trouble, self.wire.on_gossip = self.faults.on_weather, self._on_gossip

    def close(self) -> None:
        """Let the remains of all lives end."""
        for seat in self.seats:
            seat.node = None
        for process in self._processes:
            process.bury()

    def check_leases(self) -> None:
        """At the end: who read which rows, by the longest chain of an honest peer."""
        honest = [seat.node for seat in self.up() if seat.node is not None and seat.peer not in self.judge.liars]
        if honest:
            self.judge.on_end(max(honest, key=lambda node: node.rounds))

    def spawn(self, function: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Something beside the peers, until the world ends."""
        self._nursery.start_soon(function, *arguments)

    # -- what happens to a peer ---------------------------------------------------------------------------------------

    def start(self, seat: Seat) -> None:
        """A new life with the disk as it is."""
        assert not seat.up
        seat.lives += 1
        seat.process = Process(seat.peer, lambda: self._killed(seat))
        seat.disk_fault, seat.farewell = None, ""
        self._processes.append(seat.process)
        self.trace.note(seat, f"starts life {seat.lives}")
        if seat.lives > 1 or self.judge.commits_checked:
            self.faults.meet("join" if seat.lives == 1 else "restart", seat)
        self.judge.on_start(seat.peer)
        self._nursery.start_soon(self._live, seat, seat.process)

    def start_all(self, *, but: Collection[Seat] = ()) -> None:
        """A new life for each of them but some."""
        for seat in self.seats:
            if seat not in but:
                self.start(seat)

    async def _live(self, seat: Seat, process: Process) -> None:
        PROCESS.set(process)
        if not process.alive:
            return
        try:
            await self._run_node(seat, process)
        except* StoreFailed as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            seat.farewell = str(error)
            self.trace.note(seat, f"stops: {error}".replace(str(seat.folder), "its disk"))
        except* BaseException:
            if process.alive:
                raise
        if process.alive:
            process.kill()

    async def _run_node(self, seat: Seat, process: Process) -> None:
        store = Store(seat.folder, FaultyDisk(seat.platter, process, lambda what: self.faults.disk_fault(seat, what)))
        seat.trainer = seat.make_trainer(
            self.signed.manifest, seat.number, seat.step_s, partial(self.judge.on_contribution, seat.peer)
        )
        settings = NodeSettings(
            name=f"sim-{seat.number}",
            role=seat.role,
            version="0",
            incarnation=seat.lives,
            stop_after=seat.stop_after,
            until_end=seat.until_end,
            admission=seat.admission,
            introduced=seat.introduced,
            is_copy=seat.is_copy,
            wall_clock=lambda: self.now() + seat.clock_ahead_s,
            boot_clock=self.now,
        )
        scratch = ScratchFolder(store.disk, seat.folder / "scratch") if seat.state_on_disk else None
        state = OuterState(self.signed.manifest, scratch)
        network = MemoryNetwork(self.wire, seat.peer)
        session = Session(seat.identity, self.signed.run, network, partial(self._on_event, seat, process))
        node = Node(session, Replica.open(self.signed, store, state), seat.trainer, settings, offload=seat.offload)
        network.handlers = node.router
        if not process.alive:
            return  # killed while it read its disk
        seat.node = node
        self.wire.join(network)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(network.run)
                await node.run()
                nursery.cancel_scope.cancel()
        finally:
            state.close()

    def leave(self, seat: Seat) -> None:
        """It says goodbye, and ends."""
        assert seat.node is not None
        self.faults.meet("leave", seat)
        self.judge.on_disturbance(seat.peer)
        seat.node.leave()

    def _on_gossip(self, listener: PeerId, data: bytes) -> None:
        speaker, body, _ = unpack(data, self.signed.run)
        if isinstance(body, Ready):
            self.judge.on_ready_heard(listener, speaker, body, self.now())

    def _killed(self, seat: Seat) -> None:
        process = seat.process
        if process is not None and process.dies_at is not None and process.steps >= process.dies_at:
            self.faults.meet("kill between two awaits", seat, f"at step {process.steps}")
        self.trace.note(seat, "is gone")
        seat.died_at = self.now()
        self.judge.on_disturbance(seat.peer)
        self.wire.crash(seat.peer)
        seat.process, seat.node, seat.trainer = None, None, None

    # -- looking ------------------------------------------------------------------------------------------------------

    def up(self) -> list[Seat]:
        """Those whose peer runs, frozen or not."""
        return [seat for seat in self.seats if seat.up]

    def rounds(self) -> list[int]:
        """How many rounds each running peer has committed."""
        return [seat.node.rounds if seat.node else 0 for seat in self.up()]

    def has_quorum(self, founders: int) -> bool:
        """Whether a majority of the newest record's members runs now, or, before the first record, of the founders.

        A plan of the first round makes its members the electors, and the founders are those who can be in it.
        """
        nodes = [seat.node for seat in self.up() if seat.node is not None]
        longest = max(nodes, key=lambda node: node.rounds, default=None)
        if longest is None:
            return False
        members = [seat.peer for seat in self.seats[:founders]]
        if longest.rounds:
            members = [PeerId(member.peer) for member in longest.commit_at(longest.rounds - 1).record.members]
        running = [seat for seat in self.up() if seat.peer in members and seat.process and seat.process.runs]
        return len(running) >= quorum_size(len(members))

    async def until(self, what: str, condition: Callable[[], bool], within_s: float) -> None:
        """Let virtual time pass until it holds; AssertionError when it does not within `within_s`."""
        with trio.move_on_after(within_s):
            while not condition():
                await trio.sleep(0.25)
            return
        state = [
            (seat.number, seat.node.status().phase, seat.node.status().why_detail, seat.node.rounds)
            for seat in self.up()
            if seat.node
        ]
        raise AssertionError(f"not within {within_s:.0f} s: {what}; peers: {state}")

    async def until_round(self, round: int, within_s: float) -> None:
        """Every running peer has committed `round` rounds."""
        await self.until(f"round {round} at every peer", lambda: min(self.rounds(), default=0) >= round, within_s)

    async def until_equal(self, within_s: float) -> None:
        """All running honest peers stand on one tip with one digest; a liar that was found out goes on alone."""

        def equal() -> bool:
            honest = [seat for seat in self.up() if seat.peer not in self.judge.liars]
            if any(seat.node is None for seat in honest):
                return False
            return len({(seat.node.tip, seat.node.state_mark) for seat in honest if seat.node}) <= 1

        await self.until("one tip and one state everywhere", equal, within_s)

    def _on_event(self, seat: Seat, process: Process, event: Event) -> None:
        if not process.alive or seat.process is not process:
            return  # the last words of a dead process
        if not isinstance(event, NOISE):
            fields = {key: value for key, value in event.to_fields().items() if key != "event"}
            self.trace.note(seat, f"{type(event).__name__} {fields}")
        if seat.node is not None:
            self.judge.on_event(seat.peer, seat.node, event, self.now())
        for listener in self.listeners:
            listener(seat, event)
        if self.ambush is not None and self.ambush[0] in (type(event).__name__, getattr(event, "phase", "")):
            happens, self.ambush = self.ambush[1], None
            happens(seat)
            if not process.alive:
                raise Killed

    def now(self) -> float:
        """The world's own time."""
        return world_time()


@contextmanager
def disk_space() -> Iterator[Path]:
    """Room for the peers' disks, in memory where the system has such a place."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)
