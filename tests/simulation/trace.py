"""All that the peers of a world emitted and met, with the virtual time: the same seed gives the same trace."""

from __future__ import annotations

import hashlib

import trio

from tests.simulation.seat import Seat


def world_time() -> float:
    """The world's own time; each peer has its own clock."""
    return trio.lowlevel.current_clock().current_time()


class Trace:
    """One line for each thing that happened."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, seat: Seat | None, text: str) -> None:
        """It happened now, at this seat or to the world."""
        who = f"peer {seat.number:3}" if seat else "world   "
        self.lines.append(f"{world_time():9.3f}  {who}  {text}")

    def hash(self) -> str:
        """Names the whole trace."""
        return hashlib.blake2b("\n".join(self.lines).encode(), digest_size=16).hexdigest()
