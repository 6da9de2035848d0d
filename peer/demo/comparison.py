"""Comparison of a demo's state at the start with the one at the end, over the same problems.

The rewards of a version's rollouts cannot show a small gain: each version has problems of its own, so between two of them
chance alone makes a difference.  Here both states answer the same problems with the same noise, and what is uncertain is
only the mean of the differences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True)
class Sample:
    """An answer to show.  prompt, answer: texts of a model or a stranger, whatever they hold.  score: 0 to 1."""

    prompt: str
    answer: str
    score: float

    @property
    def verdict(self) -> str:
        """A word or two: right, wrong, or the score in between."""
        return {0.0: "wrong", 1.0: "right"}.get(self.score, f"score {self.score:.2f}")


@dataclass(frozen=True)
class Measured:
    """The answers of one state.  rounds: of the run that led to it.  scores: of each problem, mean.  rollouts: answers."""

    rounds: int
    scores: tuple[float, ...]
    rollouts: int
    sample: Sample

    @property
    def mean(self) -> float:
        """Mean score, 0 to 1."""
        return fmean(self.scores)


@dataclass(frozen=True)
class Comparison:
    """Two states that have answered the same problems."""

    start: Measured
    end: Measured

    @property
    def gain(self) -> float:
        """Mean score at the end, less that at the start."""
        return self.end.mean - self.start.mean

    @property
    def error(self) -> float:
        """Standard error of the gain: of the mean, over problems, of the differences; 0 for a single problem."""
        gains = [end - start for start, end in zip(self.start.scores, self.end.scores, strict=True)]
        return stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
