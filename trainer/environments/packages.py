"""Installed packages that score a model's text, isolated from the peer's own process.

Scoring libraries evaluate parts of a model's text as Python. reasoning-gym and sympy do so in a scope where their own
variables, including the right answer, are visible. So they run in the sandbox, take a question in JSON, and answer in JSON.
While they score, `GUARD` lets Python compile source that comes from no file only if it is a literal: numbers, texts, lists
and arithmetic on numbers, without any name. sympy's parser turns the names in a text into calls of its own classes before it
evaluates them. For this parser, the guard also allows calls of a few mathematical functions and names of one letter. The
size and depth of both kinds of source are bounded. No right answer needs more.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from trainer.environments.environment import Environment, Problem
from trainer.environments.sandbox import Limits, Sandbox
from trainer.environments.tools import (
    REPLIES_KEPT,
    ToolLimits,
    calls_in,
    function_schema,
    prompt_with_tools,
    response,
    without_calls,
)
from trainer.extras import install_command

MAKING = Limits(cpu_s=300, wall_s=1200.0, memory_bytes=4 << 30, file_bytes=64 << 20, output_bytes=64 << 20)
"""Limits for making problems from the run's own settings.  NumPy alone reserves a gibibyte of address space."""
SCORING = Limits(cpu_s=20, wall_s=120.0, memory_bytes=4 << 30)
"""Limits for scoring one answer.  Some puzzles take seconds to make, and scoring makes the puzzle again."""

GUARD = """
import ast, sys

LITERAL = (
    ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Load, ast.UnaryOp, ast.unaryop, ast.BinOp,
    ast.operator,
)
MATHEMATICS = (*LITERAL, ast.Call, ast.keyword, ast.Name, ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop)
FUNCTIONS = frozenset((
    "Integer Float Rational Symbol Add Mul Pow sqrt exp log ln sin cos tan asin acos atan sinh cosh tanh sec csc cot "
    "Abs abs min max"
).split())
CONSTANTS = frozenset(("pi",))
SYMPYS_PARSER, SYMPYS_OWN = "sympy.parsing.sympy_parser", "from sympy import *"
CLASSES_OF_LIBRARIES = frozenset(("collections", "dataclasses", "typing"))  # what they compile comes from library source
MOST_CHARACTERS, MOST_NODES, DEEPEST = 1 << 16, 1 << 14, 200
busy = False

def allowed(node, names):
    if not isinstance(node, MATHEMATICS if names else LITERAL):
        return False
    if names:
        if isinstance(node, ast.Call):
            return isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS
        return not isinstance(node, ast.Name) or len(node.id) == 1 or node.id in FUNCTIONS | CONSTANTS
    if isinstance(node, ast.BinOp):
        return number(node.left) and number(node.right) and not isinstance(node.op, ast.Pow)
    return not isinstance(node, ast.UnaryOp) or number(node.operand)

def number(node):
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float, complex))
    return isinstance(node, (ast.UnaryOp, ast.BinOp))

def harmless(tree, names):
    level, count = [tree], 0
    for _ in range(DEEPEST):
        count += len(level)
        if count > MOST_NODES or not all(allowed(node, names) for node in level):
            return False
        level = [inner for node in level for inner in ast.iter_child_nodes(node)]
        if not level:
            return True
    return False

def watch(event, arguments):
    global busy
    if event != "compile" or busy or arguments[1] not in ("<string>", b"<string>"):
        return
    source, caller = arguments[0], sys._getframe(1).f_globals.get("__name__")
    if caller in CLASSES_OF_LIBRARIES:
        return
    if isinstance(source, (bytes, bytearray)):
        source = bytes(source).decode()
    if caller == SYMPYS_PARSER and source == SYMPYS_OWN:
        return
    busy = True
    try:
        if isinstance(source, str):
            source = ast.parse(source.lstrip(" \\t"), mode="eval") if len(source) <= MOST_CHARACTERS else None
        fine = isinstance(source, ast.AST) and harmless(source, names=caller == SYMPYS_PARSER)
    finally:
        busy = False
    if not fine:
        raise RuntimeError("refused to evaluate a part of an answer")

def guard():
    sys.addaudithook(watch)
"""

