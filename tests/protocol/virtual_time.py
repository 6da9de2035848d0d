"""Tests that a table, a web or a nursery is made for within trio: it is their first argument."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from inspect import signature
from typing import Any

Check = Callable[..., Awaitable[None]]


def given_first(test: Check, provide: Callable[[Check], None]) -> Callable[..., None]:
    """Return a test that `provide` runs with its first argument, and pytest with the others."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        provide(partial(test, **fixtures))

    own = signature(test)
    run.__dict__["__signature__"] = own.replace(parameters=[*own.parameters.values()][1:])
    return run
