"""Variants of a test, divided between the fast tier and the slow one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_fast(values: Iterable[Any], count: int = 1) -> list[Any]:
    """Return `values` for `pytest.mark.parametrize`, with a mark on all but the first `count`: they are slow.

    As there, a tuple is one set of arguments.
    """
    variants = list(values)
    return [*variants[:count], *map(_slow, variants[count:])]


def _slow(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
