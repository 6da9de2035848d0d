"""Dialogue of a benchmark's process with the process that started it: one JSON object a line."""

from __future__ import annotations

import json
import sys
from typing import Any

import trio


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


async def hear() -> dict[str, Any]:
    words: dict[str, Any] = json.loads(await trio.to_thread.run_sync(sys.stdin.readline))
    return words
