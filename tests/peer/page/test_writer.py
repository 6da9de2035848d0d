"""The page of a running peer: a folder that cannot be written is reported once, and used as soon as it can be."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from peer.control.event_log import EventLog
from peer.control.history import HistoryKeeper, RunHistory
from peer.page import writer
from peer.page.writer import keep_page
from protocol.events.status import PeerStatus
from tests.peer.page.crowds import SIGNED, status

GONE, WRITTEN = 3, 5
"""Looks at the status: the one that removes the obstacle, and one by which the page is there."""


def test_a_folder_that_cannot_be_written_is_reported_once_and_used_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "EVERY_S", 0.0)
    monkeypatch.setattr(writer, "START_S", 0.0)
    keeper = HistoryKeeper(lambda: RunHistory(SIGNED, tmp_path), EventLog(), lambda: None, status)
    folder, notices, looks = tmp_path / "www", list[tuple[str, str]](), 0
    folder.write_text("a file where the folder is to be")
    enough = trio.Event()

    def look() -> PeerStatus:
        nonlocal looks
        looks += 1
        if looks == GONE:
            folder.unlink()
        if looks == WRITTEN:
            enough.set()
        return status(2, addresses=["/ip4/10.0.0.7/tcp/1"])

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper.run)
            while keeper.contribution is None:
                await trio.sleep(0.01)
            nursery.start_soon(keep_page, folder, keeper, look, lambda *notice: notices.append(notice))
            await enough.wait()
            nursery.cancel_scope.cancel()

    trio.run(main)
    (warning, problem), (info, sentence) = notices
    assert (warning, info) == ("warning", "info")
    assert "cannot be written" in problem and sentence == f"the page {folder / 'index.html'} is kept current"
    assert (folder / "index.html").is_file() and (folder / "run.json").is_file()


@pytest.mark.parametrize(("manifest", "addresses"), [(False, ["/ip4/10.0.0.7/tcp/1"]), (True, [])])
def test_there_is_no_page_before_the_manifest_is_here_and_the_peer_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest: bool, addresses: list[str]
) -> None:
    monkeypatch.setattr(writer, "EVERY_S", 0.0)
    monkeypatch.setattr(writer, "START_S", 0.0)
    asked = list[None]()
    keeper = HistoryKeeper(lambda: RunHistory(SIGNED, tmp_path) if manifest else None, EventLog(), lambda: None, status)

    def look() -> PeerStatus:
        asked.append(None)
        return status(addresses=addresses)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper.run)
            nursery.start_soon(keep_page, tmp_path / "www", keeper, look, lambda *notice: None)
            while len(asked) < 3:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert not (tmp_path / "www").exists()
