"""Tasks that another peer causes: whatever goes wrong in one ends that task, and not the nursery that it runs in."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

log = logging.getLogger(__name__)


async def guarded(work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """Await `work`; raises nothing but what cancels it."""
    try:
        await work(*arguments)
    except Exception as error:  # noqa: BLE001 - see above
        log.debug("%r failed: %r", work, error)
