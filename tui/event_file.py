"""A recorded event log: JSON lines in one or several files, the oldest first, which anybody may have written or damaged.

What is kept is where each line is and when it was; a line is read when it is wanted.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from peer.control.client import Stamped
from peer.control.event_lines import stamped_in

MAX_LINE_BYTES = 1 << 18
MAX_EVENTS = 2_000_000
"""32 MB of memory; what comes after so many is left out."""
ALARMS = ("Desynced", "SecondHistory", "PeerEjected", "HandlerFailed", "RolloutPeerSetAside", "ValidatorSetAside")
MARKED = tuple(f'"{name}"'.encode() for name in ("RoundCommitted", *ALARMS))
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
