"""Installed packages that score a model's text, kept out of the peer's own process.

Scoring libraries evaluate parts of a model's text as Python: reasoning-gym and sympy do so in a scope where their own
variables are visible, including the right answer.  So they run in the sandbox, take a question in JSON, and answer in JSON.
While they score, `GUARD` lets Python compile source that comes from no file only if it is a literal: numbers, texts, lists
and arithmetic on numbers, without any name.  sympy's parser turns the names of a text into calls of its own classes before
it evaluates them; for the parser, the guard also allows calls of a few mathematical functions and names of one letter.  Size
and depth of both are bounded.  No right answer needs more.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from typing import Any

from trainer.environments.sandbox import Limits, Sandbox

MAKING = Limits(cpu_s=300, wall_s=1200.0, memory_bytes=4 << 30, output_bytes=64 << 20)
"""Limits for making problems from the run's own settings.  Numpy alone reserves a gibibyte of addresses."""
SCORING = Limits(cpu_s=20, wall_s=120.0, memory_bytes=4 << 30)
"""Limits for scoring one answer.  Some puzzles take seconds to make, and scoring makes them again."""

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
    """Error for a package of an extra that is not installed, or does not work.  remedy: a command."""

    def __init__(self, what: str, remedy: str = "pip install 'manyhands[rl]'") -> None:
        super().__init__(f"{what}: {remedy}")
        self.what, self.remedy = what, remedy


def installed_version(module: str, distribution: str, purpose: str) -> str:
    """Return the version of an installed package without importing it.  Raises PackageMissing."""
    if importlib.util.find_spec(module) is None:
        raise PackageMissing(f"{purpose} need the package {distribution}, which is not installed")
    return importlib.metadata.version(distribution)


class PackageProgram:
    """Program of ours that imports installed packages, and answers questions about untrusted text in the sandbox."""

    def __init__(self, program: str, limits: Limits = SCORING) -> None:
        """program: defines `answer(question)`.  Raises SandboxUnavailable."""
        self._program = (
            GUARD + _ASK + program + "\nprint(json.dumps(answer(json.load(sys.stdin))), file=answers, flush=True)\n"
        )
        self._sandbox = Sandbox(limits, packages=True)

    def ask(self, question: Any) -> Any:
        """Return the answer to a question, both in JSON's types.  Raises ValueError if the program gives none."""
        outcome = self._sandbox.run(self._program, json.dumps(question).encode())
        if not outcome.succeeded:
            last = outcome.errors.decode(errors="replace").strip().rpartition("\n")[2][:300]
            raise ValueError(f"the package's process ended without an answer ({outcome.verdict}: {last})")
        try:
            return json.loads(outcome.output)
        except (ValueError, RecursionError) as error:
            raise ValueError("the package's process answered something else than JSON") from error
