"""Installed packages that score what a model wrote, kept away from the peer's own process.

Libraries for scoring parse a model's text with all of Python: reasoning-gym and sympy evaluate parts of it.  So they run
in the sandbox, on a question in JSON, and answer in JSON.  While they score, nothing that a text could smuggle in is
evaluated: source that does not come from a file is let through only when it is arithmetic on numbers, names and lists
(`GUARD`).  A text that is more than that is no right answer to anything.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from typing import Any

from trainer.environments.sandbox import Limits, Sandbox

MAKING = Limits(cpu_s=300, wall_s=1200.0, memory_bytes=4 << 30, output_bytes=64 << 20)
"""For problems, which follow from the run's own settings.  Numpy alone reserves a gibibyte of addresses."""
SCORING = Limits(cpu_s=20, wall_s=120.0, memory_bytes=4 << 30)
"""For one answer.  Some puzzles take seconds to make, and are made again for it."""

GUARD = """
import ast, sys

CALLS = frozenset((
    "Integer Float Rational Symbol Add Mul Pow sqrt exp log ln sin cos tan asin acos atan sinh cosh tanh sec csc cot "
    "Abs abs min max"
).split())
HARMLESS = (
    ast.Module, ast.Expression, ast.Expr, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.operator, ast.unaryop,
    ast.boolop, ast.cmpop, ast.Constant, ast.Name, ast.Load, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Call, ast.keyword,
)
SYMPYS_OWN = "from sympy import *"
busy = False

def harmless(tree):
    for node in ast.walk(tree):
        if not isinstance(node, HARMLESS):
            return False
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in CALLS):
            return False
    return True

def watch(event, arguments):
    global busy
    if event != "compile" or busy or arguments[1] != "<string>" and arguments[1] != b"<string>":
        return
    source = arguments[0]
    if source in (SYMPYS_OWN, SYMPYS_OWN.encode()):
        return
    busy = True
    try:
        fine = harmless(source if isinstance(source, ast.AST) else ast.parse(source)) if source is not None else False
    except (SyntaxError, ValueError):
        return
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
    """A package of an extra is not installed; the text says how to install it."""


def installed_version(module: str, distribution: str, purpose: str) -> str:
    """The version of an installed package, which is not imported.  Raises PackageMissing."""
    if importlib.util.find_spec(module) is None:
        raise PackageMissing(
            f"{purpose} need the package {distribution}, which is not installed: pip install 'manyhands[rl]'"
        )
    return importlib.metadata.version(distribution)


class PackageProgram:
    """A program of ours that imports installed packages, and answers questions about untrusted text."""

    def __init__(self, program: str, limits: Limits = SCORING) -> None:
        """program: defines `answer(question)`.  Raises SandboxUnavailable."""
        self._program = (
            GUARD + _ASK + program + "\nprint(json.dumps(answer(json.load(sys.stdin))), file=answers, flush=True)\n"
        )
        self._sandbox = Sandbox(limits, packages=True)

    def ask(self, question: Any) -> Any:
        """The answer to a question, both in JSON's types.  Raises ValueError when there is none."""
        outcome = self._sandbox.run(self._program, json.dumps(question).encode())
        if not outcome.succeeded:
            last = outcome.errors.decode(errors="replace").strip().rpartition("\n")[2][:300]
            raise ValueError(f"the package's process ended without an answer ({outcome.verdict}: {last})")
        try:
            return json.loads(outcome.output)
        except (ValueError, RecursionError) as error:
            raise ValueError("the package's process answered something else than JSON") from error
