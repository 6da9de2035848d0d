"""Variants of a test, divided between the fast tier and the slow one."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def first_fast(values: Iterable[Any], count: int = 1) -> list[Any]:
    """Return `values` for `pytest.mark.parametrize`, with a mark on all but the first `count`: they are slow.

    As there, a tuple is one set of arguments.
    """
    variants = list(values)
    return [*variants[:count], *map(_slow, variants[count:])]


def crossed(*choices: Iterable[Any]) -> list[Any]:
    """Return all combinations of the choices for `pytest.mark.parametrize`; fast are those that change one choice at most.

    Changed is what is not the first of its choices.
    """
    lists = [list(each) for each in choices]
    return [
        combination
        if sum(value is not each[0] for value, each in zip(combination, lists, strict=True)) <= 1
        else _slow(combination)
        for combination in product(*lists)
    ]


def _slow(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
