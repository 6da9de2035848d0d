"""Cast of a demo: a part for each peer, with its role, and its way of cheating if it cheats."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from peer.control.client import EventStream, Stamped
from peer.formatting import amount, naming, to_go
from protocol.events import events as ev
from protocol.events.events import Event
from protocol.events.status import PeerStatus
from protocol.wire.presence import Role

ROLLOUT_PEERS = 2


class Cheat(str, Enum):
    """Peer that cheats in a demo with rollouts (see `peer.demo.cheats`)."""

    ROLLOUT = "rollout"
    VALIDATOR = "validator"


@dataclass(frozen=True)
class DemoPart:
    """Part of one peer of a demo.  name: of the peer and its folder.  cheat: its way of cheating; None for an honest one."""

    name: str
    role: Role
    cheat: Cheat | None = None

    @property
    def program(self) -> tuple[str, ...]:
        """Module to run, and the words before the arguments of an ordinary peer."""
        return ("peer",) if self.cheat is None else ("peer.demo.cheats", self.cheat.value)


def only_trainers(count: int) -> tuple[DemoPart, ...]:
    """Return the cast of a demo without rollouts."""
    return tuple(DemoPart(f"peer-{number}", Role.TRAINER) for number in range(1, count + 1))


def with_rollouts(cheat: Cheat | None) -> tuple[DemoPart, ...]:
    """Return a trainer, rollout peers and a validator.  The last rollout peer may cheat; a lying validator is added."""
    writers = [DemoPart(f"rollout-{number}", Role.ROLLOUT) for number in range(1, ROLLOUT_PEERS + 1)]
    judges = [DemoPart("validator-1", Role.VALIDATOR)]
    if cheat is Cheat.ROLLOUT:
        writers[-1] = DemoPart(writers[-1].name, Role.ROLLOUT, cheat)
    elif cheat is Cheat.VALIDATOR:
        judges.append(DemoPart("validator-2", Role.VALIDATOR, cheat))
    return (DemoPart("trainer", Role.TRAINER), *writers, *judges)


# ------------------------------------------------------------------------------------------------------------------------
# Present activity of one peer of a demo, folded from its events and its status.


MEASURING = "measuring the held-out loss"


@dataclass(frozen=True)
class Bar:
    """Wait with a measure: `done` of `total` units."""

    what: str
    done: int
    total: int
    detail: str = ""


@dataclass
class DemoProgress:
    """Progress of one peer.  status: None before the first one.  bar: None while the activity has no measure."""

    status: PeerStatus | None = None
    bar: Bar | None = None
    names: dict[str, str] = field(default_factory=dict)

    def update(self, status: PeerStatus) -> None:
        """Take the present status."""
        self.status = status
        self.names.update(status.names())

    def apply(self, stamped: Stamped) -> None:
        """Take note of an event."""
        match stamped.event:
            case ev.ComputeProgress(round, steps, total, _, rate, left_s):
                detail = "  ".join(part for part in (f"{amount(rate)} tokens/s", to_go(left_s)) if part)
                self.bar = Bar(f"round {round}: training", steps, total, detail)
            case ev.ExchangeProgress(round, done, total, waiting):
                waits = "waiting for " + ", ".join(naming(self.names)(peer) for peer in waiting[:2]) if waiting else ""
                self.bar = Bar(f"round {round}: exchanging", done, total, waits)
            case ev.SyncProgress(done, total):
                self.bar = Bar("fetching records", done, total)
            case ev.EvalProgress(_, done, total) if self.bar is None or self.bar.what == MEASURING:
                self.bar = Bar(MEASURING, done, total)  # beside training, the bar shows the training
            case ev.EvalLoss() if self.bar is not None and self.bar.what == MEASURING:
                self.bar = None
            case ev.PhaseChanged():
                self.bar = None
            case ev.PeerJoined(peer, name):
                self.names[peer] = name


# ------------------------------------------------------------------------------------------------------------------------
# One peer of a demo, by its events, and its progress.


@dataclass
class DemoMember:
    """Part of the cast with its process.  peer: its ID, empty until known.  silent: its events have ended."""

    part: DemoPart
    folder: Path
    process: subprocess.Popen[bytes]
    progress: DemoProgress = field(default_factory=DemoProgress)
    committed: int = 0
    furthest: tuple[int, ...] = ()
    """Rounds committed, steps of the running one, parts of an evaluation: grows as long as the peer makes progress."""
    peer: str = ""
    stream: EventStream | None = None
    silent: bool = False

    @property
    def name(self) -> str:
        """Name of the peer and of its folder."""
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


# ------------------------------------------------------------------------------------------------------------------------
# Aim of a demo: its end, the news meanwhile, and the result.


REPORT = "which must never happen; please report it with the logs (--keep)"


class Aim(Protocol):
    """Aim of a demo, folded from the events of all peers (pure).  Its two kinds are `Training` and `Learning`."""

    @property
    def stop_after(self) -> int | None:
        """Rounds after which each peer leaves by itself; None if it waits to be told."""
        ...

    @property
    def news(self) -> list[str]:
        """Sentences to print once, in order; only ever appended to."""
        ...

    def apply(self, member: DemoMember, event: Event) -> None:
        """Take note of an event of this peer."""
        ...

    def has_arrived(self, name: str) -> bool:
        """Return True if the peer of this name has reached the demo's end."""
        ...

    def title(self) -> str:
        """Return a sentence about the coming demo."""
        ...

    def headline(self, seconds: float, *, unicode: bool) -> str:
        """Return the swarm's progress.  seconds: since the beginning."""
        ...

    def remark(self, name: str) -> str:
        """Return a remark on a peer, beside its present activity; may be empty."""
        ...

    def lines(self, seconds: float, *, unicode: bool) -> list[str]:
        """Return the result as lines for a person."""
        ...

    def fields(self, seconds: float) -> dict[str, Any]:
        """Return the result as the object of `--json`."""
        ...

    def fault(self) -> str:
        """Return a failed check as a sentence with the remedy; empty if all is well."""
        ...