_ASK = """
import json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
"""


class PackageMissing(ValueError):
    """Error for a package of an extra that is missing or does not work.

    remedy: a command that installs it; by default the one for the extra `rl`.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        remedy = remedy or install_command("rl")
        super().__init__(f"{what}: {remedy}")
        self.what, self.remedy = what, remedy


def installed_version(module: str, distribution: str, purpose: str) -> str:
    """Return the version of an installed package without importing it.  Raises PackageMissing."""
    if importlib.util.find_spec(module) is None:
        raise PackageMissing(f"{purpose} need the package {distribution}, which is not installed")
    return importlib.metadata.version(distribution)


class PackageProgram:
    """Our own program, run in the sandbox, which imports installed packages and answers questions about untrusted text."""

    def __init__(self, program: str, limits: Limits = SCORING) -> None:
        """Prepare the sandbox for `program`, which must define `answer(question)`. Raises SandboxUnavailable."""
        self._program = (
            GUARD + _ASK + program + "\nprint(json.dumps(answer(json.load(sys.stdin))), file=answers, flush=True)\n"
        )
        self._sandbox = Sandbox(limits, packages=True)

    def ask(self, question: Any) -> Any:
        """Return the answer to a question, both in JSON's types. Raises ValueError if the program gives no answer."""
        outcome = self._sandbox.run(self._program, json.dumps(question).encode())
        if not outcome.succeeded:
            last = outcome.errors.decode(errors="replace").strip().rpartition("\n")[2][:300]
            raise ValueError(f"the package's process ended without an answer ({outcome.verdict}: {last})")
        try:
            return json.loads(outcome.output)
        except (ValueError, RecursionError) as error:
            raise ValueError("the package's process did not answer with JSON") from error

    def score(self, question: Any) -> float:
        """Return the score in the answer to a question, clamped to [0, 1]; 0 without a finite number in an answer."""
        try:
            score = self.ask(question)["score"]
        except (ValueError, KeyError, TypeError):
            return 0.0
        if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
            return 0.0
        return min(1.0, max(0.0, float(score)))


# ------------------------------------------------------------------------------------------------------------------------
# Tasks of reasoning-gym (the extra `rl`): about a hundred families of procedural puzzles.
#
# A problem is determined by the task, its settings, the seed, the number and the version of the package, so all peers of a
# run need the same version. Five of the families depend on Python's hash seed. Problems are therefore made in the sandbox,
# which fixes the hash seed, several at a time. The package also computes scores, again in the sandbox.


REASONING_GYM = ("reasoning_gym", "reasoning-gym", "reasoning-gym tasks")
"""Arguments of `installed_version`."""
SIZE = 1 << 20
"""Default number of a family's problems.  A few families (word_ladder) refuse this number."""
AT_ONCE = 16
"""Problems made in one process, because starting a process takes about a second."""
BLOCKS_KEPT = 64

REASONING_GYM_PROGRAM = """
import reasoning_gym

def answer(question):
    try:
        fixed = {"seed": question["seed"], "size": question["size"]}
        data = reasoning_gym.create_dataset(question["task"], **fixed, **question["settings"])
    except (ValueError, TypeError, AssertionError) as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    if "numbers" in question:
        made = [data[number] for number in question["numbers"]]
        return {"made": [[entry["question"], entry["answer"]] for entry in made]}
    entry = data[question["number"]]
    guard()
    return {"score": float(data.score_answer(question["said"], entry))}
"""


