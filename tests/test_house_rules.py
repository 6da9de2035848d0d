"""The check of names and docstrings finds what breaks a rule, and nothing else."""

from __future__ import annotations

import ast

import pytest

from tests.house_rules import faults


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""What this is."""', 1),
        ('"""Whatever happens."""', 0),
        ('def look() -> bool:\n    """Whether it is there."""', 1),
        ('def look() -> bool:\n    """Return True if it is there."""', 0),
        ('LIMIT = 3\n"""Of the files."""', 1),
        ('class A:\n    size: int\n    """Those that are large."""', 1),
        ("class A:\n    pass\n\n\nclass B:\n    pass", 0),
    ],
)
def test_a_docstring_begins_with_a_full_statement(source: str, found: int) -> None:
    assert len(faults({"a.py": ast.parse(source)})) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("self._nursery: trio.Nursery | None = None", 1),
        ("async def run(self):\n    async with trio.open_nursery() as self._nursery:\n        pass", 1),
        ("async def run(self):\n    async with trio.open_nursery() as nursery:\n        pass", 0),
        ("self._tasks = TaskGroup()", 0),
    ],
)
def test_no_attribute_holds_a_nursery_that_may_be_closed(source: str, found: int) -> None:
    assert len(faults({"a.py": ast.parse(source)})) == found


def test_a_class_name_is_defined_once() -> None:
    tree = ast.parse("class A:\n    class Inner:\n        pass")
    assert faults({"a.py": tree, "b.py": ast.parse("class B:\n    class Inner:\n        pass")}) == []
    assert len(faults({"a.py": tree, "b.py": tree})) == 1
