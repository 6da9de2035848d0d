"""Position of a replay in its recording, and the picture of the peer there.

Pure but for the file that it reads: the caller says how much time has passed.  A seek backwards starts from a copy of the
picture taken some events earlier, so that every place is reached equally fast.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from tui.event_file import EventFile
from tui.picture import Picture
from tui.told_status import ToldStatus

SPEEDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
COPIES = 50
LEAST_STEP = 500
"""Least number of events between two copies."""
MOST_SILENCE_S = 10.0
"""Longest silence that is played, in seconds of the viewer; a longer gap (a peer off for a night) is skipped."""


class Player:
    """Player of a recording.  picture: the peer after `position` events.  time: seconds since 1970.  plays: not stopped."""

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
        """Seconds of the recording per second."""
        return SPEEDS[self._speed]

    @property
    def begins(self) -> float:
        """Time of the first event, seconds since 1970."""
        return self.file.times[0]

    @property
    def ends(self) -> float:
        """Time of the last event, seconds since 1970."""
        return self.file.times[-1]

    @property
    def at_end(self) -> bool:
        """True if all events have been shown."""
        return self.position == len(self.file)

    def faster(self, steps: int) -> None:
        """Change the speed by so many steps."""
        self._speed = min(len(SPEEDS) - 1, max(0, self._speed + steps))

    def play(self, passed_s: float) -> bool:
        """Play for this time; return True if any event fell into it."""
        if not self.plays or self.at_end:
            return False
        before, self.time = self.position, min(self.ends, self.time + passed_s * self.speed)
        following = self.file.times[self.position]
        if following - self.time > MOST_SILENCE_S * self.speed:
            self.time = following
        self._go_to(bisect_right(self.file.times, self.time))
        return self.position != before

    def move(self, seconds: float) -> None:
        """Seek by so many seconds, forwards or, if negative, backwards."""
        self.seek(self.time + seconds)

    def seek(self, time: float) -> None:
        """Go to this time, or to the nearest end of the recording; the first event is always shown."""
        self.time = min(self.ends, max(self.begins, time))
        self._go_to(bisect_right(self.file.times, self.time))

    def next_mark(self, forwards: bool) -> None:
        """Go to the next committed round or alarm, or to the one before."""
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
