"""JSON that every reader accepts: numbers without a JSON form become null."""

from __future__ import annotations

import json
import math
from typing import Any


def plain(value: Any) -> Any:
    """`value` with null for every number that is not finite."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_json(value: Any) -> None:
    """Print one object on one line of standard output."""
    print(json.dumps(plain(value)), flush=True)
