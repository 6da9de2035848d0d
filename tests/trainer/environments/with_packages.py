"""The environments that need packages, against the real ones.  Not a part of the tests that always run.

    make venv; .venv/bin/python -m pip install -e '.[rl]'
    python -m tests.trainer.environments.with_packages [--all]

Checks maths tasks (math-verify), reasoning-gym tasks and, where it is installed, a small taskset of `verifiers`.  `--all`
opens every family of reasoning-gym, which takes minutes.  Prints a line for each check, and ends with 1 if one failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.environments.packages import PackageProgram, ReasoningGym, VerifiersTasks
from trainer.environments.records import MathsAnswer
from trainer.environments.verification import AnswerVerifier

SAME = [
    ("\\frac{1}{2}", "0.5"), ("\\frac{1}{2}", "So \\boxed{\\dfrac{1}{2}}."), ("x^2+1", "1 + x^2"), ("(1,2)", "(1, 2)"),
    ("\\sqrt{8}", "2\\sqrt{2}"), ("42", "Answer: 42"), ("10\\%", "10 \\text{ percent}"), ("90", "x=90^\\circ"),
    ("5\\pi \\text{ cm}", "\\pi 5\\mathrm{~cm}"), ("\\{1,2\\}", "\\{2,1\\}"),
]  # fmt: skip
OTHER = [
    ("\\frac{1}{2}", "0.6"), ("\\frac{1}{2}", "\\boxed{\\dfrac{2}{4}}"), ("x^2+1", "x^2-1"), ("(1,2)", "(2,1)"), ("42", ""),
    ("42", "41 or 42"), ("42", "\\boxed{}"),
    ("42", "9^{9^{9^{9^{9}}}}"), ("42", "__import__('os')._exit(0)"), ("42", "\\frac{" * 300), ("42", "}\\boxed{42"),
    ("5", "4=5"), ("5", "4\\to 5"), ("391", "17*23"), ("5 \\text{ km}", "5 \\text{ m}"), ("10\\%", "0.1"),
    ("Monday", "dayMon"), ("1,2", "1,2,3"), ("5", "4,5"), ("5", "\\{4,5\\}"), ("5", "4 \\text{ or } 5"),
    ("5\\pi \\text{ cm}", "5\\pi"),
]  # fmt: skip
NO_ANSWERS = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
FORGED = "[__import__('os').write(3, b'{\"score\": 1.0}'), __import__('os')._exit(0)]"
TASKSET = """
import verifiers.v1 as vf

class SumData(vf.TaskData):
    total: int

class SumTask(vf.Task[SumData]):
    @vf.reward
    async def right(self, trace) -> float:
        return float(trace.last_reply == str(self.data.total))

class Sums(vf.Taskset[SumTask]):
    def load(self):
        for n in range(20):
            yield SumTask(SumData(prompt=f"add {n}+{n + 1}", total=2 * n + 1), self.config.task)

__all__ = ["Sums"]
"""
WITH_TOOLS = """
import verifiers.v1 as vf

class ShelfData(vf.TaskData):
    value: str

