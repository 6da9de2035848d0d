"""An event log read again: lines that anybody may have written or damaged."""

from __future__ import annotations

import json
import math
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from peer.control.client import Stamped
from protocol.event import Event


def stamped_in(line: bytes) -> Stamped | None:
    """The event in a line; None for anything that no peer writes."""
    try:
        fields = json.loads(line)
        stamped = Stamped.from_fields(fields) if isinstance(fields, dict) else None
    except (ValueError, RecursionError):
        return None
    if stamped is None or not math.isfinite(stamped.at) or not math.isfinite(stamped.mono):
        return None
    return _checked(stamped)


def _checked(stamped: Stamped) -> Stamped | None:
    """The event, if every field is of its kind; a number that is null, which JSON has no form for, is not a number."""
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
    """Whether a value that JSON gave is of an annotated kind; one that is not known here takes anything plain."""
    if isinstance(kind, UnionType):
        return any(_is(value, each) for each in get_args(kind))
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    origin, inside = get_origin(kind), get_args(kind)
    if origin is list:
        return isinstance(value, list) and all(_is(each, inside[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(_is(k, inside[0]) and _is(v, inside[1]) for k, v in value.items())
    return isinstance(value, kind) if kind in (str, bool, NoneType) else isinstance(value, str | int | float | bool | list)
