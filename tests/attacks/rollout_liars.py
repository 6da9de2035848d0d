"""Rollout peers and validators that lie: real nodes whose trainer process cheats."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from protocol.trainer_link import Generated, RolloutTask, RolloutVerdict
from protocol.wire.rollouts import Reason, Verdict
from tests.simulation.rollout_trainer import RolloutTrainer, right_batch

GOOD = RolloutVerdict(Verdict.ACCEPT, Reason.NONE, "", 1.0, 8)
BAD = RolloutVerdict(Verdict.REJECT, Reason.WRONG_COMPUTATION, "it says so", None, 8)


class Cheat(RolloutTrainer):
    """Makes rollouts that no honest peer makes."""

    def batch(self, task: RolloutTask) -> bytes:
        entries: list[dict[str, Any]] = json.loads(right_batch(task, self._weights[task.version]))
        return self.spoil(task, entries)

    def spoil(self, task: RolloutTask, entries: list[dict[str, Any]]) -> bytes:
        """The bytes that it makes of the right ones."""
        raise NotImplementedError


class OtherWeights(Cheat):
    """Generates with other weights than the version's."""

    def spoil(self, task: RolloutTask, entries: list[dict[str, Any]]) -> bytes:
        return right_batch(task, b"a smaller model")


class OneBad(Cheat):
    """One rollout of each batch is made up, with a proof that fits what it says."""

    def spoil(self, task: RolloutTask, entries: list[dict[str, Any]]) -> bytes:
        entries[-1]["output"] = "00" * 8
        return json.dumps(entries).encode()


class Deviates(Cheat):
    """Deviates within all tolerances, in every rollout."""

    def spoil(self, task: RolloutTask, entries: list[dict[str, Any]]) -> bytes:
        return json.dumps([{**entry, "deviation": 1} for entry in entries]).encode()


class OtherProblems(Cheat):
    """Solves the problem that it likes best."""

    def spoil(self, task: RolloutTask, entries: list[dict[str, Any]]) -> bytes:
        return json.dumps([{**entry, "problem": 1} for entry in entries]).encode()


class Rubbish(Cheat):
    """Sends bytes that are no rollouts."""

    def spoil(self, task: RolloutTask, entries: list[dict[str, Any]]) -> bytes:
        return b"\xff" * 3000


class Overstates(RolloutTrainer):
    """States more tokens than it made, for they are credited."""

    async def generate(self, task: RolloutTask, path: Path, on_progress: Callable[[int, int], None]) -> Generated:
        made = await super().generate(task, path, on_progress)
        return Generated(made.rollouts, made.tokens + 1)


class AcceptsAll(RolloutTrainer):
    """A validator that verifies nothing."""

    def verdicts(self, task: RolloutTask, data: bytes) -> tuple[RolloutVerdict, ...]:
        return (GOOD,) * (len(task.problems) * task.copies)


class FalseScores(RolloutTrainer):
    """A validator that says of each right answer that it is worth nothing."""

    def verdicts(self, task: RolloutTask, data: bytes) -> tuple[RolloutVerdict, ...]:
        return tuple(replace(each, reward=each.reward and 0.0) for each in super().verdicts(task, data))


class FalseScoresOfPrograms(RolloutTrainer):
    """The same, of those alone that another computer may come to."""

    def verdicts(self, task: RolloutTask, data: bytes) -> tuple[RolloutVerdict, ...]:
        found = super().verdicts(task, data)
        return tuple(each if each.exact else replace(each, reward=each.reward and 0.0) for each in found)


class RejectsAll(RolloutTrainer):
    """Accuses everybody."""

    def verdicts(self, task: RolloutTask, data: bytes) -> tuple[RolloutVerdict, ...]:
        return (BAD,) * (len(task.problems) * task.copies)


class Contrary(RolloutTrainer):
    """Says the contrary of what it finds."""

    def verdicts(self, task: RolloutTask, data: bytes) -> tuple[RolloutVerdict, ...]:
        found = super().verdicts(task, data)
        return tuple(BAD if each.verdict is Verdict.ACCEPT else GOOD for each in found)


class Turncoat(RolloutTrainer):
    """Honest until it has a vote and a good name, then accuses everybody."""

    def verdicts(self, task: RolloutTask, data: bytes) -> tuple[RolloutVerdict, ...]:
        found = super().verdicts(task, data)
        return (BAD,) * len(found) if task.version >= TURNS_AT else found


TURNS_AT = 5