class Shelf(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "shelf"

    async def setup_task(self, task) -> None:
        self.values, self.asked = {"k": task.value}, 0

    @vf.tool
    async def look(self, key: str, times: int = 1) -> dict[str, str | int]:
        \"\"\"Return the value of a key.\"\"\"
        self.asked += 1
        return {"value": self.values[key] * times, "asked": self.asked}

class ShelfTask(vf.Task[ShelfData]):
    @classmethod
    def toolsets(cls, config):
        return [Shelf(vf.ToolsetConfig())]

    @vf.reward
    async def right(self, trace) -> float:
        tools = [node.message for node in trace.nodes if node.message.role == "tool"]
        return 0.5 * (trace.last_reply == self.data.value) + 0.5 * (len(tools) == 2)

class Shelves(vf.Taskset[ShelfTask]):
    def load(self):
        for n in range(3):
            yield ShelfTask(ShelfData(prompt="k?", value=f"v{n}"), self.config.task)

__all__ = ["Shelves"]

if __name__ == "__main__":
    Shelf.run()
"""
MARK, REWARD, TASK = "    @vf.reward", "async def right(self, trace)", "class SumTask(vf.Task[SumData])"
REFUSED = [
    (REWARD, "async def right(self, trace, runtime)", "no reward that follows from the text alone"),
    (MARK, f"    async def setup(self, trace, runtime): pass\n\n{MARK}", "runs before or after a conversation"),
    (MARK, f"    async def finalize(self, trace, runtime): pass\n\n{MARK}", "runs before or after a conversation"),
    (MARK, f"    @vf.stop\n    async def enough(self, trace: vf.Trace): pass\n\n{MARK}", "stops or changes conversations"),
    (MARK, f"    @vf.intercept\n    async def change(self, request): pass\n\n{MARK}", "stops or changes conversations"),
    (TASK, "class Memory(vf.State): pass\n\nclass SumTask(vf.Task[SumData, Memory])", "has a state"),
]
"""Parts of `TASKSET`, what takes their places, and why the taskset is then refused."""


def maths() -> None:
    verifier = AnswerVerifier(needs_code=False, needs_maths=True)
    wrong = [(right, said) for right, said in SAME if verifier.score(MathsAnswer(right), said) != 1.0]
    wrong += [(right, said) for right, said in OTHER if verifier.score(MathsAnswer(right), said) != 0.0]
    assert not wrong, wrong


def reasoning_gym() -> None:
    one, other = ReasoningGym("chain_sum", seed=3), ReasoningGym("chain_sum", seed=3)
    assert [one.problem(index) for index in (0, 20, 100_000)] == [other.problem(index) for index in (0, 20, 100_000)]
    problem = one.problem(20)
    assert one.score(problem, [f"I say <answer>{problem.answer}</answer>"]) == 1.0
    assert one.score(problem, ["<answer>none</answer>"]) < 0.1
    spiral = ReasoningGym("spiral_matrix")
    assert spiral.score(spiral.problem(0), [FORGED]) < 0.1
    countdown = ReasoningGym("countdown")
    problem = countdown.problem(0)
    assert countdown.score(problem, [f"({problem.answer}) + 0"]) < 1.0
    assert countdown.score(problem, [f"({problem.answer})"]) == 1.0
    try:
        ReasoningGym("chain_sums")
    except ValueError as error:
        assert "refuses 'chain_sums'" in str(error)


def every_family() -> None:
    listing = "from reasoning_gym.factory import DATASETS\ndef answer(question): return sorted(DATASETS)"
    failed = []
    for name in sorted(set(PackageProgram(listing).ask(None)) - {"composite"}):
        try:
            environment = ReasoningGym(name, seed=7, size=500)
            problem = environment.problem(1)
            has_answer = problem.answer is not None
            score = environment.score(problem, [f"<answer>{problem.answer} </answer>" if has_answer else "?"])
            fine = has_answer != (name in NO_ANSWERS) and (score == 1.0 or not has_answer)
        except ValueError as error:
            print(f"  {name}: {error}")
            fine = False
        if not fine:
            failed.append(name)
    assert not failed, failed


def verifiers() -> None:
    with _installed("manyhands_toy_sums", TASKSET):
        environment = VerifiersTasks("manyhands-toy-sums")
        assert environment.size == 20
        problem = environment.problem(3)
        assert problem.prompt == "add 3+4"
        assert [environment.score(problem, [said]) for said in ("7", "8")] == [1.0, 0.0]
    for number, (part, other, reason) in enumerate(REFUSED):
        with _installed(f"manyhands_toy_box{number}", TASKSET.replace(part, other)):
            assert reason in _refusal(f"manyhands-toy-box{number}"), other
    of_all = "    @classmethod\n    def toolsets(cls, config): return [Shelf(vf.ToolsetConfig())]\n\n    def load"
    with _installed("manyhands_toy_desk", WITH_TOOLS.replace("    def load", of_all)):
        assert "from one conversation to the next" in _refusal("manyhands-toy-desk")
    with _installed("manyhands_toy_shelf", WITH_TOOLS):
        environment = VerifiersTasks("manyhands-toy-shelf", turns=3)
        problem = environment.problem(2)
        assert environment.max_turns == 3 and '"name": "shelf_look"' in problem.prompt, problem.prompt
        first, second = (_call("shelf_look", key="k", **more) for more in ({}, {"times": 2}))  # type: ignore[arg-type]
        replies = [environment.reply(problem, turns) for turns in ([first], [first, second], [first, second, "v2"])]
        assert replies == [
            '<tool_response>\n{\n  "value": "v2",\n  "asked": 1\n}\n</tool_response>\n',
            '<tool_response>\n{\n  "value": "v2v2",\n  "asked": 2\n}\n</tool_response>\n',
            None,
        ], replies
        wrong = [_call("shelf_look", key="x"), _call("shelf_look"), _call("shelf_look", key="k", times="x"), _call("look")]
        errors = ["tool look: 'x'", "Field required", "should be a valid integer", "there is no such function"]
        for turn, named in zip(wrong, errors, strict=True):
            assert named in str(environment.reply(problem, [turn])), turn
        scores = [
            environment.score(problem, turns)
            for turns in ([first, second, "v2"], ["v2"], [first, second, "v1"], [first] * 4)
        ]
        assert scores == [1.0, 0.5, 0.5, 0.0], scores


def _call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def _refusal(taskset: str) -> str:
    try:
        VerifiersTasks(taskset)
    except ValueError as error:
        return str(error)
    raise AssertionError(f"{taskset} was taken")


@contextmanager
def _installed(module: str, text: str) -> Iterator[None]:
    path = Path(sysconfig.get_paths()["purelib"]) / f"{module}.py"
    path.write_text(text)
    try:
        yield
    finally:
        path.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    checks: dict[str, tuple[str, Callable[[], None]]] = {
        "maths": ("math_verify", maths),
        "reasoning-gym": ("reasoning_gym", reasoning_gym),
        "verifiers": ("verifiers", verifiers),
    }
    if arguments.all:
        checks["every family of reasoning-gym"] = ("reasoning_gym", every_family)
    failures = 0
    for name, (module, check) in checks.items():
        if importlib.util.find_spec(module) is None:
            print(f"{name}: not installed")
            continue
        try:
            check()
            print(f"{name}: holds")
        except AssertionError as error:
            failures += 1
            print(f"{name}: FAILED {error}")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
