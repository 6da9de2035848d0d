"""Tests as tables of named cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


def cases(names: str, named: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Parametrise a test: `names` of its arguments, and the arguments of each case by the fact that the case states."""
    return pytest.mark.parametrize(names, named.values(), ids=named)
