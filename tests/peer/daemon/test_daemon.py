"""A peer's stays in its run, one after the other."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import trio

from peer.console.display import Style
from peer.daemon.daemon import Daemon
from peer.daemon.settings import DaemonSettings, RunChoice
from peer.rests.keeper import Rest
from peer.rests.reasons import TimedPause
from peer.settings.file import gather
from protocol.events.events import Event
from protocol.events.status import WhyIdle
from protocol.node.node import Node
from protocol.run.manifest import demo_manifest
from protocol.wire.identity import Identity, PeerId

FULL = Rest(WhyIdle.DISK_FULL, "full")
STAYS = 3


class Stays:
    """Ends each stay as soon as its node says anything, for a reason that is over at once.  nodes: of all stays."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        signed = demo_manifest()
        choice = RunChoice(signed.run, PeerId(signed.manifest.organiser), signed)
        live = gather({"role": "seed"}, {"PEER_CONFIG": ""})
        settings = DaemonSettings(folder, Style.SILENT, live, local=True)
        monkeypatch.setattr("peer.daemon.daemon.EventLog.emit", lambda log, event: self.emit(event))
        self.daemon = Daemon(settings, Identity.generate(), choice)
        self.nodes: list[weakref.ref[Node]] = []
        self.left_over: list[int] = []
        """At the end of each stay, how many nodes of earlier ones are still there."""

    def emit(self, event: Event) -> None:
        node = self.daemon.node
        if node is None or node in [known() for known in self.nodes]:
            return
        self.left_over.append(sum(known() is not None for known in self.nodes))
        self.nodes.append(weakref.ref(node))
        trio.lowlevel.current_trio_token().run_sync_soon(self.end)

    def end(self) -> None:
        if len(self.nodes) < STAYS:
            self.daemon._spent(trio.CancelScope(), FULL)
        else:
            self.daemon.leave()


def test_nothing_of_earlier_stays_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def is_over(*arguments: Any) -> None:
        await trio.lowlevel.checkpoint()

    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("PEER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr("peer.daemon.daemon.Away.until_over", is_over)

    async def main() -> Stays:
        stays = Stays(tmp_path / "data", monkeypatch)
        await stays.daemon.stay(lambda: None)
        return stays

    (tmp_path / "data").mkdir(mode=0o700)
    try:
        assert trio.run(main).left_over == [0] * STAYS
    finally:
        gc.unfreeze()


def test_a_pause_is_told_with_its_end_and_stops_the_count_of_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        daemon = Stays(tmp_path, monkeypatch).daemon
        assert daemon.status().next_rest == "" and not daemon.is_working, "there is no trainer yet"
        await daemon.pause(TimedPause())
        assert daemon.status().next_rest == "paused until `peer resume`"
        await daemon.resume()
        assert daemon.status().next_rest == ""

    trio.run(main)
