"""Points of a run's curves, one for each round, from the record chain and the event log on this disk.

A tracker's steps never go back.  So the step of a round counts the rounds that this peer gave up before it too: what was
written of those stays, the rounds that replace them come behind, and `rounds_given_up` says how many they are.

A round's point is due once its held-out loss is known, or `LATE_ROUNDS` later, or at the end: a tracker takes its values
in the order of the rounds, and not one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from peer.control.curves import StepBack
from peer.control.history import Round, RunHistory
from protocol.formatting import plain

LATE_ROUNDS = 2
"""Rounds after which a held-out loss is not waited for; it comes within seconds, or a peer measures only some rounds."""


@dataclass(frozen=True)
class Point:
    """Values at a step of a tracker, by name.  Names are short and plain; values are finite."""

    step: int
    values: Mapping[str, float]


def points_due(run: RunHistory, after: int, *, is_end: bool) -> list[Point]:
    """Return the points of later steps than `after` that are due.  is_end: True if nothing is waited for any more."""
    found, held_out, steps_back = list[Point](), run.held_out, run.steps_back
    for each, given_up in _counted(run.rounds, steps_back):
        step = each.rounds + given_up
        if step <= after:
            continue
        if not (is_end or each.rounds in held_out or each.rounds + LATE_ROUNDS <= len(run.rounds)):
            break
        values = {"tokens": float(each.tokens), "members": float(each.members), "loss/training": each.loss}
        values |= _by_source("training", each.losses)
        if each.reward is not None:
            values["reward"] = each.reward
        if (measured := held_out.get(each.rounds)) is not None:
            values |= {"loss/held_out": measured.loss, **_by_source("held_out", measured.losses)}
        if steps_back:
            values |= {"rounds": float(each.rounds), "rounds_given_up": float(given_up)}
        found.append(Point(step, {name: value for name, value in values.items() if isfinite(value)}))
    return found


def _counted(rounds: Sequence[Round], steps_back: Sequence[StepBack]) -> Iterator[tuple[Round, int]]:
    """Yield each round with the number of rounds that were given up before it was made, which never falls."""
    given_up = 0
    totals: list[tuple[int, int]] = []
    for step in steps_back:
        given_up += max(0, step.abandoned)
        while totals and totals[-1][0] >= step.rounds:
            totals.pop()  # what was made after that earlier step back was given up as well
        totals.append((step.rounds, given_up))
    place = before = 0
    for each in rounds:
        while place < len(totals) and totals[place][0] < each.rounds:
            before = totals[place][1]
            place += 1
        yield each, before


def _by_source(kind: str, losses: Mapping[str, float]) -> dict[str, float]:
    """Name the losses by source; sources have names that an organiser chose, and trackers take names for paths."""
    named = ((plain(name).replace("/", "_"), loss) for name, loss in losses.items())
    return {f"loss/{kind}/{name if name.strip('.') else 'source'}": loss for name, loss in named}
