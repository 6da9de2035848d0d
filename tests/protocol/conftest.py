"""Tests that are coroutines: trio runs them, with the tables that they ask for open around them."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from protocol.run.manifest import SignedManifest
from tests.protocol.chains import a_run
from tests.protocol.peers import ANN


@pytest.fixture
def virtual_time() -> None:
    """Run the test by a clock that jumps to the next deadline as soon as nothing else is to be done."""


@pytest.fixture
def nursery() -> AbstractAsyncContextManager[trio.Nursery]:
    """A nursery that is cancelled when the test is over."""
    return _cancelled_nursery()


@asynccontextmanager
async def _cancelled_nursery() -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


@pytest.fixture
def signed() -> SignedManifest:
    """The run of a table: Ann founded it.  `in_run` names another one."""
    return a_run(ANN)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine in trio; a fixture that is an asynchronous context manager is entered there, in order."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names: list[str] = [name for name in inspect.signature(test).parameters if name in pyfuncitem.funcargs]

    async def main() -> None:
        async with AsyncExitStack() as opened:
            arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
            for name, value in arguments.items():
                if isinstance(value, AbstractAsyncContextManager):
                    arguments[name] = await opened.enter_async_context(value)
            await test(**arguments)

    is_virtual = "virtual_time" in pyfuncitem.fixturenames
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0) if is_virtual else None)
    return True
