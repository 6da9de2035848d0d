"""What holds for all tests."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, settings

from protocol.corpora import manifest

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
"""An example may take as long as it takes: on a busy machine any of them exceeds hypothesis's 200 ms now and then."""

os.environ["PEER_CONFIG"] = ""
"""Nobody's own peer.toml, for us and for the processes that tests start."""

for size in ("COLUMNS", "LINES"):  # set by pytest-xdist: a program in a test's terminal would believe them, not its terminal
    os.environ.pop(size, None)

MOST_S = 900.0
"""Longest time of one test, several times that of the longest.  A test that hangs is ended with its process, and named, so
that it cannot take the time of all others."""


@pytest.fixture
def tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read corpora with blocks of a few tokens too, so that rows of small corpora cross blocks and shards."""
    monkeypatch.setattr(manifest, "LEAST_BLOCK_TOKENS", 1)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do at once what would be done in a thread: virtual time need not wait, and would not, for threads."""

    async def at_once(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr("trio.to_thread.run_sync", at_once)


STDERR = pytest.StashKey[int]()
"""Descriptor of the standard error, which pytest captures while tests run."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep the standard error for the stacks of a test that hangs."""
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        config.stash[STDERR] = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run a test, and end the process with all its stacks if the test takes more than `MOST_S`."""
    faulthandler.dump_traceback_later(MOST_S, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
