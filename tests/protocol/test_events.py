"""The events have a meaning, and survive the flat form.  tests/test_reference.py compares docs/reference/events.md."""

from __future__ import annotations

import pytest

from protocol.events.events import EVENTS, Event, Notice, from_fields


@pytest.mark.parametrize("cls", EVENTS.values())
def test_every_event_says_what_it_means(cls: type[Event]) -> None:
    assert cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}("), "dataclasses write one of their own"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"event": "Unheard"},
        {"event": "Notice"},
        {"event": "Notice", "text": "x"},
        {"event": "Notice", "level": "info", "text": "x", "more": 1},
    ],
)
def test_what_is_no_event_is_a_value_error(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="event"):
        from_fields(given)
    assert from_fields(Notice("info", "x").to_fields()) == Notice("info", "x")
