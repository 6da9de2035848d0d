"""Limit on the nesting of JSON values.

Python's own limit depends on its version. A value that only some computers can read would split a swarm.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MAX_DEPTH = 64
"""Maximum nesting depth of lists and objects."""


def check_depth(value: Any) -> None:
    """Raise ValueError if lists and objects are nested more than `MAX_DEPTH` deep."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        level = [inner for each in level for inner in _inner(each)]
    if level:
        raise ValueError(f"nested too deeply: lists and objects lie in each other at most {MAX_DEPTH} times")


def _inner(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    """Return the lists and objects directly inside a value."""
    return [each for each in (value.values() if isinstance(value, dict) else value) if isinstance(each, dict | list)]
