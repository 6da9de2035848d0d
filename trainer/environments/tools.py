"""Tools that a model calls between its turns: a calculator, Python programs in the sandbox, search in a local corpus.

A call is written as in Hermes and Qwen models, anywhere in a turn:

    <tool_call>{"name": "calculator", "arguments": {"expression": "17*23"}}</tool_call>

The environment replies with one `<tool_response>` for each call. A turn without a call is the answer, and ends the
conversation. A call of an unknown tool, with wrong arguments or beyond a limit has a reply too, which names the error: a
model's text never makes a tool fail.

All peers must give the same replies. The calculator and the search are exact. A program may be too slow on one computer, or
draw random numbers, so its replies prove nothing about the peer that made a rollout (`Environment.has_exact_replies`).
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from trainer.data.strict_json import parsed
from trainer.environments.environment import Environment, OuterEnvironment, Problem
from trainer.environments.sandbox import Limits, RunOutcome, Sandbox

# ------------------------------------------------------------------------------------------------------------------------
# Calls in a turn, and replies to them.


MAX_CALLS, MAX_ANSWERED = 4, 16
"""Maximum number of calls in a turn that are made, and of those that are answered: the rest of them with an error."""
MAX_CALL_CHARACTERS, MAX_DEPTH = 1 << 16, 32
_STRING, _BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL), re.compile(r"[\[\]{}]")
REPLIES_KEPT = 1 << 9
"""Replies of an environment that are kept, because reading a rollout asks for those to all of its turns again: at most
128 MiB with the largest limit on a reply."""
BEGIN, END = "<tool_call>", "</tool_call>"
UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""Characters that change how a terminal shows a text, or that some tokenizer cannot encode. The list is fixed, because the
properties of characters differ between versions of Python."""
CUT = "\n[cut]"


@dataclass(frozen=True)
class Call:
    """Call of a tool.

    flaw: the reason why the call is not made, as a phrase; empty if it is. written: the arguments in JSON, or the whole
    call if they cannot be told.
    """

    name: str = ""
    arguments: Mapping[str, Any] | None = None
    flaw: str = ""
    written: str = ""


def calls_in(turn: str) -> list[Call]:
    """Return the calls in a turn, at most `MAX_ANSWERED`."""
    calls: list[Call] = []
    while len(calls) < MAX_ANSWERED:
        _, begun, rest = turn.partition(BEGIN)
        text, ended, turn = rest.partition(END)
        if not begun or not ended:
            break
        call = _call(text)
        calls.append(call if len(calls) < MAX_CALLS else replace(call, flaw=f"a turn has at most {MAX_CALLS} calls"))
    return calls


