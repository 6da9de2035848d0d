"""Commands of the control socket about tasks from the crowd."""

from __future__ import annotations

import re
from typing import Any, Protocol

from peer.control.client import ControlError
from peer.control.server import Command
from protocol.events.status import PeerStatus
from protocol.tasks.desk import CannotAmend, TaskSetCommands
from protocol.wire.tasks import MAX_SET_TASKS, Amendment

GIVEN = re.compile(r"\.given-\d{1,10}\.new")
"""Names of the files that `peer tasks publish` prepares."""
NAME = re.compile(r"[\x20-\x7e]{1,64}")
ID = re.compile(r"[0-9a-f]{6,64}")


class TaskPeer(Protocol):
    """The daemon, on which the commands act."""

    @property
    def tasks(self) -> TaskSetCommands | None: ...

    def status(self) -> PeerStatus: ...


class TaskControls:
    """Task commands of one peer."""

    def __init__(self, peer: TaskPeer) -> None:
        self._peer = peer

    def commands(self) -> dict[str, Command]:
        """Return the commands of a client by name."""
        return {
            "tasks": self._tasks,
            "publish-tasks": self._publish,
            "fetch-tasks": self._fetch,
            "admit-tasks": self._admit,
            "remove-tasks": self._remove,
        }

    async def _tasks(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"run": self._peer.status().run, **self._desk().status()}

    async def _publish(self, fields: dict[str, Any]) -> dict[str, Any]:
        desk, file, name, count = self._desk(), fields.get("file"), fields.get("name"), _count(fields)
        if not isinstance(file, str) or not GIVEN.fullmatch(file):
            raise ControlError("a file to publish lies in the run's folder of tasks; use `peer tasks publish`")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ControlError("a set's name has 1 to 64 plain characters; give another one with --name")
        try:
            body = await desk.publish(desk.folder / file, name, count)
        except CannotAmend as error:
            raise ControlError(str(error)) from error
        return {"id": body.root.hex(), "name": body.name, "tasks": body.count, "size_bytes": body.size}

    async def _fetch(self, fields: dict[str, Any]) -> dict[str, Any]:
        desk, name = self._desk(), _id(fields)
        try:
            offer, path = await desk.obtain(name)
        except CannotAmend as error:
            raise ControlError(str(error)) from error
        return {"id": offer.root.hex(), "publisher": offer.publisher, "tasks": offer.body.count, "path": str(path)}

    async def _admit(self, fields: dict[str, Any]) -> dict[str, Any]:
        desk, name, percent, count = self._desk(), _id(fields), fields.get("percent"), _count(fields)
        if percent is not None and not (type(percent) is int and 1 <= percent <= 90):
            raise ControlError("from 1 to 90 percent of the problems are of the crowd")
        try:
            return _told(await desk.admit(name, percent, count))
        except CannotAmend as error:
            raise ControlError(str(error)) from error

    async def _remove(self, fields: dict[str, Any]) -> dict[str, Any]:
        desk, name = self._desk(), _id(fields)
        try:
            return _told(await desk.remove(name))
        except CannotAmend as error:
            raise ControlError(str(error)) from error

    def _desk(self) -> TaskSetCommands:
        desk = self._peer.tasks
        if desk is None:
            raise ControlError("the peer is not in a run with rollouts, or is still starting; only such runs have tasks")
        return desk


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
