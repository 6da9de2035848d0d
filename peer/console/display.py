"""A running peer on standard output: log lines or JSON lines.

A listener of the event log like any other.  `peer.sentences` decides what is shown, `output` what becomes of it when nobody
reads fast enough.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from enum import Enum

import trio

from peer.console.output import Lines, Output
from peer.console.thinning import Thinner
from peer.control.client import Stamped
from peer.control.event_log import EventLog, to_line
from peer.formatting import naming
from peer.sentences import level, sentence
from protocol.events.events import PROGRESS, Left, LinesLost, PeerJoined
from protocol.events.status import PeerStatus

ALL = math.inf
"""Events that may wait for us: we take them at once, and what waits to be written is bounded elsewhere."""
JSON_PROGRESS_S = 1.0
HUMAN_PROGRESS_S = 30.0
"""Seconds between two lines of progress: a program may want to draw them, a person's log is to stay readable."""
LOST = "they could not be written as fast as they came; events.jsonl in the run's folder has them"

Status = Callable[[], PeerStatus]


class Style(Enum):
    """How a running peer shows itself.  SILENT: not at all, for the terminal interface draws it."""

    SILENT = "silent"
    HUMAN = "human"
    JSON = "json"


async def show(log: EventLog, style: Style, status: Status, output: Output) -> None:
    """Show what happens until cancelled or until the log closes."""
    if style is Style.JSON:
        await _lines(log, output, to_line, JSON_PROGRESS_S)
    elif style is Style.HUMAN:
        await _lines(log, output, _human_line(status()), HUMAN_PROGRESS_S)


def _human_line(status: PeerStatus) -> Callable[[Stamped], str]:
    names: dict[str, str] = {status.peer: status.name}

    def line(stamped: Stamped) -> str:
        event = stamped.event
        if isinstance(event, PeerJoined):
            names[event.peer] = event.name
        kind = level(event)
        if isinstance(event, Left):  # its problem is the sentence with which the command ends, on standard error
            kind, event = "info", replace(event, problem="")
        shown = kind != "debug" or isinstance(event, PROGRESS)
        text = sentence(event, naming(names)) if shown else ""
        clock = time.strftime("%H:%M:%S", time.localtime(stamped.at))
        return f"{clock} {'' if kind in ('info', 'debug') else kind + ': '}{text}" if text else ""

    return line


async def _lines(log: EventLog, output: Output, line: Callable[[Stamped], str], progress_s: float) -> None:
    lines = Lines()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_write_out, log, lines, output, line)
        await _collect(log, lines, line, Thinner(progress_s))
        lines.close()


async def _collect(log: EventLog, lines: Lines, line: Callable[[Stamped], str], thinner: Thinner) -> None:
    """Put a line into `lines` for every event, until the log closes."""

    def put(stamped: Stamped | None) -> None:
        text = line(stamped) if stamped is not None else ""
        if text:
            lines.put(text + "\n")

    for stamped in log.recent():  # what happened before anybody listened
        put(thinner.take(stamped, trio.current_time()))
    with log.subscribe(ALL) as events:
        while True:
            with trio.move_on_at(thinner.due) as wait:
                try:
                    stamped = await anext(events)
                except StopAsyncIteration:
                    return
            if wait.cancelled_caught:
                put(thinner.release(trio.current_time()))
            else:
                put(thinner.take(stamped, trio.current_time()))


async def _write_out(log: EventLog, lines: Lines, output: Output, line: Callable[[Stamped], str]) -> None:
    """Write what waits in `lines`, and how many are missing where some are."""
    while (taken := await lines.take()) is not None:
        lost, text = taken
        if lost:
            text = line(log.stamp(LinesLost(lost, LOST))) + "\n" + text
        if not await output.write(text):
            lines.lose(lost + 1)
