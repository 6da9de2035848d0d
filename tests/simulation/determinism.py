"""Trio with a seeded scheduler: the same seed runs the same tasks in the same order."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from random import Random
from typing import Any

import trio

from protocol.wire.hashes import Hash
from protocol.wire.messages import REMEMBERED_BYTES
from tests.simulation.processes import PROCESS, clocks_of_their_own

MOST_DECODED = 256
"""Most large statements that the peers of a process share."""


@contextmanager
def deterministic_trio(seed: int) -> Iterator[None]:
    """Within, trio picks the order of runnable tasks from `seed` (the hook that hypothesis uses too)."""
    core: Any = importlib.import_module("trio._core._run")
    before = core._r, core._ALLOW_DETERMINISTIC_SCHEDULING
    core._r, core._ALLOW_DETERMINISTIC_SCHEDULING = Random(seed), True
    try:
        with clocks_of_their_own():
            yield
    finally:
        core._r, core._ALLOW_DETERMINISTIC_SCHEDULING = before


@contextmanager
def shared_decoding() -> Iterator[None]:
    """Within, the peers of this process decode and check the bytes of a large statement once for all of them.

    They would all come to the same result.  Statements are never changed, so the peers can share them, as they share small
    ones (`protocol.wire.messages.unpack`).
    """
    messages: Any = importlib.import_module("protocol.wire.messages")
    decode = messages._unpack

    @lru_cache(maxsize=MOST_DECODED)
    def decode_once(data: bytes, run: Hash, max_bytes: int) -> Any:
        return decode(data, run, max_bytes)

    def unpack(data: bytes | memoryview, run: Hash, max_bytes: int) -> Any:
        return decode(data, run, max_bytes) if len(data) <= REMEMBERED_BYTES else decode_once(bytes(data), run, max_bytes)

    messages._unpack = unpack
    try:
        yield
    finally:
        messages._unpack = decode


async def inline(function: Any, *arguments: Any) -> Any:
    """In place of a worker thread: threads would finish in no fixed order.  A slow process takes its time for it."""
    process = PROCESS.get()
    await trio.sleep(process.slow_s if process is not None else 0.0)
    return function(*arguments)
