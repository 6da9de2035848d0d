"""Player of a recording: its position, and the peer's picture and status at that position.

Pure apart from reading files: the caller says how much time has passed.  A seek backwards starts from a copy of the picture
that was made some events earlier, so that every position is reached equally fast.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from peer.control.client import Stamped, stamped_in
from protocol.events import events as ev
from protocol.events.status import PeerStatus, SwarmPeer
from tui.picture import Picture

# ------------------------------------------------------------------------------------------------------------------------
# Recorded event log: JSON lines in one or several files, oldest first.  The files are not trusted and may be damaged.
#
# Only the place and the time of each line are in memory; a line is read when it is needed.


MAX_LINE_BYTES = 1 << 18
MAX_EVENTS = 2_000_000
"""Most events that are indexed (32 MB of memory); later events are left out."""
Mark = tuple[int, bool]
"""The number of an event with a mark on the scrubber, and True if it is an alarm and not a committed round."""


class NoEvents(Exception):
    """Error for files without any event to show; the text is one sentence."""


class EventFile:
    """Index of the events in these files.  Raises `NoEvents`.

    times: time of each event in seconds since 1970, never decreasing.  damaged: number of lines that are not events.
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
            raise NoEvents(f"{', '.join(map(str, paths))}: no events found; give the events.jsonl of a run")

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
            return  # a file was removed
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
                if stamped.event.is_alarm or isinstance(stamped.event, ev.RoundCommitted):
                    self.marks.append((len(self.times), stamped.event.is_alarm))
                self._places.append(number << 48 | place)
                self.times.append(max(stamped.at, self.times[-1] if self.times else -math.inf))
            place += len(line)


# ------------------------------------------------------------------------------------------------------------------------
# Status of a peer derived from its events, for a recording, which holds no status.
#
# Pure.  Fields that no event contains (the phase of other peers, bytes moved) stay empty.


MOST_PEERS = 2048
ROLES = {"generating": "rollout", "verifying": "validator", "seeding": "seed"}
"""Role of a peer, by the phase that only this role has."""


class ToldStatus:
    """Status after the events so far.  now: None before the peer has started."""

    def __init__(self) -> None:
        self.now: PeerStatus | None = None
        self._swarm: dict[str, SwarmPeer] = {}
        self._began = 0.0

    def copy(self) -> ToldStatus:
        """Return an independent copy."""
        other = ToldStatus()
        other.now, other._swarm, other._began = self.now, dict(self._swarm), self._began
        return other

    def apply(self, stamped: Stamped) -> None:
        """Fold an event into the status."""
        event = stamped.event
        if isinstance(event, ev.Started):
            self._begin(event, stamped.mono)
        if self.now is None:
            return
        match event:
            case ev.PeerJoined(peer, name):
                self._set(peer, name=name, liveness="alive", heard_s=0.0)
            case ev.PeerSuspected(peer, silent_s):
                self._set(peer, liveness="suspect", heard_s=silent_s)
            case ev.PeerGone(peer, goodbye):
                self._set(peer, liveness="left" if goodbye else "gone", link="")
            case ev.LinkChanged(peer, link) if peer in self._swarm:
                self._set(peer, link=link)
            case ev.RoundCommitted(number, _, members):
                for peer in members:
                    if peer in self._swarm:
                        self._set(peer, round=number + 1)
        alive = sum(known.liveness == "alive" for known in self._swarm.values())
        self.now = replace(
            _applied(self.now, event),
            peers=alive,
            swarm=list(self._swarm.values()),
            uptime_s=max(0.0, stamped.mono - self._began),
            mono=stamped.mono,
        )

    def _begin(self, event: ev.Started, mono: float) -> None:
        self._swarm, self._began = {}, mono
        self.now = PeerStatus(
            peer=event.peer,
            name=event.name,
            run=event.run,
            run_name=event.run_name,
            role="",
            phase="starting",
            why_idle="starting",
            why_detail="",
            version=event.version,
            pid=event.pid,
            uptime_s=0.0,
            addresses=list(event.addresses),
        )

    def _set(self, peer: str, **fields: object) -> None:
        known = self._swarm.get(peer)
        if known is None:
            if len(self._swarm) >= MOST_PEERS:
                del self._swarm[next(iter(self._swarm))]
            known = SwarmPeer(
                peer=peer,
                name="",
                role="",
                phase="",
                round=0,
                steps=0,
                tokens_per_s=0.0,
                liveness="",
                heard_s=0.0,
                version="",
            )
        self._swarm[peer] = replace(known, **fields)  # type: ignore[arg-type]


