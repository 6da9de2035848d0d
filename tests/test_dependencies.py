"""pyproject.toml declares what the product imports, and nothing that it does not."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.house_rules import PRODUCT

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OF_TESTS = {"dev", "docs", "fuzz", "oracle"}
"""Extras that the product does not use."""
OTHER_NAMES = {"nvidia_ml_py": "pynvml", "protobuf": "google"}
"""Modules of the distributions that are called otherwise."""


def modules(requirements: list[str]) -> set[str]:
    """Return the modules that these requirements bring."""
    names = (re.split(r"[^A-Za-z0-9._-]", line)[0].lower().replace("-", "_") for line in requirements)
    return {OTHER_NAMES.get(name, name) for name in names}


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Return the places and nodes of imports, calls and strings of the product."""
    paths = [path for package in PRODUCT for path in (ROOT / package).rglob("*.py")]
    found = ((str(path.relative_to(ROOT)), node) for path in paths for node in ast.walk(ast.parse(path.read_text())))
    return [each for each in found if isinstance(each[1], ast.Import | ast.ImportFrom | ast.Call | ast.Constant)]


def imported() -> dict[str, set[str]]:
    """Return where each foreign module is imported, wherever the statement stands, also for types alone."""
    found = defaultdict[str, set[str]](set)
    for place, node in nodes():
        names: list[str] = []
        match node:
            case ast.Import(names=aliases):
                names = [alias.name for alias in aliases]
            case ast.ImportFrom(level=0, module=str(module)):
                names = [module]
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(module)), *_]):
                names = [module] if called in ("import_module", "__import__") else []
        for name in names:
            found[name.partition(".")[0]].add(place)
    return {name: places for name, places in found.items() if name not in {*sys.stdlib_module_names, *PRODUCT}}


def words() -> set[str]:
    """Return the strings of the product, among which are the names of modules that it imports by a table."""
    texts = (node.value for _, node in nodes() if isinstance(node, ast.Constant))
    return {text.partition(".")[0] for text in texts if isinstance(text, str)}


BASE = modules(PROJECT["dependencies"])
EXTRAS = {name: modules(lines) for name, lines in PROJECT["optional-dependencies"].items() if name not in OF_TESTS}


@pytest.mark.slow
def test_what_is_imported_is_declared() -> None:
    declared = BASE.union(*EXTRAS.values())
    assert {name: places for name, places in imported().items() if name not in declared} == {}


@pytest.mark.slow
def test_what_is_declared_is_imported() -> None:
    assert BASE - set(imported()) == set()
    assert {(extra, name) for extra, names in EXTRAS.items() for name in names - set(imported()) - words()} == set()


def test_an_extra_is_not_among_what_every_peer_needs() -> None:
    """Triton alone has 720 MB, for kernels that run on GPUs only, and torch for CUDA brings it along."""
    assert {(extra, name) for extra, names in EXTRAS.items() for name in names & BASE} == set()


def test_everything_that_is_declared_has_a_tested_version() -> None:
    pins = modules((ROOT / "constraints.txt").read_text().splitlines())
    untested = {"math_verify", "reasoning_gym", "verifiers", "vllm"}
    """Brought by extras that CI does not install."""
    assert BASE.union(*EXTRAS.values()) - pins == untested
