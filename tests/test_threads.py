"""Functions that run in other threads return what they have to say: they emit no event and touch nothing of trio's.

An event emitted there wakes trio's tasks from a foreign thread, which ends the peer, and so does a call of trio.  The check
reads the source: it follows a function that is handed to a thread into the functions that it calls, as far as their names
say which these are.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("peer", "protocol")
EMITTERS = {"emit", "notice", "start_soon"}
TRIO_FOR_THREADS = {"from_thread", "to_thread", "run"}
"""Of trio, for threads: what hands something over, and a trio of the thread's own."""


class Function(NamedTuple):
    file: str
    owner: str
    name: str
    node: ast.FunctionDef | ast.Lambda

    def __str__(self) -> str:
        return f"{self.file}: {self.owner and self.owner + '.'}{self.name}"


class Source:
    """All functions of the product, by module and class."""

    def __init__(self, files: dict[str, str]) -> None:
        self.trees = {file: ast.parse(text) for file, text in files.items()}
        self.found: dict[tuple[str, str, str], Function] = {}
        self.by_name: dict[str, list[Function]] = defaultdict(list)
        for file, tree in self.trees.items():
            for owner, node in _functions(tree):
                function = Function(file, owner, node.name, node)
                self.found[file, owner, node.name] = function
                self.by_name[node.name].append(function)

    def target(self, file: str, owner: str, called: ast.expr) -> Function | None:
        """The function that an expression names, if there is only one that it may be."""
        match called:
            case ast.Call(func=ast.Name(id="partial"), args=[inner, *_]):
                return self.target(file, owner, inner)
            case ast.Lambda():
                return Function(file, owner, "lambda", called)
            case ast.Name(id=name):
                return self.found.get((file, "", name))
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if (file, owner, name) in self.found:
                return self.found[file, owner, name]
            case ast.Attribute(attr=name) if len(self.by_name[name]) == 1:
                return self.by_name[name][0]
        return None

    def in_threads(self) -> Iterator[Function]:
        """The functions that are handed to a thread."""
        for file, tree in self.trees.items():
            for owner, node in _calls(tree):
                handed = [node.func, *node.args]
                if isinstance(node.func, ast.Name) and node.func.id == "partial":
                    handed = handed[1:]
                if handed[1:] and _is_to_thread(handed[0]) and (found := self.target(file, owner, handed[1])):
                    yield found

    def faults(self) -> list[str]:
        """Chains of calls, from a function in a thread to one that belongs to trio's thread."""
        todo = [(function, str(function)) for function in self.in_threads()]
        seen, faults = set[int](), list[str]()
        while todo:
            function, chain = todo.pop()
            if id(function.node) in seen:
                continue
            seen.add(id(function.node))
            for node in ast.walk(function.node):
                if isinstance(node, ast.Call):
                    if fault := _fault(node.func):
                        faults.append(f"{chain} calls {fault}")
                    elif found := self.target(function.file, function.owner, node.func):
                        todo.append((found, f"{chain} -> {found.name}"))
        return sorted(faults)


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield "", node
        elif isinstance(node, ast.ClassDef):
            yield from ((node.name, each) for each in node.body if isinstance(each, ast.FunctionDef))


def _calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    for top in tree.body:
        owner = top.name if isinstance(top, ast.ClassDef) else ""
        yield from ((owner, node) for node in ast.walk(top) if isinstance(node, ast.Call))


def _is_to_thread(called: ast.expr) -> bool:
    match called:
        case ast.Attribute(value=ast.Attribute(attr="to_thread"), attr="run_sync"):
            return True
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name.lstrip("_") in ("offload", "in_a_thread")
    return False


def _fault(called: ast.expr) -> str:
    match called:
        case ast.Attribute(value=ast.Name(id="trio"), attr=name):
            return "" if name in TRIO_FOR_THREADS else f"trio.{name}"
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name if name.lstrip("_") in EMITTERS else ""
    return ""


def product() -> dict[str, str]:
    paths = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


@pytest.mark.slow
def test_functions_in_threads_leave_trios_thread_alone() -> None:
    source = Source(product())
    assert len(list(source.in_threads())) > 50, "the check still finds what runs in threads"
    assert source.faults() == []


BOOK = """
class Book:
    async def keep(self):
        await trio.to_thread.run_sync({called})

    def _save(self):
        try:
            write()
        except OSError:
            self._tell("no")

    def _tell(self, text):
        {does}
"""


def test_the_check_follows_calls_to_the_fault() -> None:
    for called in ("self._save", "partial(self._save)", "lambda: self._save()"):
        for does in ("self._emit(text)", "trio.Event()", "self._log.emit(text)", "self.nursery.start_soon(text)"):
            assert Source({"book.py": BOOK.format(called=called, does=does)}).faults(), (called, does)
    assert not Source({"book.py": BOOK.format(called="self._save", does="print(text)")}).faults()
