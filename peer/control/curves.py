"""Curves of a run over time and tokens, and its samples: folded from events, and bounded.

This module imports nothing heavy, because the terminal interface also uses it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any, Self

from peer.control.client import LATEST_S, MOST, Stamped
from protocol.events import events as ev

MOST_POINTS = 2000
MOST_SOURCES = 16


@dataclass(frozen=True, slots=True)
class LossPoint:
    """Loss after `rounds` rounds, or the mean of `weight` losses up to that round.

    at: seconds since 1970.  tokens: number of tokens that all members had read until then.
    """

    at: float
    rounds: int
    tokens: int
    value: float
    weight: int = 1


class Series:
    """Points of one curve, ascending by rounds.  If there are too many, points in the older half are merged into means."""

    def __init__(self, points: Iterable[LossPoint] = ()) -> None:
        self.points = list(points)

    def cut(self, rounds: int) -> None:
        """Drop the points of later rounds than `rounds`."""
        while self.points and self.points[-1].rounds > rounds:
            self.points.pop()

    def to_lists(self) -> list[list[float]]:
        """Return each point as a list of its fields."""
        return [list(astuple(point)) for point in self.points]

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[float]]) -> Self:
        """Return the series with these points.  Raises TypeError, ValueError."""
        found = cls()
        for at, rounds, tokens, value, weight in lists[-MOST_POINTS:]:
            found.add(LossPoint(float(at), int(rounds), int(tokens), float(value), max(1, int(weight))))
        return found

    def add(self, point: LossPoint) -> None:
        """Add a point; it replaces all points of the same or later rounds.  A value that is not a number is left out."""
        if not math.isfinite(point.value):
            return
        self.cut(point.rounds - 1)
        self.points.append(point)
        if len(self.points) > MOST_POINTS:
            half = self.points[: MOST_POINTS // 2]
            weight = max(each.weight for each in half)
            while len(means := _means(half, weight)) > MOST_POINTS * 3 // 8:
                weight *= 2
            self.points[: MOST_POINTS // 2] = means


def _means(points: Sequence[LossPoint], weight: int) -> list[LossPoint]:
    """Return the means of neighbours that have at most this weight together."""
    means: list[LossPoint] = []
    for point in points:
        if means and means[-1].weight + point.weight <= weight:
            before = means[-1]
            total = before.weight + point.weight
            value = (before.value * before.weight + point.value * point.weight) / total
            means[-1] = LossPoint(point.at, point.rounds, point.tokens, value, total)
        else:
            means.append(point)
    return means


MOST_SAMPLED = 48
"""Largest number of states whose samples are kept."""
MOST_PROMPTS, MOST_CHARACTERS = 4, 300
"""Limits on the samples of a state, as a log or a socket tells them."""


@dataclass(frozen=True, slots=True)
class SampledState:
    """Completions of a run's prompts, by prompt, after `rounds` rounds.  at: seconds since 1970.

    by: ID of the peer that sampled.
    """

    at: float
    rounds: int
    by: str
    completions: Mapping[str, str]


class SampleHistory:
    """Samples of a run's states, ascending by rounds.  If there are too many, every second one of the older half is dropped.

    So the first one stays, and older samples are sparser than newer ones.
    """

    def __init__(self, states: Iterable[SampledState] = ()) -> None:
        self.states = list(states)

    def add(self, at: float, rounds: int, by: str, completions: Mapping[str, str]) -> None:
        """Add the samples of a state, unless samples of a later state are known; replace samples of the same round."""
        if self.states and self.states[-1].rounds > rounds:
            return
        if self.states and self.states[-1].rounds == rounds:
            self.states.pop()
        some = [*completions.items()][:MOST_PROMPTS]
        texts = {str(prompt)[:MOST_CHARACTERS]: str(text)[:MOST_CHARACTERS] for prompt, text in some}
        self.states.append(SampledState(at, rounds, by, texts))
        if len(self.states) > MOST_SAMPLED:
            half = len(self.states) // 2
            self.states[:half] = self.states[:half:2]

    def cut(self, rounds: int) -> None:
        """Drop the samples of all states after more than `rounds` rounds."""
        while self.states and self.states[-1].rounds > rounds:
            self.states.pop()

    def to_lists(self) -> list[list[Any]]:
        """Return each state as a list of its fields."""
        return [[each.at, each.rounds, each.by, dict(each.completions)] for each in self.states]

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[Any]]) -> Self:
        """Return the history with these states.  Raises TypeError, ValueError, AttributeError."""
        found = cls()
        for at, rounds, by, completions in lists[-MOST_SAMPLED:]:
            found.add(float(at), int(rounds), str(by), completions)
        return found


MOST_STEPS_BACK = 100
"""Number of steps back that are kept, the last ones."""


@dataclass(frozen=True, slots=True)
class StepBack:
    """A time at which a peer gave up `abandoned` rounds, and went back to the state after `rounds` rounds.

    at: seconds since 1970.  tokens: number of tokens that all members had read until that state.
    """

    at: float
    rounds: int
    tokens: int
    abandoned: int

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[float]]) -> list[Self]:
        """Return the steps back in lists of their fields.  Raises TypeError, ValueError."""
        found = [
            cls(float(at), int(rounds), int(tokens), int(lost)) for at, rounds, tokens, lost in lists[-MOST_STEPS_BACK:]
        ]
        if not all(0 <= each.at <= LATEST_S and 0 <= each.abandoned <= MOST for each in found):
            raise ValueError("no time of a step back")
        return found


@dataclass(frozen=True, slots=True)
class RewardedAnswer:
    """Answer of a model to the problem of a rollout, with its reward."""

    reward: float
    prompt: str
    text: str


@dataclass(frozen=True, slots=True)
class AnswersOfRound:
    """Best answer among the rollouts from which a trainer learned in a round, and one with the median reward."""

    round: int
    best: RewardedAnswer
    typical: RewardedAnswer

    @classmethod
    def read(cls, round: int, given: Sequence[Any]) -> Self | None:
        """Return the answers in an event; None if it has none, or none of this form."""
        try:
            best, typical = (
                RewardedAnswer(
                    float(each["reward"]), str(each["prompt"])[:MOST_CHARACTERS], str(each["text"])[:MOST_CHARACTERS]
                )
                for each in given
            )
        except (TypeError, KeyError, ValueError, OverflowError):
            return None
        return cls(int(round), best, typical) if math.isfinite(best.reward) and math.isfinite(typical.reward) else None

    def to_list(self) -> list[Any]:
        """Return the round, and the answers as in an event."""
        return [self.round, [asdict(self.best), asdict(self.typical)]]


@dataclass
class RunCurves:
    """Losses, samples and answers of a run.

    training: losses of each round's members.  held_out: held-out losses of the states.  by_source: the held-out losses by
    source.  samples: samples of the states.  answers: answers of the last round in which this trainer learned from rollouts.
    steps_back: times at which rounds were given up; the other fields have nothing of those rounds.
    """

    training: Series = field(default_factory=Series)
    held_out: Series = field(default_factory=Series)
    by_source: dict[str, Series] = field(default_factory=dict)
    samples: SampleHistory = field(default_factory=SampleHistory)
    answers: AnswersOfRound | None = None
    steps_back: list[StepBack] = field(default_factory=list)

    def apply(self, stamped: Stamped) -> None:
        """Fold an event into the curves."""
        match stamped.event:
            case ev.RoundCommitted(number, _, _, tokens, loss, run_tokens=total):
                before = self.training.points[-1].tokens if self.training.points else 0  # older peers send no total
                self.training.add(LossPoint(stamped.at, number + 1, total or before + tokens, loss))
            case ev.EvalLoss(rounds, loss, _, losses):
                self._measure(stamped.at, rounds, loss, losses)
            case ev.SamplesWritten(rounds, by, completions):
                self.samples.add(stamped.at, rounds, by, completions)
            case ev.RolloutsUsed(number, answers=answers):
                self.answers = AnswersOfRound.read(number, answers) or self.answers
            case ev.RolledBack(rounds, abandoned):
                self._go_back(stamped.at, rounds, abandoned)

    def _go_back(self, at: float, rounds: int, abandoned: int) -> None:
        """Drop all values of rounds that were given up, and add the step back."""
        for series in (self.training, self.held_out, *self.by_source.values()):
            series.cut(rounds)
        self.samples.cut(rounds)
        if self.answers is not None and self.answers.round >= rounds:
            self.answers = None
        if all((known.at, known.rounds) != (at, rounds) for known in self.steps_back):  # the log may be read again
            self.steps_back.append(StepBack(at, rounds, self._tokens_after(rounds), abandoned))
            del self.steps_back[:-MOST_STEPS_BACK]

    def _measure(self, at: float, rounds: int, loss: float, losses: Mapping[str, float]) -> None:
        """Add the held-out losses of the state after `rounds` rounds, unless losses of a later state are known."""
        if self.held_out.points and rounds < self.held_out.points[-1].rounds:
            return
        tokens = self._tokens_after(rounds)
        self.held_out.add(LossPoint(at, rounds, tokens, loss))
        for name, each in losses.items():
            if name in self.by_source or len(self.by_source) < MOST_SOURCES:
                self.by_source.setdefault(name, Series()).add(LossPoint(at, rounds, tokens, each))

    def to_fields(self) -> dict[str, Any]:
        """Return the map on the control socket: each point is a list."""
        return {
            "training": self.training.to_lists(),
            "held_out": self.held_out.to_lists(),
            "by_source": {name: series.to_lists() for name, series in self.by_source.items()},
            "samples": self.samples.to_lists(),
            "answers": self.answers.to_list() if self.answers is not None else None,
            "steps_back": [list(astuple(each)) for each in self.steps_back],
        }

    @classmethod
    def from_fields(cls, given: Any) -> Self:
        """Return the curves in such a map.  Raises ValueError."""
        try:
            sources = {
                str(name): Series.from_lists(lists) for name, lists in list(given["by_source"].items())[:MOST_SOURCES]
            }
            samples = SampleHistory.from_lists(given.get("samples", ()))
            training, held_out = Series.from_lists(given["training"]), Series.from_lists(given["held_out"])
            answers = AnswersOfRound.read(*given["answers"]) if given.get("answers") else None
            return cls(training, held_out, sources, samples, answers, StepBack.from_lists(given.get("steps_back", ())))
        except (TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"no curves: {error}") from error

    def copy(self) -> RunCurves:
        """Return an independent copy."""
        sources = {name: Series(series.points) for name, series in self.by_source.items()}
        samples = SampleHistory(self.samples.states)
        training, held_out = Series(self.training.points), Series(self.held_out.points)
        return RunCurves(training, held_out, sources, samples, self.answers, [*self.steps_back])

    def _tokens_after(self, rounds: int) -> int:
        """Return the tokens of the run after this many rounds, as far as the training curve has them."""
        for point in reversed(self.training.points):
            if point.rounds <= rounds:
                return point.tokens
        return 0
