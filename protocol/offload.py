"""The seam through which blocking work leaves the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

Offload = Callable[..., Awaitable[Any]]
"""Callable that runs a blocking function without holding up the event loop: `trio.to_thread.run_sync`, or inline."""
