"""Points of a run's curves, one for each round, from the record chain and the event log on this disk.

A round's point is due once its held-out loss is known, or `LATE_ROUNDS` later, or at the end: a tracker takes its values
in the order of the rounds, and not one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Protocol

from peer.control.client import stamped_in
from peer.control.event_log import LOG_NAMES
from peer.formatting import clean
from peer.page.history import Round
from protocol.events.events import EvalLoss

LATE_ROUNDS = 2
"""Rounds after which a held-out loss is not waited for; it comes within seconds, or a peer measures only some rounds."""
MAX_LINE = 1 << 16
NAME_CHARACTERS = 40


@dataclass(frozen=True)
class Point:
    """Values after so many rounds, by name.  Names are short and plain; values are finite."""

    rounds: int
    values: Mapping[str, float]


class RoundsSoFar(Protocol):
    """Rounds of a run (`peer.page.history.RunHistory`)."""

    rounds: list[Round]

    def read(self) -> None:
        """Count the records that were added."""


class Points:
    """Points of the run in `folder`.  `due` is blocking; it changes nothing in the folder, so a peer may run."""

    def __init__(self, chain: RoundsSoFar, folder: Path) -> None:
        self._chain, self._folder = chain, folder
        self._held_out: dict[int, Mapping[str, float]] = {}

    def due(self, after: int, *, is_end: bool) -> list[Point]:
        """Return the points of the rounds after `after` that are due.  is_end: True if nothing is waited for any more."""
        self._chain.read()
        self._held_out |= dict(self._measured(after))
        rounds = self._chain.rounds
        found: list[Point] = []
        for each in rounds[after:]:
            if not (is_end or each.rounds in self._held_out or each.rounds + LATE_ROUNDS <= len(rounds)):
                break
            found.append(Point(each.rounds, _finite({**_values(each), **self._held_out.pop(each.rounds, {})})))
        return found

    def _measured(self, after: int) -> Iterator[tuple[int, Mapping[str, float]]]:
        """Yield the held-out losses in the event log of states after more than `after` rounds; the last one counts."""
        for name in reversed(LOG_NAMES):
            try:
                with (self._folder / name).open("rb") as file:
                    while line := file.readline(MAX_LINE):
                        stamped = stamped_in(line) if b"EvalLoss" in line else None
                        if stamped is not None and isinstance(stamped.event, EvalLoss) and stamped.event.rounds > after:
                            event = stamped.event
                            yield event.rounds, {"loss/held_out": event.loss, **_by_source("held_out", event.losses)}
            except FileNotFoundError:
                continue


def _values(each: Round) -> dict[str, float]:
    values = {"tokens": float(each.tokens), "members": float(each.members), "loss/training": each.loss}
    values |= _by_source("training", each.losses)
    return values if each.reward is None else values | {"reward": each.reward}


def _by_source(kind: str, losses: Mapping[str, float]) -> dict[str, float]:
    """Name the losses by source; sources have names that an organiser chose."""
    return {f"loss/{kind}/{clean(name, NAME_CHARACTERS).strip() or 'source'}": loss for name, loss in losses.items()}


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if isfinite(value)}
