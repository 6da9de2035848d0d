"""Points of a run's curves, one for each round, from the record chain and the event log on this disk.

A round's point is due once its held-out loss is known, or `LATE_ROUNDS` later, or at the end: a tracker takes its values
in the order of the rounds, and not one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Protocol

from peer.formatting import plain
from peer.page.history import HeldOut, Round

LATE_ROUNDS = 2
"""Rounds after which a held-out loss is not waited for; it comes within seconds, or a peer measures only some rounds."""


@dataclass(frozen=True)
class Point:
    """Values after so many rounds, by name.  Names are short and plain; values are finite."""

    rounds: int
    values: Mapping[str, float]


class MeasuredRounds(Protocol):
    """Rounds and held-out losses of a run (`peer.page.history.RunHistory`)."""

    rounds: list[Round]
    held_out: dict[int, HeldOut]


def points_due(run: MeasuredRounds, after: int, *, is_end: bool) -> list[Point]:
    """Return the points of the rounds after `after` that are due.  is_end: True if nothing is waited for any more."""
    found: list[Point] = []
    for each in run.rounds[after:]:
        if not (is_end or each.rounds in run.held_out or each.rounds + LATE_ROUNDS <= len(run.rounds)):
            break
        found.append(Point(each.rounds, _finite({**_values(each), **_measured(run.held_out.get(each.rounds))})))
    return found


def _measured(found: HeldOut | None) -> dict[str, float]:
    return {} if found is None else {"loss/held_out": found.loss, **_by_source("held_out", found.losses)}


def _values(each: Round) -> dict[str, float]:
    values = {"tokens": float(each.tokens), "members": float(each.members), "loss/training": each.loss}
    values |= _by_source("training", each.losses)
    return values if each.reward is None else values | {"reward": each.reward}


def _by_source(kind: str, losses: Mapping[str, float]) -> dict[str, float]:
    """Name the losses by source; sources have names that an organiser chose, and trackers take names for paths."""
    named = ((plain(name).replace("/", "_"), loss) for name, loss in losses.items())
    return {f"loss/{kind}/{name if name.strip('.') else 'source'}": loss for name, loss in named}


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if isfinite(value)}
