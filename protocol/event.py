"""The base of all events (`protocol.events`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Event:
    """Base of all events."""

    def to_fields(self) -> dict[str, Any]:
        """A flat map: the class's name under "event", then the fields."""
        return {"event": type(self).__name__, **asdict(self)}
