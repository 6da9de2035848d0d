"""How deep what JSON says may be nested.

How deep Python itself can read depends on its version: what some computers can read and others cannot would part a swarm.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MAX_DEPTH = 64
"""Of lists and objects in each other."""


def check_depth(value: Any) -> None:
    """Raises ValueError where lists and objects lie in each other more than `MAX_DEPTH` times."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        level = [inner for each in level for inner in _inner(each)]
    if level:
        raise ValueError(f"nested too deeply: lists and objects lie in each other at most {MAX_DEPTH} times")


def _inner(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    """The lists and objects in it."""
    return [each for each in (value.values() if isinstance(value, dict) else value) if isinstance(each, dict | list)]
