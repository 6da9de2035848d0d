"""Standard output of a running peer: what a slow reader, a reader that went away and a full disk cost."""

from __future__ import annotations

import errno
import itertools
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from peer.console.display import LOST, Lines, Output, Style, show
from peer.control.event_log import EventLog
from protocol.events.events import ComputeProgress, Event, Notice, PhaseChanged
from tests.protocol.example_status import status

PATIENCE_S = 20.0


def progress(step: int) -> ComputeProgress:
    return ComputeProgress(0, step, 100, 2.0, 1000.0, 1.0)


class Paper(Output):
    """Keeps what is written; `reading` is the reader, who may stop for a while."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.text = ""
        self.reading = trio.Event()
        self.reading.set()
        self.fails = False

    async def write(self, text: str) -> bool:
        await self.reading.wait()
        await trio.lowlevel.checkpoint()
        if not self.fails:
            self.text += text
        return not self.fails

    @property
    def events(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.text.splitlines()]


def shown(body: Callable[[EventLog, Paper], Awaitable[None]], style: Style = Style.JSON) -> Paper:
    """What is written while `body` emits, in virtual time, and after the log has closed."""
    papers: list[Paper] = []

    async def main() -> None:
        log, paper = EventLog(wall=lambda: 0.0, mono=trio.current_time), Paper()
        papers.append(paper)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(show, log, style, lambda: status(peer="me", name="kitchen"), paper)
            await trio.testing.wait_all_tasks_blocked()
            await body(log, paper)
            log.flush()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return papers[0]


def test_progress_comes_at_most_once_a_second_and_the_newest_is_not_lost() -> None:
    async def body(log: EventLog, paper: Paper) -> None:
        for step in range(1, 1001):  # 100 a second, as a small model on a fast computer
            log.emit(progress(step))
            await trio.sleep(0.01)
        await trio.sleep(5)

    events = shown(body).events
    assert len(events) == 11 and events[-1]["steps"] == 1000
    times = [float(str(event["mono"])) for event in events]
    assert all(later - earlier > 0.98 for earlier, later in itertools.pairwise(times))


def test_progress_of_a_phase_that_is_over_is_not_told() -> None:
    async def body(log: EventLog, paper: Paper) -> None:
        log.emit(progress(1))
        log.emit(progress(2))
        log.emit(PhaseChanged("ready", "", ""))
        await trio.sleep(30)

    assert [event["event"] for event in shown(body).events] == ["ComputeProgress", "PhaseChanged"]


def test_what_happened_before_anybody_listened_comes_first() -> None:
    async def main() -> None:
        log, paper = EventLog(first=lambda: Notice("info", "who I am")), Paper()
        log.emit(Notice("info", "early"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(show, log, Style.JSON, status, paper)
            await trio.testing.wait_all_tasks_blocked()
            log.emit(Notice("info", "late"))
            log.flush()
        assert [event["text"] for event in paper.events] == ["who I am", "early", "late"]

    trio.run(main)


def test_a_slow_reader_loses_the_oldest_lines_and_is_told_how_many() -> None:
    async def body(log: EventLog, paper: Paper) -> None:
        log.emit(Notice("info", "first"))
        await trio.testing.wait_all_tasks_blocked()
        paper.reading = trio.Event()
        for number in range(5000):
            log.emit(Notice("info", str(number)))
            if number % 100 == 0:
                await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()
        assert trio.current_time() == 0, "the daemon waited for its reader"
        paper.reading.set()

    texts = [event.get("text") or (event["lines"], event["reason"]) for event in shown(body).events]
    assert texts[:3] == ["first", "0", (2999, LOST)] and texts[3:] == [str(number) for number in range(3000, 5000)]


def test_waiting_lines_are_bounded_in_size_too() -> None:
    async def main() -> None:
        lines = Lines(max_lines=100, max_chars=1000)
        for number in range(10):
            lines.put(str(number) * 300)
        lines.close()
        taken = [await lines.take() for _ in range(4)]
        assert [entry and (entry[0], entry[1][0]) for entry in taken] == [(7, "7"), (0, "8"), (0, "9"), None]

    trio.run(main)


# -- descriptors ------------------------------------------------------------------------------------------------------


def test_a_pipe_that_its_reader_closes_is_noticed_without_writing() -> None:
    async def main() -> None:
        reader, writer = os.pipe()
        output = Output(writer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(output.until_gone)
            await trio.testing.wait_all_tasks_blocked()
            assert await output.write("line\n") and os.read(reader, 100) == b"line\n" and not output.gone.is_set()
            os.close(reader)
        assert output.gone.is_set() and not await output.write("to nobody\n") and output.broken
        os.close(writer)

    with_patience(main)


def test_a_full_pipe_holds_up_only_its_own_lines() -> None:
    async def main() -> None:
        reader, writer = os.pipe()
        output, written = Output(writer), trio.Event()

        async def write() -> None:
            await output.write("x" * (1 << 20))
            written.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await trio.testing.wait_all_tasks_blocked()
            assert not written.is_set()
            received = 0
            while received < 1 << 20:
                received += len(await trio.to_thread.run_sync(os.read, reader, 1 << 16))
            await written.wait()
        os.close(reader)
        os.close(writer)

    with_patience(main)


def test_a_full_disk_loses_lines_and_says_so_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also in the middle of a line: what comes later begins on a line of its own."""
    room = [10]
    real = os.write

    def write(descriptor: int, data: memoryview) -> int:
        if room[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = real(descriptor, data[: room[0]])
        room[0] -= count
        return count

    async def main() -> None:
        troubles: list[str] = []
        descriptor = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
        output = Output(descriptor, "utf-8", troubles.append)
        monkeypatch.setattr("peer.console.display.os.write", write)
        results = [await output.write(f"line {number}\n") for number in range(4)]
        room[0] = 1000
        results.append(await output.write("line 4\n"))
        monkeypatch.undo()
        os.close(descriptor)
        assert results == [True, False, False, False, True] and not output.gone.is_set()
        assert troubles == ["standard output: No space left on device; its lines are lost until this is fixed"]
        assert (tmp_path / "log").read_text() == "line 0\nlin\nline 4\n"

    with_patience(main)


def with_patience(main: Callable[[], Awaitable[None]]) -> None:
    async def patient() -> None:
        with trio.fail_after(PATIENCE_S):
            await main()

    trio.run(patient)


def test_events_are_all_printable_as_text_of_any_encoding() -> None:
    async def main() -> None:
        reader, writer = os.pipe()
        event: Event = Notice("info", "broken \udcff name")
        log = EventLog()
        assert await Output(writer, "ascii").write(log.stamp(event).event.text + " …\n")  # type: ignore[attr-defined]
        assert os.read(reader, 100) == b"broken ? name ?\n"
        os.close(reader)
        os.close(writer)

    with_patience(main)
