"""A recorded event log: JSON lines in one or several files, the oldest first, which anybody may have written or damaged.

What is kept is where each line is and when it was; a line is read when it is wanted.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, BinaryIO, get_args, get_origin, get_type_hints

from peer.control.client import Stamped
from protocol.event import Event

MAX_LINE_BYTES = 1 << 18
MAX_EVENTS = 2_000_000
"""32 MB of memory; what comes after so many is left out."""
MARKED = (b'"RoundCommitted"', b'"Desynced"', b'"SecondHistory"', b'"PeerEjected"', b'"HandlerFailed"')
"""Events that have a mark on the scrubber: the first is a round, the others are alarms."""
Mark = tuple[int, bool]
"""The number of an event, and whether it is an alarm."""


class NoEvents(Exception):
    """There is nothing to show; the text is one sentence."""


class EventFile:
    """The events of these files.  Raises `NoEvents`.

    times: when each event was (seconds since 1970), never less than the one before.  damaged: lines that are none.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._places, self.times, self.marks = array("Q"), array("d"), list[Mark]()
        self.damaged = self.left_out = 0
        for number, path in enumerate(paths):
            try:
                with path.open("rb") as file:
                    self._index(number, file)
            except OSError as error:
                raise NoEvents(f"{path} cannot be read: {error.strerror}") from error
        if not self.times:
            raise NoEvents(f"{', '.join(map(str, paths))}: no events in there; name the events.jsonl of a run")

    def __len__(self) -> int:
        return len(self.times)

    def read(self, start: int, end: int) -> Iterator[Stamped]:
        """The events from one number up to another, without those whose file has been changed since."""
        file_number, file = -1, None
        try:
            for place in self._places[start:end]:
                if place >> 48 != file_number:
                    if file is not None:
                        file.close()
                    file_number, file = place >> 48, self._paths[place >> 48].open("rb")
                assert file is not None
                file.seek(place & ((1 << 48) - 1))
                stamped = stamped_in(file.readline(MAX_LINE_BYTES))
                if stamped is not None:
                    yield stamped
        except OSError:
            return  # it is gone
        finally:
            if file is not None:
                file.close()

    def _index(self, number: int, file: BinaryIO) -> None:
        place = 0
        while line := file.readline(MAX_LINE_BYTES):
            stamped = stamped_in(line) if line.endswith(b"\n") else None
            if stamped is None:
                self.damaged += bool(line.strip())
            elif len(self.times) >= MAX_EVENTS:
                self.left_out += 1
            else:
                kind = next((place for place, name in enumerate(MARKED) if name in line), None)
                if kind is not None:
                    self.marks.append((len(self.times), kind > 0))
                self._places.append(number << 48 | place)
                self.times.append(max(stamped.at, self.times[-1] if self.times else -math.inf))
            place += len(line)


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