def _applied(status: PeerStatus, event: object) -> PeerStatus:
    """Return the status after an event about this peer itself."""
    match event:
        case ev.PhaseChanged(phase, why, detail):
            role = ROLES.get(phase, status.role)
            return replace(status, role=role, phase=phase, why_idle=why, why_detail=detail)
        case ev.RoundCommitted(number, tip, members, tokens, loss, losses=losses, fragment=fragment, fragments=fragments):
            round, following = number + 1, (fragment + 1) % max(1, fragments)
            status = replace(status, round=round, tip=tip, members=list(members), tokens=tokens, loss=loss, losses=losses)
            return replace(status, fragment=following, fragments=fragments)
        case ev.RoundsConfirmed(_, final):
            return replace(status, final_rounds=final)
        case ev.RolledBack(to_round):
            return replace(status, round=max(to_round, status.state_rounds))
        case ev.StateApplied(rounds, digest):
            seen = max(status.round, rounds)  # a peer that only follows commits no rounds
            return replace(status, round=seen, state_rounds=rounds, state_digest=digest)
        case ev.EvalLoss(rounds, loss, by, members=members):
            return replace(status, eval_loss=loss, eval_rounds=rounds, eval_by=by, eval_members=members)
        case ev.TrainerStarted(pid):
            return replace(status, trainer_pid=pid, role=status.role or "trainer")
        case ev.TrainerStopped():
            return replace(status, trainer_pid=None)
        case ev.ReachabilityChanged(reachable, addresses):
            return replace(status, reachable=reachable, reachability=dict(addresses))
        case ev.Left():
            return replace(status, phase="stopping", why_idle="", why_detail="the peer left")
        case _:
            return status


# ------------------------------------------------------------------------------------------------------------------------
# The position in the recording.


SPEEDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
COPIES = 50
LEAST_STEP = 500
"""Smallest number of events between two copies."""
MOST_SILENCE_S = 10.0
"""Longest silence that is played, in seconds on the viewer's clock; a longer gap (a peer off for a night) is skipped."""


class Player:
    """Player of a recording.  picture: the peer after `position` events.  time: seconds since 1970.  plays: not paused."""

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
        """Change the speed by this many steps."""
        self._speed = min(len(SPEEDS) - 1, max(0, self._speed + steps))

    def play(self, passed_s: float) -> bool:
        """Play for this time; return True if this time contained any event."""
        if not self.plays or self.at_end:
            return False
        before, self.time = self.position, min(self.ends, self.time + passed_s * self.speed)
        following = self.file.times[self.position]
        if following - self.time > MOST_SILENCE_S * self.speed:
            self.time = following
        self._go_to(bisect_right(self.file.times, self.time))
        return self.position != before

    def move(self, seconds: float) -> None:
        """Seek forwards by this many seconds, or backwards if the number is negative."""
        self.seek(self.time + seconds)

    def seek(self, time: float) -> None:
        """Go to this time, or to the nearest end of the recording; the first event is always shown."""
        self.time = min(self.ends, max(self.begins, time))
        self._go_to(bisect_right(self.file.times, self.time))

    def next_mark(self, forwards: bool) -> None:
        """Go to the next or the previous committed round or alarm."""
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
