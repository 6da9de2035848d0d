"""Async tests of the protocol: trio runs them in virtual time."""

from __future__ import annotations

import inspect
from functools import partial

import pytest
import trio
from trio.testing import MockClock


@pytest.fixture
def nursery() -> None:
    """A nursery, opened for an async test that asks for one, and cancelled when the test is over."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test with a clock that jumps to whatever is waited for."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    test = partial(pyfuncitem.obj, **given)

    async def in_a_nursery() -> None:
        async with trio.open_nursery() as nursery:
            await test(nursery=nursery)
            nursery.cancel_scope.cancel()

    trio.run(in_a_nursery if "nursery" in given else test, clock=MockClock(autojump_threshold=0))
    return True
