"""The clock on the wall is the same everywhere, and a view is looked at as soon as it has nothing left to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from textual._context import active_app


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        patch.delenv("NO_COLOR", raising=False)
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Textual wait for messages, where it would look for 20 ms at a time whether the process still computes."""
    monkeypatch.setattr("textual.constants.TEXTUAL_ANIMATIONS", "none")
    for module in ("app", "pilot"):
        monkeypatch.setattr(f"textual.{module}.wait_for_idle", _everything_handled)


async def _everything_handled(*_: float) -> None:
    """Wait until no task of the event loop can go on, and the view has been drawn."""
    ready: Any = asyncio.get_running_loop()
    for _drawing in range(2):  # what is drawn may tell its widgets to do more
        while ready._ready:
            await asyncio.sleep(0)
        active_app.get().screen._on_timer_update()
    while ready._ready:
        await asyncio.sleep(0)
