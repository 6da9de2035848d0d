"""Commands of the control socket: one table of a person's requests to a running peer, and the answers.

This module checks the fields of a request, and decides how long a pause lasts.  Commands that come too early in the peer's
start are refused, with the reason.  The node implements pausing and leaving.
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from peer.control.client import ControlError
from peer.control.ledger import MAX_MEMBERS_TOLD, ledger_of
from peer.control.server import Command
from peer.errors import PeerError
from peer.rests.reasons import MAX_PAUSE_S, TimedPause
from protocol.node.commands import CannotExtend, NotNow
from protocol.run.sections import Unit
from protocol.tasks.commands import CannotAmend, TaskSetCommands
from protocol.wire.identity import PeerId
from protocol.wire.presence import Phase
from protocol.wire.rollouts import MAX_SET_TASKS, Amendment

if TYPE_CHECKING:
    from peer.daemon.daemon import Daemon

MAX_VALUE_CHARACTERS = 2000
LOOK_S = 30.0
"""Seconds between two readings of the clock during a pause."""
GIVEN = re.compile(r"\.given-\d{1,10}\.new")
"""Names of the files that `peer tasks publish` prepares."""
NAME = re.compile(r"[\x20-\x7e]{1,64}")
ID = re.compile(r"[0-9a-f]{6,64}")


class Controls:
    """Commands of one peer.  `run` ends the pauses that have a length."""

    def __init__(self, peer: Daemon) -> None:
        self._peer = peer
        self._pause_changed = trio.Event()

    async def run(self) -> None:
        """End pauses when their time is over, until cancelled."""
        while True:
            with trio.move_on_after(min(LOOK_S, self._pause_left_s())):
                await self._pause_changed.wait()
            if self._pause_left_s() <= 0:
                await self._peer.resume()
                self._peer.notice("info", "the pause is over")
            self._pause_changed = trio.Event()

    def commands(self) -> dict[str, Command]:
        """Return the commands of a client by name."""
        table: dict[str, Command] = {
            "status": self._status,
            "ledger": self._ledger,
            "curves": self._curves,
            "contacts": self._contacts,
            "lines": self._lines,
            "readmit": self._readmit,
            "leave": self._leave,
            "finish": self._finish,
            "pause": self._pause,
            "resume": self._resume,
            "settings": self._settings,
            "set": self._set,
            "weights": self._weights,
            "extend-run": self._extend,
            "tasks": self._tasks,
            "publish-tasks": self._publish_tasks,
            "fetch-tasks": self._fetch_tasks,
            "admit-tasks": self._admit_tasks,
            "remove-tasks": self._remove_tasks,
        }
        return {name: partial(_refusing, command) for name, command in table.items()}

    # -- what the peer knows ------------------------------------------------------------------------------------------

    async def _status(self, fields: dict[str, Any]) -> dict[str, Any]:
        return self._peer.status().to_fields()

    async def _contacts(self, fields: dict[str, Any]) -> dict[str, Any]:
        contacts = self._peer.contacts
        if contacts is None:
            raise ControlError("the peer is still opening its network; ask again")
        await contacts.dial_back()
        return {"run": self._peer.status().run, **asdict(contacts.known())}

    async def _lines(self, fields: dict[str, Any]) -> dict[str, Any]:
        lines = await self._peer.running_node().line_probe.measure()
        peers = [{"name": name, **asdict(sampled), "down_bytes_per_s": sampled.bytes_per_s} for name, sampled in lines.peers]
        return {"run": self._peer.status().run, "peers": peers, "up_bytes_per_s": lines.up_bytes_per_s}

    async def _readmit(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Let a member take part again that this peer has set aside.  peer: its name, or the beginning of its ID."""
        wanted, aside = fields.get("peer"), [each for each in self._peer.status().swarm if each.set_aside]
        found = [each for each in aside if isinstance(wanted, str) and wanted and wanted in (each.name, each.peer)]
        found = found or [each for each in aside if isinstance(wanted, str) and wanted and each.peer.startswith(wanted)]
        if len(found) != 1:
            names = ", ".join(each.name for each in aside) or "nobody"
            raise ControlError(f"name one member that is set aside here, by its name or its ID: {names}")
        self._peer.running_node().audits.lift(PeerId(found[0].peer))
        return {"peer": found[0].peer, "name": found[0].name, "reason": found[0].set_aside}

    async def _curves(self, fields: dict[str, Any]) -> dict[str, Any]:
        return await self._peer.history(lambda history: history.curves.to_fields())

    async def _ledger(self, fields: dict[str, Any]) -> dict[str, Any]:
        return await self._peer.history(lambda history: ledger_of(history.ledger.credits, history.length, MAX_MEMBERS_TOLD))

    async def _weights(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"run": self._peer.status().run, **await self._peer.running_node().weights()}

    # -- settings -----------------------------------------------------------------------------------------------------

    async def _settings(self, fields: dict[str, Any]) -> dict[str, Any]:
        return self._peer.settings()

    async def _set(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Change a setting.  value: new value; None for the default.

        keep: also write peer.toml, if there is one, for later starts.
        """
        name, value, keep = fields.get("name"), fields.get("value"), fields.get("keep", False)
        if not isinstance(name, str) or not (value is None or isinstance(value, str)) or not isinstance(keep, bool):
            raise ControlError("a change needs the name of a setting, and a value that `peer config` accepts")
        if value is not None and len(value) > MAX_VALUE_CHARACTERS:
            raise ControlError(f"a value has at most {MAX_VALUE_CHARACTERS} characters")
        try:
            written = await self._peer.change(name, value, keep)
        except OSError as error:
            raise ControlError(str(error)) from error
        return {"written": written, **self._peer.settings()}

    # -- pauses, and the end ------------------------------------------------------------------------------------------

    async def _leave(self, fields: dict[str, Any]) -> dict[str, Any]:
        self._peer.leave()
        return {}

    async def _finish(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"within_s": self._peer.finish()}

    async def _pause(self, fields: dict[str, Any]) -> dict[str, Any]:
        seconds = fields.get("seconds")
        if seconds is not None and not (
            isinstance(seconds, (int, float)) and math.isfinite(seconds) and 0 < seconds <= MAX_PAUSE_S
        ):
            raise ControlError("a pause lasts from one second to a year; try `peer pause 30m`")
        now = time.time()
        pause = TimedPause(math.inf if seconds is None else now + float(seconds))
        await self._peer.pause(pause)
        self._pause_changed.set()
        self._peer.notice("info", f"paused {pause.end(now)}")
        return {"until": pause.end(now)}

    async def _resume(self, fields: dict[str, Any]) -> dict[str, Any]:
        await self._peer.resume()
        status = self._peer.status()
        rests = status.why_detail if status.phase == Phase.PAUSED.value else ""
        self._peer.notice("info", f"resumed, but {rests}" if rests else "resumed")
        return {"rests": rests}

    def _pause_left_s(self) -> float:
        """Return the rest of the pause by the wall clock, which goes on while the computer sleeps."""
        return self._peer.paused.left_s(time.time()) if self._peer.paused is not None else math.inf

    # -- the organiser's changes, and tasks from the crowd ------------------------------------------------------------

    async def _extend(self, fields: dict[str, Any]) -> dict[str, Any]:
        unit, total = fields.get("unit"), fields.get("total")
        if unit not in [each.value for each in Unit] or type(total) is not int or total < 1:
            raise ControlError("a run is extended to a total of tokens or of rounds; use `peer run extend --rounds N`")
        before = self._peer.status().goal_total
        body = await self._peer.running_node().extensions.extend(Unit(unit), total)
        return {"total": body.total, "before": before}

    async def _tasks(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"run": self._peer.status().run, **self._task_sets().status()}

    async def _publish_tasks(self, fields: dict[str, Any]) -> dict[str, Any]:
        sets, file, name, count = self._task_sets(), fields.get("file"), fields.get("name"), _count(fields)
        if not isinstance(file, str) or not GIVEN.fullmatch(file):
            raise ControlError("a file to publish must be in the run's folder of tasks; use `peer tasks publish FILE`")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ControlError("a set's name has 1 to 64 plain characters; give another one with --name")
        body = await sets.publish(sets.folder / file, name, count)
        return {"id": body.root.hex(), "name": body.name, "tasks": body.count, "size_bytes": body.size}

    async def _fetch_tasks(self, fields: dict[str, Any]) -> dict[str, Any]:
        sets, name = self._task_sets(), _id(fields)
        offer, path = await sets.obtain(name)
        return {"id": offer.root.hex(), "publisher": offer.publisher, "tasks": offer.body.count, "path": str(path)}

    async def _admit_tasks(self, fields: dict[str, Any]) -> dict[str, Any]:
        sets, name, percent, count = self._task_sets(), _id(fields), fields.get("percent"), _count(fields)
        if percent is not None and not (type(percent) is int and 1 <= percent <= 90):
            raise ControlError("the share of problems from the crowd must be between 1 and 90 percent")
        return _told(await sets.admit(name, percent, count))

    async def _remove_tasks(self, fields: dict[str, Any]) -> dict[str, Any]:
        sets, name = self._task_sets(), _id(fields)
        return _told(await sets.remove(name))

    def _task_sets(self) -> TaskSetCommands:
        if (sets := self._peer.tasks) is None:
            raise ControlError("the peer is not in a run with rollouts, or is still starting; only such runs have tasks")
        return sets


async def _refusing(command: Command, fields: dict[str, Any]) -> dict[str, Any]:
    """Answer a request; raise a refusal as a `ControlError` with its sentence."""
    try:
        return await command(fields)
    except (CannotAmend, CannotExtend, NotNow, PeerError) as error:
        raise ControlError(str(error)) from error


def _id(fields: dict[str, Any]) -> str:
    name = fields.get("id")
    if not isinstance(name, str) or not ID.fullmatch(name):
        raise ControlError("the ID of a set is 6 to 64 hexadecimal digits; `peer tasks list` shows them")
    return name


def _count(fields: dict[str, Any]) -> int:
    count = fields.get("count")
    if type(count) is not int or not 1 <= count <= MAX_SET_TASKS:
        raise ControlError(f"a set has 1 to {MAX_SET_TASKS} tasks")
    return count


def _told(amendment: Amendment) -> dict[str, Any]:
    return {
        "amendment": amendment.number,
        "percent": amendment.percent,
        "sets": [each.root.hex() for each in amendment.sets],
    }
