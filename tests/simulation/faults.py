"""What befalls the peers of a world: deaths, broken disks and clocks, links that carry nothing.

Every fault is counted with the phase in which it met its victim, told to the judge, and noted in the trace.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence

from protocol.wire.identity import PeerId
from tests.simulation.judge import Judge
from tests.simulation.seat import Seat
from tests.simulation.trace import Trace
from tests.simulation.wire import MemoryWire


class Faults:
    """Met by the peers on `seats`.  met: how often each met a peer in a phase."""

    def __init__(self, seats: Sequence[Seat], wire: MemoryWire, judge: Judge, trace: Trace) -> None:
        self._seats, self._wire, self._judge, self._trace = seats, wire, judge, trace
        self._by_peer = {seat.peer: seat for seat in seats}
        self.met: Counter[tuple[str, str]] = Counter()

    def meet(self, fault: str, seat: Seat, detail: str = "") -> None:
        """Count and note that a fault met a peer."""
        self.met[fault, seat.phase] += 1
        self._trace.note(seat, f"meets in phase {seat.phase}: {fault} {detail}".rstrip())

    def on_weather(self, trouble: str, peer: PeerId) -> None:
        """The weather did something to what `peer` sent; what has no seat is not counted."""
        if peer in self._by_peer:
            self.met[trouble, self._by_peer[peer].phase] += 1

    # -- processes ----------------------------------------------------------------------------------------------------

    def kill(self, seat: Seat) -> None:
        """From one moment to the next; the disk stays as it is."""
        assert seat.process is not None
        self.meet("kill", seat)
        seat.process.kill()

    def doom(self, seat: Seat, steps: int) -> None:
        """Kill it between two awaits, so many steps of its tasks from now."""
        assert seat.process is not None
        seat.process.dies_at = seat.process.steps + steps

    def freeze(self, seat: Seat) -> None:
        """It runs no step, and its links carry nothing, until it thaws."""
        assert seat.process is not None
        self.meet("freeze", seat)
        self._judge.on_disturbance(seat.peer)
        seat.process.stop()
        self._wire.freeze(seat.peer)

    def thaw(self, seat: Seat, stood_still_s: float = 0.0) -> None:
        """Nothing if it is not frozen.  stood_still_s: for so long its clock did not run, as on a suspended computer."""
        if seat.process is not None and seat.process.stopped:
            self._trace.note(seat, "thaws")
            seat.process.ahead_s -= stood_still_s
            self._judge.on_disturbance(seat.peer)
            self._wire.thaw(seat.peer)
            seat.process.go_on()

    def jump_clock(self, seat: Seat, seconds: float) -> None:
        """Its clock leaps ahead; nothing else happened."""
        assert seat.process is not None
        self.meet("clock jump", seat, f"{seconds:+.0f} s")
        self._judge.on_disturbance(seat.peer)
        seat.process.ahead_s += seconds

    def slow_down(self, seat: Seat, slow_s: float) -> None:
        """Everything that blocks takes it so long; 0 ends it."""
        if seat.process is not None:
            self.meet("slow peer", seat, f"{slow_s:.1f} s")
            self._judge.on_disturbance(seat.peer)
            seat.process.slow_s = slow_s

    def kill_trainer(self, seat: Seat) -> None:
        """Its trainer dies, and is started again."""
        if seat.trainer is not None:
            self.meet("trainer death", seat)
            seat.trainer.kill()

    # -- disks --------------------------------------------------------------------------------------------------------

    def break_disk(self, seat: Seat, fault: str, operations: int) -> None:
        """One of `DISK_FAULTS`, so many fitting operations from now."""
        seat.disk_fault, seat.disk_operations = fault, operations

    def fill_disk(self, seat: Seat) -> None:
        """Nothing more can be written."""
        self.meet("full disk", seat)
        seat.platter.full = True

    def make_room(self, seat: Seat) -> None:
        """The opposite of `fill_disk`."""
        if seat.platter.full:
            self._trace.note(seat, "has room on its disk")
            seat.platter.full = False

    def cut_power(self, seat: Seat) -> None:
        """Kill it, if it is up, and lose what its disk had not synced."""
        self.meet("power cut", seat)
        if seat.process is not None:
            seat.process.kill()
        seat.platter.cut_power()

    def lose_disk(self, seat: Seat) -> None:
        """Kill it, if it is up, and give it an empty disk; its key stays."""
        self.meet("lost disk", seat)
        if seat.process is not None:
            seat.process.kill()
        shutil.rmtree(seat.folder, ignore_errors=True)
        seat.platter.replace()

    def disk_fault(self, seat: Seat, operation: str) -> str | None:
        """The fault that was ordered for this disk happens at the first operation that it fits, after some others."""
        fault = seat.disk_fault
        if (
            fault is None
            or (fault == "torn write" and operation != "write")
            or (fault == "failing fsync" and operation != "sync")
        ):
            return None
        seat.disk_operations -= 1
        if seat.disk_operations > 0:
            return None
        seat.disk_fault = None
        self.meet(fault, seat, operation)
        return fault

    # -- links --------------------------------------------------------------------------------------------------------

    def partition(self, *sides: list[Seat]) -> None:
        """Nothing gets from one side to another."""
        for seat in self._up():
            self.met["partition", seat.phase] += 1
            self._judge.on_disturbance(seat.peer)
        self._trace.note(None, "splits: " + " | ".join(",".join(str(seat.number) for seat in side) for side in sides))
        self._wire.partition(*[[seat.peer for seat in side] for side in sides])

    def cut(self, sender: Seat, receiver: Seat) -> None:
        """One-way: nothing gets from `sender` to `receiver`."""
        self.meet("one-way link", sender, f"to peer {receiver.number}")
        self._judge.on_disturbance(sender.peer)
        self._judge.on_disturbance(receiver.peer)
        self._wire.cut(sender.peer, receiver.peer)

    def heal(self) -> None:
        """All links carry again."""
        self._trace.note(None, "heals")
        for seat in self._up():
            self._judge.on_disturbance(seat.peer)
        self._wire.heal()

    def _up(self) -> list[Seat]:
        return [seat for seat in self._seats if seat.up]
