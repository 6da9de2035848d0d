"""The event log: what is remembered, what lies on disk, and what a slow or full disk costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
import trio.testing

from peer.control.event_log import MAX_SUBSCRIBERS, EventLog, TooManyListeners, log_file
from protocol.events.events import ComputeProgress, Notice


def test_lines_are_written_in_order_and_progress_is_not(tmp_path: Path) -> None:
    async def main() -> None:
        log = EventLog(log_file(tmp_path), wall=lambda: 100.0, mono=lambda: 5.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.run)
            log.emit(Notice("info", "one"))
            log.emit(ComputeProgress(0, 1, 2, 3.0, 4.0, 9.0))
            await trio.testing.wait_all_tasks_blocked()
            log.emit(Notice("info", "two"))
            nursery.cancel_scope.cancel()
        log.flush()

    trio.run(main)
    assert [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()] == [
        {"at": 100.0, "mono": 5.0, **Notice("info", "one").to_fields()},
        {"at": 100.0, "mono": 5.0, **Notice("info", "two").to_fields()},
    ]


def test_a_disk_that_refuses_costs_lines_and_nothing_else(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    log = EventLog(log_file(blocked))
    log.emit(Notice("info", "one"))
    log.flush()
    assert log.lines_lost == 1
    assert [stamped.event for stamped in log.recent()] == [Notice("info", "one")]


def test_listeners_are_limited() -> None:
    log = EventLog()
    scopes = [log.subscribe() for _ in range(MAX_SUBSCRIBERS)]
    for scope in scopes:
        scope.__enter__()
    with pytest.raises(TooManyListeners), log.subscribe():
        pass
    scopes[0].__exit__(None, None, None)
    with log.subscribe():
        assert log.listeners == MAX_SUBSCRIBERS


def test_an_event_of_another_thread_reaches_listeners_and_the_disk(tmp_path: Path) -> None:
    log = EventLog(log_file(tmp_path))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with log.subscribe() as listener:
                nursery.start_soon(log.run)
                await trio.testing.wait_all_tasks_blocked()
                await trio.to_thread.run_sync(log.emit, Notice("info", "from afar"))
                assert (await anext(listener)).event == Notice("info", "from afar")
            nursery.cancel_scope.cancel()

    trio.run(main)
    log.emit(Notice("info", "afterwards"))
    log.flush()
    assert [json.loads(line)["text"] for line in (tmp_path / "events.jsonl").read_text().splitlines()] == [
        "from afar",
        "afterwards",
    ]
