"""One peer of a demo, as its events tell, and whether it gets on."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from peer.control.client import EventStream, Stamped
from peer.demo.cast import Part
from peer.demo.progress import Progress
from protocol.events import events as ev


@dataclass
class Member:
    """A part of the cast and its process.  peer: its ID, empty before it has told it.  silent: its events have ended."""

    part: Part
    folder: Path
    process: subprocess.Popen[bytes]
    progress: Progress = field(default_factory=Progress)
    committed: int = 0
    furthest: tuple[int, ...] = ()
    """Rounds committed, steps of the running one, parts of an evaluation: grows as long as it gets on."""
    peer: str = ""
    stream: EventStream | None = None
    silent: bool = False

    @property
    def name(self) -> str:
        """What the peer is called, and its folder."""
        return self.part.name

    def apply(self, stamped: Stamped) -> None:
        """Take note of an event of this peer."""
        self.progress.apply(stamped)
        match stamped.event:
            case ev.RoundCommitted(round):
                self.committed = max(self.committed, round + 1)
                self._come_to(self.committed, 0, 0)
            case ev.TrainerStarted():
                self._come_to(0, 0, 0)
            case ev.ComputeProgress(round, steps):
                self._come_to(round, steps, 0)
            case ev.EvalProgress(rounds, done):
                self._come_to(rounds, self.furthest[1] if self.furthest[:1] == (rounds,) else 0, done)

    def _come_to(self, *place: int) -> None:
        self.furthest = max(self.furthest, place)
