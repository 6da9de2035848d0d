"""Names that the members of a run chose: of themselves, and of their teams.

The event log has them, and forgets the oldest.  A running peer keeps the last names of each member of a record in a file, so
that the ledger and the page know those who left long ago.  Others are not kept: keys are free, and so are their names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import trio

from peer.control.client import logged_events
from peer.control.event_log import LOG_NAMES
from peer.files import read_json, write_atomically
from protocol.events.events import PeerJoined, Started
from protocol.events.status import NodeStatus
from protocol.team import team_named
from protocol.wire.identity import PeerId

FILE_NAME = "names.json"
MAX_BYTES = 8 << 20
MAX_KEPT = 10_000
"""Most members whose names are kept; those that were seen last stay."""
NAME_CHARACTERS = 40
KEEP_EVERY_S = 60.0


@dataclass(frozen=True)
class ChosenNames:
    """Names and teams by peer ID, the last of each; an empty team is no team."""

    names: dict[str, str] = field(default_factory=dict)
    teams: dict[str, str] = field(default_factory=dict)

    def note(self, peer: str, name: str, team: str) -> None:
        """Note what a peer calls itself and its team now."""
        self.names.pop(peer, None)  # the last of the dictionary is the one that was seen last
        self.names[peer], self.teams[peer] = name[:NAME_CHARACTERS], team_named(team)

    def updated(self, status: NodeStatus) -> ChosenNames:
        """Return the names after the ones that a running peer knows."""
        return ChosenNames(self.names | status.names(), self.teams | status.teams())


def kept_names(folder: Path) -> ChosenNames:
    """Return the names that were kept in the folder of a run; none if there is no file, or if it is damaged.  Blocking."""
    kept = ChosenNames()
    try:
        for peer, (name, team) in read_json(folder / FILE_NAME, MAX_BYTES).items():
            kept.note(str(peer), str(name), str(team))
    except (ValueError, TypeError, AttributeError):
        return ChosenNames()
    return kept


def chosen_names_in(folder: Path, members: Collection[str]) -> ChosenNames:
    """Return the names of `members` in the folder of a run: the ones in its event log, else the ones kept.  Blocking."""
    chosen = kept_names(folder)
    with suppress(OSError):
        for stamped in logged_events((folder / name for name in reversed(LOG_NAMES)), PeerJoined, Started):
            match stamped.event:
                case PeerJoined(peer, name, team) | Started(peer, name, team=team) if peer in members:
                    chosen.note(peer, name, team)
    return chosen


class NameKeeper:
    """Keeper of the file, while a peer runs.  folder: of the run.  status: returns the status of the node.

    is_member: returns True if a record names the peer.
    """

    def __init__(self, folder: Path, status: Callable[[], NodeStatus], is_member: Callable[[PeerId], bool]) -> None:
        self._folder, self._status, self._is_member = folder, status, is_member
        self._kept: ChosenNames | None = None

    async def keep(self) -> None:
        """Keep the file current until cancelled."""
        while True:
            await trio.sleep(KEEP_EVERY_S)
            await self.save()

    async def save(self) -> None:
        """Write the file if a member has a new name."""
        if self._kept is None:
            self._kept = await trio.to_thread.run_sync(kept_names, self._folder)
        if self._note(self._kept):
            await trio.to_thread.run_sync(_write, self._folder, self._kept)

    def _note(self, kept: ChosenNames) -> bool:
        """Note the members' present names; return True if any of them is new."""
        status, before = self._status(), (dict(kept.names), dict(kept.teams))
        names, teams = status.names(), status.teams()
        for peer in names:
            if self._is_member(PeerId(peer)):
                kept.note(peer, names[peer], teams[peer])
        for peer in list(kept.names)[:-MAX_KEPT]:
            del kept.names[peer], kept.teams[peer]
        return (kept.names, kept.teams) != before


def _write(folder: Path, kept: ChosenNames) -> None:
    fields = {peer: [name, kept.teams[peer]] for peer, name in kept.names.items()}
    with suppress(OSError):  # the store reports a full disk; the event log has the names of the last weeks
        write_atomically(folder / FILE_NAME, json.dumps(fields, separators=(",", ":")).encode())
