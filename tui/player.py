"""Where a replay is in its recording, and what was known there.

Pure but for the file that it reads: told how much time has passed.  Going back begins at a copy of the picture from some
events before, so that any place is as near as the last one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from tui.event_file import EventFile
from tui.picture import Picture
from tui.told_status import ToldStatus

SPEEDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
COPIES = 50
LEAST_STEP = 500
"""Events between two copies."""
MOST_SILENCE_S = 10.0
"""A peer that was off for a night is skipped when a gap has been shown for so long."""


class Player:
    """picture: what was known at `position`, which counts events.  time: seconds since 1970.  plays: by itself."""

    def __init__(self, file: EventFile) -> None:
        self.file = file
        self.position = 0
        self.time = file.times[0]
        self.plays, self._speed = True, 3
        self.picture, self._status = Picture(), ToldStatus()
        self._step = max(LEAST_STEP, len(file) // COPIES)
        self._copies: dict[int, tuple[Picture, ToldStatus]] = {0: (Picture(), ToldStatus())}

    @property
    def speed(self) -> float:
        """Seconds of the recording in one second."""
        return SPEEDS[self._speed]

    @property
    def begins(self) -> float:
        """When the recording does."""
        return self.file.times[0]

    @property
    def ends(self) -> float:
        """When the recording does."""
        return self.file.times[-1]

    @property
    def at_end(self) -> bool:
        """Whether all of it has been shown."""
        return self.position == len(self.file)

    def faster(self, steps: int) -> None:
        """Change the speed by so many steps."""
        self._speed = min(len(SPEEDS) - 1, max(0, self._speed + steps))

    def play(self, passed_s: float) -> bool:
        """Go on for this time; whether anything happened in it."""
        if not self.plays or self.at_end:
            return False
        before, self.time = self.position, min(self.ends, self.time + passed_s * self.speed)
        following = self.file.times[self.position]
        if following - self.time > MOST_SILENCE_S * self.speed:
            self.time = following
        self._go_to(bisect_right(self.file.times, self.time))
        return self.position != before

    def move(self, seconds: float) -> None:
        """Forwards or backwards in the recording."""
        self.seek(self.time + seconds)

    def seek(self, time: float) -> None:
        """To this time, or as near to it as the recording goes; the first event is always shown."""
        self.time = min(self.ends, max(self.begins, time))
        self._go_to(bisect_right(self.file.times, self.time))

    def next_mark(self, forwards: bool) -> None:
        """To the next committed round or alarm, or to the one before."""
        numbers = [number for number, _ in self.file.marks]
        if forwards:
            place = bisect_left(numbers, self.position)
            number = numbers[place] if place < len(numbers) else len(self.file) - 1
        else:
            place = bisect_left(numbers, self.position - 1) - 1
            number = numbers[place] if place >= 0 else 0
        self.time = self.file.times[number]
        self._go_to(number + 1)

    def _go_to(self, position: int) -> None:
        start = max(place for place in self._copies if place <= position)
        if not start <= self.position <= position:
            picture, status = self._copies[start]
            self.position, self.picture, self._status = start, picture.copy(), status.copy()
        while self.position < position:
            end = min(position, self.position - self.position % self._step + self._step)
            for stamped in self.file.read(self.position, end):
                self._status.apply(stamped)
                self.picture.apply(stamped)
            self.position = end
            if end % self._step == 0 and end not in self._copies:
                self._copies[end] = self.picture.copy(), self._status.copy()
        if self._status.now is not None:
            self.picture.status = self._status.now
