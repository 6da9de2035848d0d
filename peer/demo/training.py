"""Demo of training: every peer applies the same rounds, measures the held-out loss, and ends with the same state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from peer.demo.cast import REPORT, DemoMember, DemoPart
from peer.drawing import bar
from peer.formatting import duration, number
from protocol.events import events as ev
from protocol.run.manifest import RunManifest


@dataclass
class _Told:
    """Reports of one peer.  digests, evals: by the number of rounds.  up_bytes: of each round's exchange."""

    peer: str = ""
    committed: int = 0
    digests: dict[int, str] = field(default_factory=dict)
    evals: dict[int, float] = field(default_factory=dict)
    up_bytes: dict[int, int] = field(default_factory=dict)


class Training:
    """An `Aim` for a cast of trainers."""

    def __init__(self, cast: Sequence[DemoPart], rounds: int, manifest: RunManifest) -> None:
        self._rounds, self._parameters = rounds, manifest.parameters
        self._told = {part.name: _Told() for part in cast}
        self.news: list[str] = []

    @property
    def stop_after(self) -> int | None:
        """See `Aim.stop_after`."""
        return self._rounds

    def apply(self, member: DemoMember, event: ev.Event) -> None:
        """See `Aim.apply`."""
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
        """See `Aim.has_arrived`."""
        told = self._told[name]
        return self._rounds in told.digests and self._rounds in told.evals

    def title(self) -> str:
        """See `Aim.title`."""
        return f"{len(self._told)} peers, {self._rounds} rounds, {self._parameters} parameters"

    def headline(self, seconds: float, *, unicode: bool) -> str:
        """See `Aim.headline`."""
        drawn = bar(self._committed, self._rounds, 20, unicode=unicode)
        return f"round {self._committed} of {self._rounds} {drawn} {self._held_out()}, {duration(seconds)}"

    def remark(self, name: str) -> str:
        """See `Aim.remark`."""
        return ""

    def lines(self, seconds: float, *, unicode: bool) -> list[str]:
        """See `Aim.lines`."""
        start, end = self._losses()
        return [
            f"{self._rounds} rounds committed by {len(self._told)} peers in {duration(seconds)}",
            f"held-out loss   {number(start)} at the start, {number(end)} at the end",
            f"exchanged       {number(self._wire())} bytes sent by each peer, per parameter and round",
            *(f"state digest    {name}  {self._digest(told)[:32] or 'none'}" for name, told in self._told.items()),
            f"all digests are {'equal' if self._are_equal else 'NOT EQUAL'}",
        ]

    def fields(self, seconds: float) -> dict[str, Any]:
        """See `Aim.fields`."""
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
        """See `Aim.fault`."""
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

        def first(rounds: int) -> float | None:
            return next((told.evals[rounds] for told in self._told.values() if rounds in told.evals), None)

        return first(0), first(self._rounds)

    def _wire(self) -> float | None:
        """Return the bytes that a member sent, per parameter and round; None if nobody sent any."""
        sent = sum(told.up_bytes.get(round, 0) for told in self._told.values() for round in range(self._rounds))
        return sent / (len(self._told) * self._rounds * self._parameters) if sent else None
