"""What the person may ask of a running peer through the control socket, and what it answers.

Decides how long a pause lasts and what a command means while the peer is still starting (it is refused, with the
reason); what pausing or leaving does is the node's business.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, Protocol

import trio

from peer.console.sentences import duration
from peer.control.client import ControlError
from peer.control.ledger import ledger
from peer.control.server import Command
from peer.discovery.contacts import Contacts
from protocol.state.store import Store

MAX_PAUSE_S = 366 * 86_400.0


class Peer(Protocol):
    """What the commands act on: the daemon."""

    nursery: trio.Nursery

    @property
    def store(self) -> Store | None: ...

    @property
    def contacts(self) -> Contacts | None: ...

    def status(self) -> dict[str, Any]: ...

    def notice(self, level: str, text: str) -> None: ...

    def leave(self) -> None: ...

    def finish(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Controls:
    """The commands of one peer."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._timer: trio.CancelScope | None = None

    def commands(self) -> dict[str, Command]:
        return {"status": self._status, "ledger": self._ledger, "contacts": self._contacts, "leave": self._leave,
                "finish": self._finish, "pause": self._pause, "resume": self._resume}

    async def _status(self, fields: dict[str, Any]) -> dict[str, Any]:
        return self._peer.status()

    async def _contacts(self, fields: dict[str, Any]) -> dict[str, Any]:
        contacts = self._peer.contacts
        if contacts is None:
            raise ControlError("the peer is still opening its network; ask again")
        await contacts.dial_back()
        return {"run": self._peer.status()["run"], **asdict(contacts.known())}

    async def _ledger(self, fields: dict[str, Any]) -> dict[str, Any]:
        store = self._peer.store
        if store is None:
            raise ControlError("the peer is still fetching the run's manifest; there is no ledger yet")
        return await trio.to_thread.run_sync(ledger, store)

    async def _leave(self, fields: dict[str, Any]) -> dict[str, Any]:
        self._peer.leave()
        return {}

    async def _finish(self, fields: dict[str, Any]) -> dict[str, Any]:
        self._peer.finish()
        return {}

    async def _pause(self, fields: dict[str, Any]) -> dict[str, Any]:
        seconds = fields.get("seconds")
        if seconds is not None and not (isinstance(seconds, (int, float)) and math.isfinite(seconds)
                                        and 0 < seconds <= MAX_PAUSE_S):
            raise ControlError("a pause lasts between a moment and a year; try `peer pause 30m`")
        self._peer.pause()
        self._stop_timer()
        until = "until `peer resume`" if seconds is None else f"for {duration(seconds)}"
        self._peer.notice("info", f"paused {until}")
        if seconds is not None:
            self._peer.nursery.start_soon(self._resume_after, float(seconds))
        return {}

    async def _resume(self, fields: dict[str, Any]) -> dict[str, Any]:
        self._stop_timer()
        self._peer.resume()
        self._peer.notice("info", "resumed")
        return {}

    async def _resume_after(self, seconds: float) -> None:
        with trio.CancelScope() as self._timer:
            await trio.sleep(seconds)
            self._peer.resume()
            self._peer.notice("info", "the pause is over")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
