"""An arithmetic trainer that also makes and verifies rollouts: some bytes each, with a proof that the weights give.

A rollout of (version, peer, problem, copy) is a hash of these and of the version's bf16 weights, its proof a hash of that
and the weights.  So there is one right batch for a task, and whoever lacks the weights cannot make it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import trio

from protocol.chain.leases import Ranges
from protocol.chain.progress import OWN_PROBLEMS
from protocol.formats.bets import BETS
from protocol.formats.results import RatedAnswer
from protocol.run.manifest import RunManifest
from protocol.trainer_link import (
    ComputeTask,
    Contribution,
    Generated,
    Progress,
    RolloutTask,
    RolloutVerdict,
    SharedTaskFile,
    Tried,
)
from protocol.wire.hashes import hash_bytes
from protocol.wire.rollouts import Reason, Verdict
from tests.simulation.arithmetic_trainer import ArithmeticTrainer

GENERATE_S = 0.02
"""Of one rollout."""
VERIFY_S = 0.002
KEPT = 2
"""Versions beyond `max_async`."""

Entry = dict[str, int | str]
"""A rollout.  deviation: 1 of a cheat within all tolerances, else 0."""
HONEST_GROWS, DEVIATION_GROWS = -0.01, 9.0
"""Growth of the bets against a maker for each of its rollouts."""


class RolloutTrainer(ArithmeticTrainer):
    """Implements `protocol.trainer_link.RolloutLink`.  on_learn: told the bytes of each batch that was learned from."""

    def __init__(
        self,
        manifest: RunManifest,
        seed: int,
        step_s: float,
        on_contribution: Callable[[memoryview, Ranges | None], None],
        *,
        on_learn: Callable[[int, list[bytes]], None] = lambda round, batches: None,
    ) -> None:
        super().__init__(manifest, seed, step_s, on_contribution)
        assert manifest.rl is not None
        self._rl, self._on_learn = manifest.rl, on_learn
        self._weights: dict[int, bytes] = {}
        self._busy = False
        self.tasks: dict[int, tuple[int, list[bytes]]] = {}
        """Sets that it was given: by their first problem the number of tasks, and these."""
        self.compared: dict[int, bytes] = {}
        """The reference weights that it was given, by round, in a run with a KL term."""

    async def keep_version(self, version: int, theta: memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self._alone()
        before = {kept: its for kept, its in self._weights.items() if kept < version}
        self._weights = before | {version: weights_of(theta)}
        for old in sorted(self._weights)[: -self._rl.max_async - KEPT]:
            del self._weights[old]
        self._busy = False

    async def use_tasks(self, sets: Sequence[SharedTaskFile]) -> Mapping[int, str]:
        await trio.lowlevel.checkpoint()
        self._alone()
        self.tasks = {each.first: (each.count, each.path.read_bytes().splitlines()) for each in sets}
        self._busy = False
        return {}

    async def compute(
        self,
        task: ComputeTask,
        theta: memoryview,
        on_progress: Callable[[Progress], None],
        applied: trio.Event | None = None,
    ) -> Contribution:
        self._alone()
        try:
            batches = [path.read_bytes() for path in task.rollouts]
            if task.reference is not None:
                self.compared[task.round] = task.reference.read_bytes()
            assert bool(task.reference) == bool(task.rollouts and self._rl.kl_weight)
            tried = self._tried(batches)
            contribution = await super().compute(task, theta, on_progress, applied)
        finally:
            self._busy = False
        self._on_learn(task.round, batches)
        answers = (RatedAnswer(1.0, "What is 2 + 2?\n", "4\x1b[2J"), RatedAnswer(0.5, "sort\u202e", "x" * 999))
        return replace(contribution, tried=tried, answers=answers if batches else ())

    def _tried(self, batches: list[bytes]) -> tuple[Tried, ...]:
        """Half of the rollouts solve a task, none one that says `never`; of one that says `maybe` no score is repeatable."""
        counted = Counter(int(entry["problem"]) for data in batches for entry in json.loads(data))
        crowd = {problem: count for problem, count in counted.items() if problem >= OWN_PROBLEMS}
        return tuple(self._of_task(problem, count) for problem, count in crowd.items())

    def _of_task(self, problem: int, count: int) -> Tried:
        task = self._task_of(problem)
        return Tried(problem, count, 0 if b"never" in task else count // 2, 1, int(b"maybe" not in task))

    def _task_of(self, problem: int) -> bytes:
        """The line of a task; a process that was not given its set would fail here."""
        for first, (count, lines) in self.tasks.items():
            if first <= problem < first + count:
                return lines[problem - first]
        raise AssertionError(f"problem {problem} is of a set that the trainer process was not given")

    def _check_tasks(self, problems: tuple[int, ...]) -> None:
        for problem in problems:
            if problem >= OWN_PROBLEMS:
                self._task_of(problem)

    async def generate(self, task: RolloutTask, path: Path, on_progress: Callable[[int, int], None]) -> Generated:
        self._alone()
        try:
            await self._resumed.wait()
            self._check_tasks(task.problems)
            deaths, count = self._deaths, len(task.problems) * task.copies
            await trio.sleep(GENERATE_S * count)
            self._die_if_killed(deaths)
            path.write_bytes(self.batch(task))
        finally:
            self._busy = False
        on_progress(count, count)
        return Generated(count, 8 * count)

    def batch(self, task: RolloutTask) -> bytes:
        """What an honest peer makes; to be overridden."""
        return right_batch(task, self._weights[task.version])

    async def verify(self, task: RolloutTask, path: Path) -> tuple[RolloutVerdict, ...]:
        self._alone()
        try:
            self._check_tasks(task.problems)
            await self._resumed.wait()
            deaths, count = self._deaths, len(task.problems) * task.copies
            await trio.sleep(VERIFY_S * count)
            self._die_if_killed(deaths)
            return self.verdicts(task, path.read_bytes())
        finally:
            self._busy = False

    def verdicts(self, task: RolloutTask, data: bytes) -> tuple[RolloutVerdict, ...]:
        """What an honest peer finds; to be overridden."""
        found = verdicts_on(task, data, self._weights[task.version])
        problems = [problem for problem in task.problems for _ in range(task.copies)]
        return tuple(
            replace(each, exact=problem < OWN_PROBLEMS or b"program" not in self._task_of(problem))
            for each, problem in zip(found, problems, strict=True)
        )

    def _alone(self) -> None:
        assert not self._busy, "the trainer process was asked for two things at once"
        self._busy = True


def weights_of(theta: memoryview) -> bytes:
    """A hash of the weights in bf16."""
    return hash_bytes("weights", (np.frombuffer(theta, np.uint32) >> 16).astype(np.uint16).tobytes())


def right_batch(task: RolloutTask, weights: bytes) -> bytes:
    """The one batch that an honest peer makes of this task."""
    entries = [_entry(task, weights, problem, copy) for problem in task.problems for copy in range(task.copies)]
    return json.dumps(entries).encode()


def _entry(task: RolloutTask, weights: bytes, problem: int, copy: int) -> Entry:
    key = task.run + f"{task.version} {task.peer} {task.number} {problem} {copy}".encode()
    output = hash_bytes("output", key + weights)
    proof = hash_bytes("proof", output + weights)
    return {"problem": problem, "copy": copy, "output": output[:8].hex(), "proof": proof[:8].hex(), "deviation": 0}


def verdicts_on(task: RolloutTask, data: bytes, weights: bytes) -> tuple[RolloutVerdict, ...]:
    """What an honest peer finds in these bytes."""
    right, count = json.loads(right_batch(task, weights)), len(task.problems) * task.copies
    try:
        entries = json.loads(data)
        if len(entries) != count or any({*entry} != {*right[0]} for entry in entries):
            raise ValueError("not a batch")
    except (ValueError, TypeError, AttributeError):
        return (_rejected(Reason.MALFORMED),) * count
    return tuple(_verdict(entry, wanted) for entry, wanted in zip(entries, right, strict=True))


def _verdict(entry: Entry, wanted: Entry) -> RolloutVerdict:
    if (entry["problem"], entry["copy"]) != (wanted["problem"], wanted["copy"]):
        return _rejected(Reason.WRONG_PROMPT)
    if entry["proof"] != wanted["proof"]:
        return _rejected(Reason.WRONG_COMPUTATION)
    if entry["output"] != wanted["output"]:
        return _rejected(Reason.BAD_SAMPLING)
    growth = (DEVIATION_GROWS if entry["deviation"] else HONEST_GROWS,) * BETS
    return RolloutVerdict(Verdict.ACCEPT, Reason.NONE, "", 1.0, 8, exact=True, growth=growth)


def _rejected(reason: Reason) -> RolloutVerdict:
    return RolloutVerdict(Verdict.REJECT, reason, reason.value, None, 8)
