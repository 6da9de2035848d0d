"""Async tests of the protocol: trio runs them in virtual time."""

from __future__ import annotations

import inspect
from functools import partial

import pytest
import trio
from trio.testing import MockClock


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test with a clock that jumps to whatever is waited for."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    trio.run(partial(test, **arguments), clock=MockClock(autojump_threshold=0))
    return True