def _call(text: str) -> Call:
    if len(text) > MAX_CALL_CHARACTERS:
        return Call(flaw=f"a call has at most {MAX_CALL_CHARACTERS} characters", written=text[:MAX_CALL_CHARACTERS])
    try:
        said = json.loads(text if _depth(text) <= MAX_DEPTH else "")
    except ValueError:
        return Call(flaw="the call is not JSON", written=text)
    name, arguments = (said.get("name"), said.get("arguments", {})) if isinstance(said, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        known = (name, json.dumps(arguments)) if isinstance(name, str) else ("", text)
        return Call(known[0], flaw="a call has a name and arguments", written=known[1])
    return Call(name, arguments, written=json.dumps(arguments))


def without_calls(turn: str) -> str:
    """Return the text of a turn around its calls."""
    kept, end = list[str](), 0
    while (begin := turn.find(BEGIN, end)) >= 0 and (closed := turn.find(END, begin)) >= 0:
        kept.append(turn[end:begin])
        end = closed + len(END)
    return "".join([*kept, turn[end:]]).strip()


def _depth(text: str) -> int:
    """Return how deep the lists and maps of a JSON text are nested; how deep Python reads depends on the computer."""
    depth = most = 0
    for sign in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if sign in "[{" else -1
        most = max(most, depth)
    return most


def response(results: Sequence[str], most_bytes: int) -> str:
    """Return the reply with these results of calls, each as `shown` makes it."""
    return "".join(f"<tool_response>\n{shown(result, most_bytes)}\n</tool_response>\n" for result in results)


def shown(text: str, most_bytes: int) -> str:
    """Return a tool's output with U+FFFD for characters that change how a terminal shows it, cut to `most_bytes` bytes."""
    clean = UNSHOWN.sub("\ufffd", text[: most_bytes + 1].replace("\r\n", "\n"))
    data = clean.encode()
    if len(data) <= most_bytes and len(text) <= most_bytes:
        return clean
    return data[: max(0, most_bytes - len(CUT))].decode(errors="ignore") + CUT


# ------------------------------------------------------------------------------------------------------------------------
# The tools.


@dataclass(frozen=True)
class ToolLimits:
    """Limits on a conversation with tools.

    turns: of the model, the answer included. reply_bytes: of UTF-8 in the result of a call. seconds: processor seconds of a
    program.
    """

    turns: int = 4
    reply_bytes: int = 1024
    seconds: int = 5

    def __post_init__(self) -> None:
        """Raise ValueError for a limit out of bounds."""
        for name, least, most in (("turns", 2, 64), ("reply_bytes", 16, 1 << 16), ("seconds", 1, 60)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{name} must be a whole number from {least} to {most}, not {value!r}")


class Tool(ABC):
    """Tool with one argument, a text.

    name: as in a call.  argument: name of the argument.  description: for the model.  is_exact: True if every computer gives
    the same result.
    """

    name: str
    argument: str
    description: str
    is_exact = True

    @abstractmethod
    def result(self, text: str) -> str:
        """Return the result of a call with this argument.  Raises SandboxUnavailable, which is not a result."""

    @property
    def schema(self) -> dict[str, Any]:
        """Description of the tool in the form of OpenAI's functions, in which models are trained."""
        parameters = {"type": "object", "properties": {self.argument: {"type": "string"}}, "required": [self.argument]}
        return function_schema(self.name, self.description, parameters)


def function_schema(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a function.  parameters: JSON schema of its arguments."""
    about = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": about}


def prompt_with_tools(prompt: str, schemas: Sequence[Mapping[str, Any]], turns: int) -> str:
    """Return a prompt that also describes the tools and the form of a call."""
    lines = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
    form = '<tool_call>{"name": ..., "arguments": {...}}</tool_call>'
    return (
        f"{prompt.rstrip()}\n\nYou may call these functions:\n<tools>\n{lines}\n</tools>\nA turn that contains {form} calls "
        f"a function, and is answered with its result. A turn without a call is your answer. You have {turns} turns.\n"
    )


class Calculator(Tool):
    """Exact arithmetic on numbers of bounded size."""

    name, argument = "calculator", "expression"
    description = "Computes + - * / // % ** and parentheses on numbers, exactly."

    def result(self, text: str) -> str:
        """Return the value, a whole number or a decimal fraction with 12 digits, or an error."""
        try:
            return _written(_Arithmetic(text).value())
        except ValueError as error:
            return f"error: {error}"
        except ZeroDivisionError:
            return "error: division by zero"


MAX_EXPRESSION = 200
MAX_BITS = 512
"""Maximum size of the numerator and denominator of a number in a calculation."""
_TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?|\*\*|//|[-+*/%()])", re.ASCII)
_BINDING = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2, "**": 4}
_OF_SIGN = 3


class _Arithmetic:
    """Parser of one expression by precedence, with Python's rules."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_EXPRESSION:
            raise ValueError(f"an expression has at most {MAX_EXPRESSION} characters")
        self._tokens: list[str] = []
        at, text = 0, text.strip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise ValueError("not an expression")
            self._tokens.append(found[1])
            at = found.end()

    def value(self) -> Fraction:
        value = self._expression(0)
        if self._tokens:
            raise ValueError("not an expression")
        return value

    def _expression(self, binding: int) -> Fraction:
        value = self._operand()
        while self._tokens and _BINDING.get(self._tokens[0], 0) > binding:
            sign = self._tokens.pop(0)
            is_power = sign == "**"  # groups from the right
            value = _bounded(_combined(sign, value, self._expression(_BINDING[sign] - is_power)))
        return value

    def _operand(self) -> Fraction:
        token = self._tokens.pop(0) if self._tokens else ""
        if token in ("+", "-"):
            value = self._expression(_OF_SIGN - 1)
            return -value if token == "-" else value
        if token == "(":
            value = self._expression(0)
            if not self._tokens or self._tokens.pop(0) != ")":
                raise ValueError("not an expression")
            return value
        if not token[:1].isdigit():
            raise ValueError("not an expression")
        return _bounded(Fraction(token))


def _combined(sign: str, one: Fraction, other: Fraction) -> Fraction:
    match sign:
        case "+":
            return one + other
        case "-":
            return one - other
        case "*":
            return one * other
        case "/":
            return one / other
        case "//":
            return Fraction(one // other)
        case "%":
            return one % other
    if other.denominator != 1 or abs(other) > MAX_BITS:
        raise ValueError("an exponent is a whole number up to 512")
    if max(_bits(one), 1) * abs(other.numerator) > 2 * MAX_BITS:
        raise ValueError("the number is too large")
    return Fraction(one**other.numerator)


def _bits(number: Fraction) -> int:
    return max(number.numerator.bit_length(), number.denominator.bit_length())


def _bounded(number: Fraction) -> Fraction:
    if _bits(number) > MAX_BITS:
        raise ValueError("the number is too large")
    return number


def _written(number: Fraction) -> str:
    if number.denominator == 1:
        return str(number.numerator)
    return f"{Context(prec=12).divide(Decimal(number.numerator), Decimal(number.denominator)):f}"


class PythonTool(Tool):
    """Program of the model, run in the sandbox.

    The result is what it prints, and the kind of its error: the text of an error differs between versions of Python. The
    seed of `random` is fixed.
    """

    name, argument = "python", "code"
    description = "Runs a Python program and returns what it prints."
    is_exact = False
    RUNNER = (
        "import random, sys; random.seed(0); exec(compile(sys.stdin.read(), 'program.py', 'exec'), {'__name__': '__main__'})"
    )
    KIND = re.compile(r"^([A-Za-z_][A-Za-z0-9_.]{0,60})(?::|$)")

    def __init__(self, seconds: int) -> None:
        """Prepare the sandbox.  Raises SandboxUnavailable."""
        limits = Limits(cpu_s=seconds, wall_s=6.0 * seconds, memory_bytes=256 << 20, output_bytes=64 << 10, processes=1)
        self._sandbox = Sandbox(limits)

    def result(self, text: str) -> str:
        """Return what the program prints, as `Tool.result` describes."""
        outcome = self._sandbox.run(self.RUNNER, text.encode(errors="replace"))
        if outcome.verdict is not RunOutcome.FINISHED:
            return f"error: {outcome.verdict.value}"
        said = outcome.output.decode(errors="replace")
        if outcome.succeeded:
            return said.rstrip("\n")
        last = outcome.errors.decode(errors="replace").rstrip().rpartition("\n")[2]
        kind = self.KIND.match(last)
        return f"{said}error: {kind[1] if kind else 'exit'}"


class CorpusSearch(Tool):
    """Search for words in the documents of a corpus."""

    name, argument = "search", "query"
    description = "Finds the documents with most of the words, and returns the beginnings of the best three."
    FOUND = 3

    def __init__(self, documents: Sequence[tuple[str, str]], reply_bytes: int) -> None:
        """Index documents, each with its title and its text."""
        self._documents, self._each = documents, reply_bytes // self.FOUND
        self._with: dict[str, list[int]] = defaultdict(list)
        for number, document in enumerate(documents):
            for word in _words(" ".join(document)):
                self._with[word].append(number)

    def result(self, text: str) -> str:
        """Return the best documents by the weights of their words; rare words weigh more, by whole numbers."""
        scores: dict[int, int] = defaultdict(int)
        count = len(self._documents)
        for word in list(dict.fromkeys(_WORD.findall(text[:MAX_QUERY].lower())))[:MAX_WORDS]:
            having = self._with.get(word, ())
            if count > FEW_DOCUMENTS and COMMON * len(having) > count:
                continue  # it tells little, and costs much
            for number in having:
                scores[number] += (count // len(having)).bit_length()
        best = sorted(scores, key=lambda number: (-scores[number], number))[: self.FOUND]
        if not best:
            return "nothing found"
        return "\n".join(shown(": ".join(filter(None, self._documents[number])), max(16, self._each)) for number in best)


MAX_QUERY, MAX_WORDS = 1000, 32
"""Most characters of a query, and most different words of it that count."""
FEW_DOCUMENTS, COMMON = 256, 8
"""In a corpus of more documents, words that more than every eighth document has do not count."""
MAX_DOCUMENTS = 1 << 20
MAX_DOCUMENT_CHARACTERS = 1 << 16
_WORD = re.compile(r"[0-9a-z\u00e0-\u00f6\u00f8-\u024f\u0370-\u04ff\u4e00-\u9fff]+")


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


def read_corpus(data: bytes) -> list[tuple[str, str]]:
    """Return the title and text of each document in lines of JSON: `{"title": "…", "text": "…"}`, the title optional.

    Raises ValueError with the line's number and one sentence.
    """
    documents: list[tuple[str, str]] = []
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = parsed(line, has_nan=False)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        title, text = (record.get("title", ""), record.get("text")) if isinstance(record, dict) else ("", None)
        if not isinstance(title, str) or not isinstance(text, str) or not text:
            raise ValueError(f"line {number}: a document has a text, and may have a title")
        if len(title) + len(text) > MAX_DOCUMENT_CHARACTERS:
            raise ValueError(f"line {number}: a document has at most {MAX_DOCUMENT_CHARACTERS} characters; split it")
        documents.append((title, text))
        if len(documents) > MAX_DOCUMENTS:
            raise ValueError(f"a corpus has at most {MAX_DOCUMENTS} documents")
    if not documents:
        raise ValueError("the corpus has no document")
    return documents


# ------------------------------------------------------------------------------------------------------------------------


TOOLS = (Calculator.name, PythonTool.name, CorpusSearch.name)


class WithTools(OuterEnvironment):
    """Environment with the problems of a single-turn environment, in which the model may call tools before it answers.

    Only the last turn is scored, as the only turn of the inner environment; it is worth nothing if it contains a call.
    """

    def __init__(self, own: Environment, tools: Sequence[Tool], limits: ToolLimits) -> None:
        """Add tools.  Raises ValueError if the environment has several turns itself."""
        if own.max_turns != 1:
            raise ValueError("tools can be added only to an environment of one turn; this one replies itself")
        self._own, self._limits = own, limits
        self._tools = {tool.name: tool for tool in tools}
        self.max_turns = limits.turns
        self._replies = lru_cache(REPLIES_KEPT)(self._reply_to)

    @property
    def size(self) -> int:
        """Number of problems, as in `Environment.size`."""
        return self._own.size

    def problem(self, index: int) -> Problem:
        """Return the inner environment's problem, with the tools in the prompt."""
        inner = self._own.problem(index)
        schemas = [tool.schema for tool in self._tools.values()]
        return Problem(index, prompt_with_tools(inner.prompt, schemas, self._limits.turns), inner)

    def inner(self, problem: Problem) -> tuple[Environment, Problem]:
        """Return the environment as `OuterEnvironment.inner` describes."""
        return self._own, problem.answer

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        """Return the results of the calls in the last turn, or None without a call.  Raises SandboxUnavailable."""
        return self._replies(turns[-1])

    def has_exact_replies(self, problem: Problem) -> bool:
        """Return True if all tools are exact."""
        return all(tool.is_exact for tool in self._tools.values())

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        """Score the last turn as the inner environment does."""
        if not turns or len(turns) > self.max_turns or calls_in(turns[-1]):
            return 0.0
        return super().score(problem, turns[-1:])

    def _reply_to(self, turn: str) -> str | None:
        calls = calls_in(turn)
        return response([self._result(call) for call in calls], self._limits.reply_bytes) if calls else None

    def _result(self, call: Call) -> str:
        if call.flaw or call.arguments is None:
            return f"error: {call.flaw}"
        tool = self._tools.get(call.name)
        if tool is None:
            return f"error: there is no such function; there are {', '.join(self._tools)}"
        if call.arguments.keys() != {tool.argument} or not isinstance(text := call.arguments[tool.argument], str):
            return f"error: {tool.name} takes the argument {tool.argument}, a string"
        return tool.result(text)
