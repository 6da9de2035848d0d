"""What a peer says of itself before its node runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from peer.console.display import Style
from peer.daemon import participation
from peer.daemon.participation import Participation
from peer.daemon.settings import DaemonSettings, RunChoice
from peer.paths import SCRATCH, run_dir
from peer.resources.room import MARGIN_BYTES, STATES_ON_DISK, DiskRoom
from peer.settings.file import gather
from protocol.disk import StoreFull
from protocol.events.events import Event, Notice, PhaseChanged
from protocol.events.status import WhyIdle
from protocol.run.manifest import demo_manifest
from protocol.wire.identity import Identity, PeerId


class Table:
    """A participation in a run of which only the hash is known, and what it told."""

    def __init__(self, folder: Path, state: str = "auto", cap: int | None = None) -> None:
        self.signed, self.told = demo_manifest(), list[Event]()
        choice = RunChoice(self.signed.run, PeerId(self.signed.manifest.organiser), None)
        settings = DaemonSettings(folder, Style.SILENT, gather({"role": "seed", "state": state}, {"PEER_CONFIG": ""}))
        self.part = Participation(settings, Identity.generate(), choice, DiskRoom(folder, lambda: cap), self.told.append)

    @property
    def why(self) -> tuple[str, str]:
        shown = self.part.status()
        assert shown.phase == "starting" and shown.why_remedy
        return shown.why_idle, shown.why_detail


def test_what_the_search_tells_is_the_sentence_while_it_is_connecting_and_not_else(tmp_path: Path) -> None:
    table = Table(tmp_path)
    search: Any = SimpleNamespace(summary="192.0.2.1 port 4001 (3 times: refused)")
    table.part._search = search
    assert table.why == (WhyIdle.STARTING.value, "opening the network")
    table.part._wait_for("asking for the run's manifest")
    assert table.why == (WhyIdle.CONNECTING.value, f"no peer of the invitation answers yet: {search.summary}")


def test_until_it_has_the_manifest_it_is_connecting_and_then_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, seen = Table(tmp_path), list[tuple[str, str]]()

    async def fetch(network: Any, run: Any, organiser: Any, on_wait: Any) -> Any:
        await trio.lowlevel.checkpoint()
        seen.append(table.why)
        on_wait("no peer of the invitation answers yet")
        on_wait("no peer of the invitation answers yet")
        seen.append(table.why)
        return table.signed

    monkeypatch.setattr(participation, "fetch_manifest", fetch)
    nothing: Any = SimpleNamespace()
    trio.run(table.part._manifest, nothing, nothing)
    sentences = ["asking for the run's manifest", "no peer of the invitation answers yet"]
    assert seen == [(WhyIdle.CONNECTING.value, each) for each in sentences]
    *told, about, purpose = table.told
    assert told == [PhaseChanged("starting", "connecting", each) for each in sentences], "each once"
    assert about == Notice("info", "run demo")
    assert isinstance(purpose, Notice) and purpose.text.startswith("this run trains a model of ")
    assert table.why == (WhyIdle.STARTING.value, "opening the run on disk")


def test_a_state_in_files_needs_room_on_disk_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = demo_manifest().manifest
    enough = STATES_ON_DISK * manifest.stored_bytes + MARGIN_BYTES

    async def fetch(network: Any, run: Any, organiser: Any, on_wait: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return demo_manifest()

    monkeypatch.setattr(participation, "fetch_manifest", fetch)
    nothing: Any = SimpleNamespace()
    for number, (state, more) in enumerate((("ram", 0), ("disk", manifest.state_bytes))):
        folder = tmp_path / str(number)
        folder.mkdir()
        table = Table(folder, state, enough + more)
        trio.run(table.part._manifest, nothing, nothing)
        assert table.part.scratch_bytes == more
        other = tmp_path / f"other-{number}"
        other.mkdir()
        with pytest.raises(StoreFull, match="max_disk"):
            trio.run(Table(other, state, enough + more - 1).part._manifest, nothing, nothing)
        assert not [*other.rglob("*")]


def test_files_of_a_killed_peer_are_removed_before_the_room_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path, "disk")

    async def fetch(network: Any, run: Any, organiser: Any, on_wait: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return table.signed

    monkeypatch.setattr(participation, "fetch_manifest", fetch)
    left = run_dir(tmp_path, table.signed.run) / SCRATCH / "state"
    left.parent.mkdir(parents=True)
    left.write_bytes(bytes(1 << 20))
    nothing: Any = SimpleNamespace()
    trio.run(table.part._manifest, nothing, nothing)
    assert not left.exists()
