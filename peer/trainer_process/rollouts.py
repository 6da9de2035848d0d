"""The trainer process of a run with rollouts: it keeps versions of the weights too, and makes and verifies batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from peer.trainer_process.process import TrainerProcess
from protocol.trainer_link import Generated, GenerateTask, RolloutVerdict, TaskFile, VerifyTask
from protocol.wire.rollouts import Reason, Verdict


class RolloutProcess(TrainerProcess):
    """A `protocol.trainer_link.RolloutLink` to a real process."""

    async def keep_version(self, version: int, theta: memoryview) -> None:
        """As `RolloutLink.keep_version`."""
        self._check_theta(theta)
        await self._ask_alone("keep_version", version=version)

    async def use_tasks(self, sets: Sequence[TaskFile]) -> Mapping[int, str]:
        """As `RolloutLink.use_tasks`."""
        answer = await self._ask_alone("use_tasks", sets=[{**vars(each), "path": str(each.path)} for each in sets])
        return {first: reason for first, reason in answer["unusable"]}

    async def generate(self, task: GenerateTask, path: Path, on_progress: Callable[[int, int], None]) -> Generated:
        """As `RolloutLink.generate`."""

        def progress(message: dict[str, Any]) -> None:
            on_progress(message["done"], message["total"])

        answer = await self._ask_alone("generate", progress, task=_fields(task), path=str(path))
        self._worked()
        return Generated(answer["rollouts"], answer["tokens"])

    async def verify(self, task: VerifyTask, path: Path) -> tuple[RolloutVerdict, ...]:
        """As `RolloutLink.verify`."""
        told: list[dict[str, Any]] = []
        await self.until_ready()  # an end before it has the bytes is its own
        self._at_risk = True
        try:
            await self._ask_alone(
                "verify", lambda message: told.extend(message["verdicts"]), task=_fields(task), path=str(path)
            )
        finally:
            self._at_risk = False
        self._worked()
        return tuple(
            RolloutVerdict(
                _verdict(each),
                Reason(each["reason"]),
                each["detail"],
                each["reward"],
                each["tokens"],
                each["exact"],
                each["sure"],
            )
            for each in told
        )


def _verdict(told: dict[str, Any]) -> Verdict:
    if told["reason"]:
        return Verdict.REJECT
    return Verdict.ACCEPT if told["reward"] is not None else Verdict.INCONCLUSIVE


def _fields(task: GenerateTask | VerifyTask) -> dict[str, Any]:
    """Of a batch, for the trainer."""
    return {**vars(task), "run": task.run.hex()}
