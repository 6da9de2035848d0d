"""The schema of the events: what docs/reference/events.md says, and what survives the flat form."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from protocol.events.events import EVENTS, PROGRESS, Event, Notice, from_fields

DOCUMENT = (Path(__file__).parents[2] / "docs" / "reference" / "events.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.*?) \| .+ \|$", DOCUMENT, re.MULTILINE))


def test_the_document_names_every_event_and_no_other() -> None:
    assert sorted(ROWS) == sorted(EVENTS)
    assert all(f"`{cls.__name__}`" in DOCUMENT.split("## ")[0] for cls in PROGRESS)


@pytest.mark.parametrize("name", EVENTS)
def test_the_document_names_every_field_in_its_order(name: str) -> None:
    outside_parentheses = re.sub(r"\([^)]*\)", "", ROWS[name])
    assert re.findall(r"`(\w+)`", outside_parentheses) == [field.name for field in fields(EVENTS[name])]


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
