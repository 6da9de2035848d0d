"""Whether what peers hold grows with time, by readings of it over a day.

Compared are two windows, after the warm-up and at the end: what is largest in the last one may be no larger than what was
largest in the first, but for what varies by the moment, what the design keeps of every round, and tables with a limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.blobs.swarm import MAX_ASKERS
from protocol.chain.history import ROSTERS_KEPT
from protocol.rollouts.worker import VERSIONS_REMEMBERED
from protocol.sync.following import HELD_BRANCHES, HELD_BYTES
from tests.simulation.census import Census

EARLY, LATE = (1 / 6, 1 / 3), (5 / 6, 1.0)
"""The windows, in parts of the time: the hours 4 to 8, and 20 to 24, of a day."""
A_MOMENT = 8
"""So many more may be there by chance: two of each peer's statements, say."""
A_MOMENT_OF_BYTES = 1.5
OF_EACH_ROUND = (
    "entry ChainMemory.tips",
    "entry ChainMemory.electors",
    "entry Settled._followed",
    "file records",
    "bytes records",
)
"""The chain, by design; and what is followed stays until it is settled, a day later."""
RECORD_BYTES = 4096


def limits(peers: int) -> dict[str, int]:
    """Tables that fill up for hours, and the most that they hold with so many peers."""
    rosters = (ROSTERS_KEPT + A_MOMENT) * peers
    return {
        "entry ChainMemory.rosters": ROSTERS_KEPT,
        "object Roster": ROSTERS_KEPT + A_MOMENT,
        "object Electorate": ROSTERS_KEPT + A_MOMENT,
        "object Standing": ROSTERS_KEPT * peers,
        "entry Electorate.electors": rosters,
        "entry Electorate.standings": rosters,
        "entry Roster.contributors": rosters,
        "entry Swarm._askers": MAX_ASKERS,
        "entry Held._branches": HELD_BRANCHES,
        "entry Worker._next": VERSIONS_REMEMBERED,
        "object Branch": HELD_BRANCHES,
        "bytes branches": HELD_BYTES,
    }


@dataclass(frozen=True)
class Reading:
    """counts: of each seat, at this time (s), when there were so many rounds."""

    at_s: float
    rounds: int
    counts: Sequence[Census]


def grown(readings: Sequence[Reading], seconds: float) -> list[str]:
    """A sentence for each thing that has grown at a peer.  seconds: the whole time, whose parts the windows are."""
    early, late = _within(readings, EARLY, seconds), _within(readings, LATE, seconds)
    assert early and late, "too few readings to compare"
    rounds, peers = late[-1].rounds - early[0].rounds, len(readings[0].counts)
    found = []
    for seat in range(peers):
        before, after = _most(early, seat), _most(late, seat)
        for name, most in sorted(after.items()):
            allowed = _allowed(name, before[name], rounds, limits(peers))
            if most > allowed:
                found.append(f"peer {seat}: {name} grew from {before[name]} to {most} in {rounds} rounds; {allowed} allowed")
    return found


def _within(readings: Sequence[Reading], window: tuple[float, float], seconds: float) -> list[Reading]:
    """The last one counts as within the time, though it comes a little later."""
    begin, end = (part * seconds for part in window)
    return [each for each in readings if begin <= each.at_s and (each.at_s <= end or window is LATE)]


def _most(readings: Sequence[Reading], seat: int) -> Census:
    most = Census()
    for reading in readings:
        most |= reading.counts[seat]
    return most


def _allowed(name: str, before: int, rounds: int, limited: dict[str, int]) -> int:
    if name in limited:
        return limited[name]
    is_bytes = name.startswith("bytes ")
    if name in OF_EACH_ROUND:
        return before + rounds * (RECORD_BYTES if is_bytes else 1)
    return int(before * A_MOMENT_OF_BYTES) if is_bytes else before + A_MOMENT
