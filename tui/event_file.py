"""Recorded event log: JSON lines in one or several files, oldest first.  The files are not trusted and may be damaged.

In memory are only the place and the time of each line; a line is read when it is needed.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from peer.control.client import Stamped, stamped_in

MAX_LINE_BYTES = 1 << 18
MAX_EVENTS = 2_000_000
"""Events that are indexed, 32 MB of memory; later ones are left out."""
ALARMS = ("Desynced", "SecondHistory", "PeerEjected", "HandlerFailed", "RolloutPeerSetAside", "ValidatorSetAside")
MARKED = tuple(f'"{name}"'.encode() for name in ("RoundCommitted", *ALARMS))
"""Names of the events with a mark on the scrubber: the first is a committed round, the others are alarms."""
Mark = tuple[int, bool]
"""The number of an event, and True if it is an alarm."""


class NoEvents(Exception):
    """Error for files without any event to show; the text is one sentence."""


class EventFile:
    """Index of the events in these files.  Raises `NoEvents`.

    times: of each event in seconds since 1970, never less than the time before it.  damaged: lines that are no events.
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
        """Yield the events numbered `start` to `end` - 1, without any that can no longer be read from their file."""
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
            return  # a file is gone
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
