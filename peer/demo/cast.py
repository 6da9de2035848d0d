"""Cast of a demo: the part of each peer, with its role, and its way of cheating if it cheats."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from peer.control.client import EventStream, Stamped
from peer.formatting import bar
from protocol.events import events as ev
from protocol.events.status import PeerStatus
from protocol.formatting import amount, duration, naming, number, to_go
from protocol.run.manifest import RunManifest
from protocol.wire.presence import Role

ROLLOUT_PEERS = 2


class Cheat(str, Enum):
    """Peer that cheats in a demo with rollouts (see `peer.demo.cheats`)."""

    ROLLOUT = "rollout"
    VALIDATOR = "validator"


@dataclass(frozen=True)
class DemoPart:
    """Part of one peer of a demo.  name: name of the peer and of its folder.

    cheat: way of cheating; None for an honest peer.
    """

    name: str
    role: Role
    cheat: Cheat | None = None

    @property
    def program(self) -> tuple[str, ...]:
        """Module to run, and the arguments before the arguments of an ordinary peer."""
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
# One peer of a demo, and its present activity, folded from its events and its status.


MEASURING = "measuring the held-out loss"


@dataclass(frozen=True)
class Bar:
    """Wait of known length: `done` of `total` units."""

    what: str
    done: int
    total: int
    detail: str = ""


@dataclass
class DemoMember:
    """Peer of the cast with its process, and its activity according to its events and its status.

    peer: its ID, empty until known.  silent: true once its events have ended.  bar: None while the activity has no known
    length.
    """

    part: DemoPart
    folder: Path
    process: subprocess.Popen[bytes]
    status: PeerStatus | None = None
    bar: Bar | None = None
    names: dict[str, str] = field(default_factory=dict)
    committed: int = 0
    furthest: tuple[int, ...] = ()
    """Committed rounds, steps of the running round, parts of an evaluation: grows while the peer makes progress."""
    peer: str = ""
    stream: EventStream | None = None
    silent: bool = False

    @property
    def name(self) -> str:
        """Name of the peer and of its folder."""
        return self.part.name

    def update(self, status: PeerStatus) -> None:
        """Store the present status."""
        self.status = status
        self.names.update(status.names())

    def apply(self, stamped: Stamped) -> None:
        """Record an event of this peer."""
        match stamped.event:
            case ev.ComputeProgress(round, steps, total, _, rate, left_s, ahead):
                detail = "  ".join(part for part in (f"{amount(rate)} tokens/s", to_go(left_s)) if part)
                self.bar = Bar(f"round {round}: training{' ahead' if ahead else ''}", steps, total, detail)
            case ev.ExchangeProgress(round, done, total, waiting):
                waits = "waiting for " + ", ".join(naming(self.names)(peer) for peer in waiting[:2]) if waiting else ""
                self.bar = Bar(f"round {round}: exchanging", done, total, waits)
            case ev.SyncProgress(done, total):
                self.bar = Bar("fetching records", done, total)
            case ev.EvalProgress(_, done, total) if self.bar is None or self.bar.what == MEASURING:
                self.bar = Bar(MEASURING, done, total)  # during training, the bar shows the training
            case ev.EvalLoss() if self.bar is not None and self.bar.what == MEASURING:
                self.bar = None
            case ev.PhaseChanged():
                self.bar = None
            case ev.PeerJoined(peer, name):
                self.names[peer] = name
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


REPORT = "which must never happen; please report it with the logs (--keep)"


# ------------------------------------------------------------------------------------------------------------------------
# Demo of training: every peer applies the same rounds, measures the held-out loss, and ends with the same state.


@dataclass
class _Told:
    """Reports of one peer.  digests, evals: digests of states and held-out losses, by number of rounds.

    up_bytes: bytes sent in each round's exchange.
    """

    peer: str = ""
    committed: int = 0
    digests: dict[int, str] = field(default_factory=dict)
    evals: dict[int, float] = field(default_factory=dict)
    up_bytes: dict[int, int] = field(default_factory=dict)


class Training:
    """Aim of a cast of trainers, folded from the events of all peers (pure).

    news: sentences to print once, in order; the list only grows.
    """

    def __init__(self, cast: Sequence[DemoPart], rounds: int, manifest: RunManifest) -> None:
        self._rounds, self._parameters = rounds, manifest.parameters
        self._told = {part.name: _Told() for part in cast}
        self.news: list[str] = []
        self.stop_after: int | None = rounds
        """Rounds after which each peer leaves by itself."""

    def apply(self, member: DemoMember, event: ev.Event) -> None:
        """Record an event of this peer."""
        told, before = self._told[member.name], self._committed
        told.peer = member.peer
        match event:
            case ev.StateApplied(rounds, digest):
                told.digests[rounds] = digest
            case ev.EvalLoss(rounds, loss, _):
                told.evals[rounds] = loss
            case ev.ExchangeFinished(round, _, up_bytes, _):
                told.up_bytes[round] = told.up_bytes.get(round, 0) + up_bytes
            case ev.RoundCommitted(round):
                told.committed = max(told.committed, round + 1)
        if self._committed > before:
            self.news.append(f"round {self._committed} of {self._rounds}: {self._held_out()}")

    def has_arrived(self, name: str) -> bool:
        """Return True if the peer of this name has reached the demo's end."""
        told = self._told[name]
        return self._rounds in told.digests and self._rounds in told.evals

    def title(self) -> str:
        """Return a sentence about the demo before it starts."""
        return f"{len(self._told)} peers, {self._rounds} rounds, {self._parameters} parameters"

    def headline(self, seconds: float, *, unicode: bool) -> str:
        """Return the swarm's progress.  seconds: since the beginning."""
        drawn = bar(self._committed, self._rounds, 20, unicode=unicode)
        return f"round {self._committed} of {self._rounds} {drawn} {self._held_out()}, {duration(seconds)}"

    def remark(self, name: str) -> str:
        """Return a remark on a peer, beside its present activity; may be empty."""
        return ""

    def lines(self, seconds: float, *, unicode: bool) -> list[str]:
        """Return the result as lines for a person."""
        start, end = self._losses()
        return [
            f"{self._rounds} rounds committed by {len(self._told)} peers in {duration(seconds)}",
            f"held-out loss   {number(start)} at the start, {number(end)} at the end",
            f"exchanged       {number(self._wire())} bytes sent by each peer, per parameter and round",
            *(f"state digest    {name}  {self._digest(told)[:32] or 'none'}" for name, told in self._told.items()),
            f"all digests are {'equal' if self._are_equal else 'NOT EQUAL'}",
        ]

    def fields(self, seconds: float) -> dict[str, Any]:
        """Return the result as the object of `--json`."""
        start, end = self._losses()
        return {
            "peers": len(self._told),
            "rounds": self._rounds,
            "seconds": round(seconds, 1),
            "eval_loss_start": start,
            "eval_loss_end": end,
            "state_digests": {told.peer: self._digest(told) for told in self._told.values()},
            "wire_bytes_per_param_round": self._wire(),
        }

    def fault(self) -> str:
        """Return a failed check as a sentence with the remedy; empty if all is well."""
        return "" if self._are_equal else f"the peers' states differ, {REPORT}"

    # -- parts --------------------------------------------------------------------------------------------------------

    @property
    def _committed(self) -> int:
        """Rounds that all peers have committed."""
        return min(told.committed for told in self._told.values())

    @property
    def _are_equal(self) -> bool:
        return len({self._digest(told) for told in self._told.values()}) == 1

    def _digest(self, told: _Told) -> str:
        return told.digests.get(self._rounds, "")

    def _held_out(self) -> str:
        losses = [measured for told in self._told.values() for measured in told.evals.items()]
        return f"held-out loss {number(max(losses)[1])} after {max(losses)[0]}" if losses else "no loss yet"

    def _losses(self) -> tuple[float | None, float | None]:
        """Return the held-out loss before the first and after the last round."""
        evals = {rounds: loss for told in self._told.values() for rounds, loss in told.evals.items()}
        return evals.get(0), evals.get(self._rounds)

    def _wire(self) -> float | None:
        """Return the mean bytes that a member sent, per parameter and round; None if no member sent any."""
        sent = sum(told.up_bytes.get(round, 0) for told in self._told.values() for round in range(self._rounds))
        return sent / (len(self._told) * self._rounds * self._parameters) if sent else None
