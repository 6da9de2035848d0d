"""Events as they come back from the control socket and the event log (`protocol.events`)."""

from __future__ import annotations

from typing import Any

from protocol.events import Event

EVENTS: dict[str, type[Event]] = {cls.__name__: cls for cls in Event.__subclasses__()}


def from_fields(fields: dict[str, Any]) -> Event:
    """The event in `fields`; raises ValueError when there is no such event or its fields are wrong."""
    name = fields.get("event")
    cls = EVENTS.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ValueError(f"no such event: {fields.get('event')!r}")
    try:
        return cls(**{name: value for name, value in fields.items() if name != "event"})
    except TypeError as error:
        raise ValueError(f"event {cls.__name__} with wrong fields") from error
