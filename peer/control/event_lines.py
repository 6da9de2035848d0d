"""Lines of an event log, read back: anybody may have written or damaged them."""

from __future__ import annotations

import json
import math
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from peer.control.client import Stamped
from protocol.events.events import Event

LATEST_S = 1e11
"""Seconds since 1970 in the year 5138, beyond any clock; calendars end some thousand years later."""
MOST = 2**63
"""Largest number in an event; sentences and pictures compute with it in floating point."""


def stamped_in(line: bytes) -> Stamped | None:
    """Return the event in a line; None for a line that no peer writes."""
    try:
        fields = json.loads(line)
        stamped = Stamped.from_fields(fields) if isinstance(fields, dict) else None
        if stamped is None or not 0 <= stamped.at <= LATEST_S or not abs(stamped.mono) <= LATEST_S:
            return None
        return _checked(stamped)
    except (ValueError, RecursionError):
        return None


def _checked(stamped: Stamped) -> Stamped | None:
    """Return the event if every field has its type; null, for which JSON has no number, becomes NaN."""
    event = stamped.event
    for name, kind in _kinds(type(event)).items():
        value = getattr(event, name)
        if kind is float and value is None:
            object.__setattr__(event, name, math.nan)
        elif not _is(value, kind):
            return None
    return stamped


_KINDS: dict[type[Event], dict[str, Any]] = {}


def _kinds(cls: type[Event]) -> dict[str, Any]:
    if cls not in _KINDS:
        _KINDS[cls] = get_type_hints(cls)
    return _KINDS[cls]


def _is(value: object, kind: Any) -> bool:
    """Return True if a value from JSON has the annotated type; a type unknown here takes any plain value."""
    if isinstance(kind, UnionType):
        return any(_is(value, each) for each in get_args(kind))
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf and _is_small(value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and _is_small(value)
    if kind is str:
        return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)
    origin, inside = get_origin(kind), get_args(kind)
    if origin is list:
        return isinstance(value, list) and all(_is(each, inside[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(_is(k, inside[0]) and _is(v, inside[1]) for k, v in value.items())
    if kind in (bool, NoneType):
        return isinstance(value, kind)
    if isinstance(value, list):
        return all(_is(each, kind) for each in value)
    return any(_is(value, each) for each in (str, int, float, bool))


def _is_small(value: float) -> bool:
    return not isinstance(value, int) or abs(value) <= MOST
