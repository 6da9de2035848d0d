"""Tasks of `verifiers` tasksets (the extra `rl`, its v1 interface): packages of tasks with rewards that others publish.

A suitable taskset has plain texts, one turn each, and scores from the text alone.  Tasksets that need tools, a container, a
judge or a simulated user are refused: no other peer could recompute their rewards from a rollout.  A taskset that downloads
its data does not load, because it runs in the sandbox like everything that reads a model's text.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainer.environments.environment import Environment, Problem
from trainer.environments.packages import MAKING, PackageProgram, installed_version
from trainer.environments.reasoning_gym import in_range

PACKAGE = ("verifiers", "verifiers", "verifiers tasksets")
"""Arguments of `installed_version`."""
MAX_TASKS = 10_000
"""Most tasks taken from a taskset; some tasksets never end."""

PROGRAM = """
import asyncio, inspect, itertools
import verifiers.v1 as vf
from verifiers.v1.graph import MessageNode
from verifiers.v1.types import AssistantMessage, SystemMessage, UserMessage
from verifiers.v1.utils.loaders import taskset_class, taskset_config_type

def tasks(question):
    name = question["taskset"]
    return iter(taskset_class(name)(taskset_config_type(name)(id=name)))

def fault(task):
    if task.NEEDS_CONTAINER:
        return "needs a container"
    if task.toolsets(task.config):
        return "needs tools"
    if task.plugged_judges():
        return "needs a judge"
    if not isinstance(task.data.prompt, str):
        return "has no prompt that is one text"
    rewards = task.hooks("reward")
    if not rewards or any("runtime" in inspect.signature(reward).parameters for reward in rewards):
        return "has no reward that follows from the text alone"
    return None

async def score(task, said):
    texts = [SystemMessage(content=task.data.system_prompt)] if task.data.system_prompt else []
    texts.append(UserMessage(content=task.data.prompt))
    nodes = [MessageNode(message=text, parent=place - 1 if place else None) for place, text in enumerate(texts)]
    nodes.append(MessageNode(message=AssistantMessage(content=said), parent=len(nodes) - 1, sampled=True))
    about = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    trace = vf.Trace(task=about, agent=vf.AgentInfo(config=vf.AgentConfig()), nodes=nodes, ok=True, is_completed=True)
    await task.score(trace)
    return trace.reward

def answer(question):
    if "number" not in question:
        prompts = []
        for task in itertools.islice(tasks(question), question["most"]):
            reason = fault(task)
            if reason:
                return {"refused": f"task {len(prompts)} {reason}"}
            prompts.append("\\n".join(filter(None, (task.data.system_prompt, task.data.prompt))))
        return {"prompts": prompts}
    task = next(itertools.islice(tasks(question), question["number"], None))
    guard()
    return {"score": float(asyncio.run(score(task, question["said"])))}
"""


class VerifiersTasks(Environment):
    """The first `MAX_TASKS` tasks of an installed taskset, with its default settings."""

    def __init__(self, taskset: str) -> None:
        """Load a taskset; raises ValueError if it is not installed, does not load, or does not fit."""
        self.version = f"verifiers {installed_version(*PACKAGE)} {taskset}"
        self._taskset = taskset
        self._scorer = PackageProgram(PROGRAM)
        answer = PackageProgram(PROGRAM, MAKING).ask({"taskset": taskset, "most": MAX_TASKS})
        if "refused" in answer:
            raise ValueError(f"the taskset {taskset} does not fit: {answer['refused']}")
        self._prompts: list[str] = answer["prompts"]
        if not self._prompts:
            raise ValueError(f"the taskset {taskset} has no tasks")

    @property
    def size(self) -> int:
        return len(self._prompts)

    def problem(self, index: int) -> Problem:
        return Problem(index, self._prompts[self._checked(index)], None)

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        if len(turns) != 1:
            return 0.0
        try:
            answer = self._scorer.ask({"taskset": self._taskset, "number": problem.index, "said": turns[0]})
            return in_range(answer["score"])
        except (ValueError, KeyError, TypeError):
            return 0.0

    def solution(self, problem: Problem) -> tuple[str, ...]:
        raise ValueError("tasks of verifiers name no solutions, so they give no examples")
