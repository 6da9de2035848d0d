"""`python -m tests.house_rules`: rules about names and docstrings that no linter knows; part of `make lint`.

A class name is defined once in the product, so that a name means one thing.  A docstring begins with a full statement, so
never with the words of a clause.  No attribute holds a nursery that may be closed: a `TaskGroup` does.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("kernels", "protocol", "trainer", "peer", "tui")
CLAUSE = re.compile(r"(What|How|Whether|Who|Whom|Whose|Of|That|Those)\b")
TWO_OF_A_KIND = {"Verifier"}
"""Names that two classes of one kind share: both judge rollouts, one by their proofs and one by their answers."""


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each docstring, those under constants and fields too."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text.strip()


def kept_nurseries(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each attribute that is declared as a nursery or None, or bound to a nursery by `async with`."""
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(target=ast.Attribute(), annotation=ast.BinOp()) if "Nursery" in ast.unparse(node.annotation):
                yield node.lineno
            case ast.withitem(optional_vars=ast.Attribute(lineno=line)) if "nursery" in ast.unparse(node.context_expr):
                yield line


def faults(files: dict[str, ast.Module]) -> list[str]:
    """Return a sentence for each place that breaks a rule.  files: parsed, by path."""
    found: list[str] = []
    classes: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in files.items():
        for line, text in docstrings(tree):
            if CLAUSE.match(text):
                found.append(f"{path}:{line}: the docstring begins with {text.split()[0]!r}; begin with a full statement")
        for line in kept_nurseries(tree) if Path(path).name != "task_group.py" else ():
            found.append(
                f"{path}:{line}: an attribute holds a nursery, which may be closed; use protocol.transport.task_group"
            )
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(f"{path}:{node.lineno}")
    for name, places in classes.items():
        if len(places) > 1 and name not in TWO_OF_A_KIND:
            found.append(f"{', '.join(places)}: {len(places)} classes have the name {name}; give each its own")
    return found


def main() -> int:
    paths = sorted(path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py"))
    assert paths, f"no Python files under {ROOT}"
    found = faults({str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths})
    print("\n".join(found) or f"{len(paths)} files keep the rules about names and docstrings.")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