class ReasoningGym(Environment):
    """One family of puzzles.

    The answer is the content of the last `<answer>` element, or the whole turn if it has no such element.
    """

    def __init__(self, task: str, seed: int = 0, size: int = SIZE, settings: Mapping[str, Any] | None = None) -> None:
        """Make the first problems.

        settings: the family's settings (see the package). Raises ValueError if it refuses them.
        """
        if type(size) is not int or size < 1:
            raise ValueError("size is the number of problems, and must be a whole number of at least 1")
        self.version = f"reasoning-gym {installed_version(*REASONING_GYM)}"
        self._what = {"task": task, "seed": seed, "size": size, "settings": dict(settings or {})}
        self._maker, self._scorer = PackageProgram(REASONING_GYM_PROGRAM, MAKING), PackageProgram(REASONING_GYM_PROGRAM)
        self._block = lru_cache(BLOCKS_KEPT)(self._make_block)
        self._size = size
        self._block(0)

    @property
    def size(self) -> int:
        """Number of problems, as in `Environment.size`."""
        return self._size

    def problem(self, index: int) -> Problem:
        """Return the problem as `Environment.problem` describes."""
        number = self._checked(index)
        question, answer = self._block(number // AT_ONCE)[number % AT_ONCE]
        return Problem(index, question, answer)

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        """Score the turns as `Environment.score` describes."""
        if len(turns) != 1:
            return 0.0
        said = answer_element(turns[0])
        if said == problem.answer:
            return 1.0  # all families of 0.1.25 that name an answer score it 1
        return self._scorer.score({**self._what, "number": problem.index, "said": said})

    def solution(self, problem: Problem) -> tuple[str, ...]:
        """Return a solution as `Environment.solution` describes."""
        if problem.answer is None:
            raise ValueError(f"{self._what['task']} of reasoning-gym has no answers, so it cannot serve as examples")
        return (str(problem.answer),)

    def _make_block(self, block: int) -> list[tuple[str, str | None]]:
        numbers = list(range(block * AT_ONCE, min(self._size, (block + 1) * AT_ONCE)))
        answer = self._maker.ask({**self._what, "numbers": numbers})
        if "refused" in answer:
            raise ValueError(f"reasoning-gym refuses {self._what['task']!r}: {answer['refused']}")
        return [(str(question), None if solution is None else str(solution)) for question, solution in answer["made"]]


def answer_element(text: str) -> str:
    """Return the text between the last `<answer>` and `</answer>`, or the whole text; blanks around it are removed."""
    _, opened, rest = text.rpartition("<answer>")
    return (rest.partition("</answer>")[0] if opened else text).strip()


# ------------------------------------------------------------------------------------------------------------------------
# Tasks of `verifiers` tasksets (the extra `rl`, its v1 interface): published packages of tasks with rewards.
#
# A suitable taskset has plain texts, and scores that depend on the conversation alone. It may have tools: methods of a
# task's `Toolset` that are marked with `@vf.tool`. A harness would reach them through a server. Here the server's own code
# checks the arguments and turns results into texts, but the methods are called directly, in the sandbox, in a new process
# for each turn, which first makes the calls of the earlier turns again. Tasksets that need a remote server, a container, a
# judge or a simulated user are refused, because no other peer could recompute their rewards from a rollout. So are tasksets
# with hooks around a conversation, which would not run here. A taskset that downloads its data does not load, because it
# runs in the sandbox, like all code that reads a model's text.


VERIFIERS = ("verifiers", "verifiers", "verifiers tasksets")
"""Arguments of `installed_version`."""
MAX_TASKS = 10_000
"""Maximum number of tasks taken from a taskset; some tasksets are endless."""

VERIFIERS_PROGRAM = """
import asyncio, inspect, itertools
import verifiers.v1 as vf
from verifiers.v1.graph import MessageNode
from verifiers.v1.harnesses.utils.mcp import mcp_content_to_chat_content
from verifiers.v1.state import State, state_cls
from verifiers.v1.types import AssistantMessage, SystemMessage, ToolCall, ToolMessage, UserMessage
from verifiers.v1.utils.decorators import discover_decorated
from verifiers.v1.utils.loaders import taskset_class, taskset_config_type

def opened(question):
    name = question["taskset"]
    return taskset_class(name)(taskset_config_type(name)(id=name))

def tools_of(toolsets):
    if not toolsets:
        return {}
    from mcp.server.mcpserver.tools import ToolManager

    found = {}
    for toolset in toolsets:
        manager = ToolManager()
        toolset.register(manager)
        found |= {"_".join(filter(None, (toolset.server_name, tool.name))): tool for tool in manager.list_tools()}
    return found

def fault(task, toolsets):
    if task.NEEDS_CONTAINER:
        return "needs a container"
    if type(task).setup is not vf.Task.setup or type(task).finalize is not vf.Task.finalize:
        return "has code that runs before or after a conversation (setup, finalize)"
    if task.hooks("stop") or discover_decorated(task, "intercept"):
        return "stops or changes conversations itself (stop, intercept)"
    if any(getattr(toolset.config, "url", None) for toolset in toolsets):
        return "needs tools of a server"
    if state_cls(type(task)) is not State or any(type(toolset.state) is not State for toolset in toolsets):
        return "has a state that its tools and rewards can share"
    if task.plugged_judges():
        return "needs a judge"
    if not isinstance(task.data.prompt, str):
        return "has no prompt that is one text"
    rewards = task.hooks("reward")
    if not rewards or any("runtime" in inspect.signature(reward).parameters for reward in rewards):
        return "has no reward that follows from the text alone"
    return None

def listed(question):
    taskset, prompts, schemas, kind = opened(question), [], None, None
    if taskset.toolsets(taskset.config):
        return {"refused": "its tools can keep a state from one conversation to the next"}
    for task in itertools.islice(taskset, question["most"]):
        toolsets = task.toolsets(task.config)
        reason = fault(task, toolsets)
        if not reason and kind != (type(task), task.config):  # others have the same tools, whose models take long to make
            kind = type(task), task.config
            own = [[name, tool.description, tool.parameters] for name, tool in tools_of(toolsets).items()]
            schemas = own if schemas is None else schemas
        if reason or own != schemas:
            return {"refused": f"task {len(prompts)} {reason or 'has other tools than the first'}"}
        prompts.append("\\n".join(filter(None, (task.data.system_prompt, task.data.prompt))))
    return {"prompts": prompts, "tools": schemas or []}

async def called(tools, name, arguments):
    if name not in tools:
        return "error: there is no such function; there are " + ", ".join(tools)
    try:
        result = await tools[name].run(arguments, None, convert_result=True)
        said = mcp_content_to_chat_content(result.content)
    except Exception as error:
        return str(error)
    return said if isinstance(said, str) else "error: the result is not a text"

async def results(task, calls):
    toolsets = task.toolsets(task.config)
    for toolset in toolsets:
        await toolset.setup()
        await toolset.setup_task(task.data)
    tools = tools_of(toolsets)
    guard()
    return [await called(tools, *call) for call in calls]

async def score(task, said):
    nodes = []
    def add(message, sampled=False):
        nodes.append(MessageNode(message=message, parent=len(nodes) - 1 if nodes else None, sampled=sampled))
    if task.data.system_prompt:
        add(SystemMessage(content=task.data.system_prompt))
    add(UserMessage(content=task.data.prompt))
    for at, turn in enumerate(said):
        calls = [ToolCall(id=f"{at}.{n}", name=name, arguments=given) for n, (name, given) in enumerate(turn["calls"])]
        add(AssistantMessage(content=turn["text"] or None, tool_calls=calls or None), sampled=True)
        for call, result in zip(calls, turn["results"]):
            add(ToolMessage(tool_call_id=call.id, content=result, name=call.name))
    about = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    trace = vf.Trace(task=about, agent=vf.AgentInfo(config=vf.AgentConfig()), nodes=nodes)
    trace.stop("max_turns" if said[-1]["calls"] else "agent_completed")
    await task.score(trace)
    return trace.reward

def answer(question):
    if "number" not in question:
        return listed(question)
    taskset = opened(question)
    task = next(itertools.islice(taskset, question["number"], None))
    if "calls" in question:
        return {"results": asyncio.run(results(task, question["calls"]))}
    guard()
    return {"score": float(asyncio.run(score(task, question["said"])))}
"""


class VerifiersTasks(Environment):
    """Environment of the first `MAX_TASKS` tasks of an installed taskset, with the taskset's default settings."""

    def __init__(self, taskset: str, turns: int = 4, reply_bytes: int = 1024) -> None:
        """Load a taskset.  turns, reply_bytes: as in `ToolLimits`, for a taskset with tools.

        Raises ValueError if the taskset is not installed, does not load, or is not suitable.
        """
        self._limits = ToolLimits(turns, reply_bytes)
        texts = installed_version("pydantic", "pydantic", VERIFIERS[2])  # it makes the texts on wrong arguments
        self.version = f"verifiers {installed_version(*VERIFIERS)}, pydantic {texts}, {taskset}"
        self._taskset = taskset
        self._scorer = PackageProgram(VERIFIERS_PROGRAM)
        answer = PackageProgram(VERIFIERS_PROGRAM, MAKING).ask({"taskset": taskset, "most": MAX_TASKS})
        if "refused" in answer:
            raise ValueError(f"the taskset {taskset} is not suitable: {answer['refused']}")
        self._prompts: list[str] = answer["prompts"]
        if not self._prompts:
            raise ValueError(f"the taskset {taskset} has no tasks")
        self._schemas = [function_schema(*each) for each in answer["tools"]]
        if self._schemas:
            self.max_turns = turns
        self._results = lru_cache(REPLIES_KEPT)(self._called)

    @property
    def size(self) -> int:
        """Number of problems, as in `Environment.size`."""
        return len(self._prompts)

    def problem(self, index: int) -> Problem:
        """Return the problem as `Environment.problem` describes."""
        prompt = self._prompts[self._checked(index)]
        return Problem(index, prompt_with_tools(prompt, self._schemas, self.max_turns) if self._schemas else prompt, None)

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        """Return the results of the calls in the last turn, or None without a call.  Raises SandboxUnavailable."""
        results = self._results(problem.index, tuple(turns)) if self._schemas else ()
        return response(results, self._limits.reply_bytes) if results else None

    def has_exact_replies(self, problem: Problem) -> bool:
        """Return False for a taskset with tools, because the package's functions may be slow."""
        return not self._schemas

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        """Score the turns as `Environment.score` describes."""
        if not 0 < len(turns) <= self.max_turns:
            return 0.0
        said = []
        for count, turn in enumerate(turns, start=1):
            calls = [(call.name, call.written) for call in calls_in(turn)] if self._schemas else []
            results = self._results(problem.index, tuple(turns[:count])) if calls and count < len(turns) else ()
            said.append({"text": without_calls(turn) if calls else turn, "calls": calls, "results": results})
        return self._scorer.score({"taskset": self._taskset, "number": problem.index, "said": said})

    def solution(self, problem: Problem) -> tuple[str, ...]:
        """Raise ValueError, because tasks of verifiers do not include solutions."""
        raise ValueError("tasks of verifiers have no solutions, so they cannot serve as examples")

    def _called(self, index: int, turns: tuple[str, ...]) -> tuple[str, ...]:
        """Return the results of the calls in the last turn, after those of the turns before it."""
        calls = [calls_in(turn) for turn in turns]
        if not calls[-1]:
            return ()
        made = [(call.name, call.arguments) for each in calls for call in each if not call.flaw]
        try:
            question = {"taskset": self._taskset, "number": index, "calls": made}
            said = [*map(str, self._scorer.ask(question)["results"])] if made else []
        except (ValueError, KeyError, TypeError):  # it ended, or took too long
            said = []
        said += ["error: the function ended without a result"] * (len(made) - len(said))
        last = sum(not call.flaw for call in calls[-1])
        results = iter(said[len(made) - last :])
        return tuple(f"error: {call.flaw}" if call.flaw else next(results) for call in calls[-1])
