"""The interface for running blocking work outside the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

Offload = Callable[..., Awaitable[Any]]
"""Callable that runs a blocking function without blocking the event loop: `trio.to_thread.run_sync`, or inline."""
