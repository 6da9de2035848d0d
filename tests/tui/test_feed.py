"""A feed follows a peer over a real control socket, through its end and its next life."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from peer.control.client import LOCK_NAME, ControlError, Stamped
from peer.control.curves import LossPoint, RunCurves, Series
from peer.control.event_log import EventLog
from peer.control.server import ControlServer
from protocol.events import events as ev
from protocol.events.status import PeerStatus
from tests.protocol.example_status import OTHER, status
from tui import feed as feeds
from tui.contributions import Contributions, PeerCredit
from tui.feed import STARTING, Feed, PeerFound, Stopped, Told

PATIENCE_S = 30.0
LEDGER = Contributions(3, {OTHER: PeerCredit(1, 3, 300, 0.75, 0, 0)})


@contextmanager
def served(folder: Path, log: EventLog) -> Iterator[Callable[[ev.Event], None]]:
    """A control socket in a thread; what it gives emits an event there."""
    ready, ended = threading.Event(), trio.Event()
    tokens = list[trio.lowlevel.TrioToken]()

    async def status_of(fields: dict[str, object]) -> dict[str, object]:
        return status().to_fields()

    async def curves_of(fields: dict[str, object]) -> dict[str, object]:
        return RunCurves(Series([LossPoint(1.0, 1, 100, 3.0)])).to_fields()

    async def ledger_of(fields: dict[str, object]) -> dict[str, object]:
        return LEDGER.to_fields()

    async def serve() -> None:
        commands = {"status": status_of, "curves": curves_of, "ledger": ledger_of}
        server = ControlServer(folder, log, commands, status)
        await server.open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            tokens.append(trio.lowlevel.current_trio_token())
            ready.set()
            await ended.wait()
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield lambda event: tokens[0].run_sync_soon(log.emit, event)
    finally:
        tokens[0].run_sync_soon(ended.set)
        thread.join(PATIENCE_S)


def until(feed: Feed, told: list[Told], kind: type, count: int) -> None:
    """Take what is told until there is so much of a kind."""
    end = time.monotonic() + PATIENCE_S
    while sum(isinstance(each, kind) for each in told) < count:
        assert time.monotonic() < end, told
        told += feed.take()
        time.sleep(0.01)


def texts(told: list[Told]) -> list[str]:
    return [each.event.text for each in told if isinstance(each, Stamped) and isinstance(each.event, ev.Notice)]


def test_a_feed_follows_a_peer_through_its_lives_and_tells_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "RETRY_S", 0.05)
    monkeypatch.setattr(feeds, "STATUS_S", 0.05)
    feed, told = Feed(tmp_path), list[Told]()
    feed.start()
    try:
        until(feed, told, Stopped, 1)
        log = EventLog()
        log.emit(ev.Notice("info", "before"))
        with served(tmp_path, log) as emit:
            until(feed, told, PeerFound, 1)
            emit(ev.Notice("info", "while"))
            until(feed, told, Stamped, 2)
            until(feed, told, PeerStatus, 3)
            until(feed, told, Contributions, 1)
        until(feed, told, Stopped, sum(isinstance(each, Stopped) for each in told) + 1)
        with served(tmp_path, log) as emit:  # the same log: its last events are in the snapshot again
            until(feed, told, PeerFound, 2)
            emit(ev.Notice("info", "after"))
            until(feed, told, Stamped, 3)
        assert texts(told) == ["before", "while", "after"]
        curves = [each.training.points for each in told if isinstance(each, RunCurves)]
        assert [each for each in told if isinstance(each, Contributions)] == [LEDGER], "no round was committed since"
        assert curves == [[LossPoint(1.0, 1, 100, 3.0)]] * 2, "in each life, what its log has"
    finally:
        feed.close()


def test_a_question_to_nobody_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="no peer is running"):
        Feed(tmp_path).ask("pause")


def test_a_viewer_that_takes_nothing_costs_a_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed(tmp_path)
    for number in range(feeds.MOST_WAITING + 5):
        feed._waiting.append(Stopped(str(number)))
    told = feed.take()
    assert len(told) == feeds.MOST_WAITING and told[-1] == Stopped(str(feeds.MOST_WAITING + 4)) and feed.take() == []


def test_a_peer_that_was_started_just_now_is_starting_until_it_answers(tmp_path: Path) -> None:
    for is_starting, said in ((True, STARTING), (False, "start one with `peer join`"), (False, STARTING)):
        if (is_starting, said) == (False, STARTING):  # another program started it
            (tmp_path / LOCK_NAME).write_text(str(os.getpid()))
        feed, told = Feed(tmp_path, is_starting=is_starting), list[Told]()
        feed.start()
        until(feed, told, Stopped, 1)
        feed.close()
        assert all(isinstance(each, Stopped) and said in each.reason for each in told)
