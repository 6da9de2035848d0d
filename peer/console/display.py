"""A running peer on the terminal: log lines, JSON lines or the live view.

A listener of the event log like any other.  `live` and `sentences` decide what is shown, `output` what becomes of it when
nobody reads fast enough.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from enum import Enum

import trio

from peer.console.live import View, render
from peer.console.output import Lines, Output
from peer.console.thinning import Thinner
from peer.control.client import Stamped
from peer.control.event_log import EventLog, Subscription, to_line
from peer.formatting import naming
from peer.sentences import level, sentence
from protocol.events import PROGRESS, Left, LinesLost, PeerJoined
from protocol.status import PeerStatus

FRAME_S = 0.25
ALL = math.inf
"""Events that may wait for us: we take them at once, and what waits to be written is bounded elsewhere."""
JSON_PROGRESS_S = 1.0
HUMAN_PROGRESS_S = 30.0
"""Seconds between two lines of progress: a program may want to draw them, a person's log is to stay readable."""
LOST = "they could not be written as fast as they came; events.jsonl in the run's folder has them"
ENTER = "\x1b[?1049h\x1b[?25l"
LEAVE = "\x1b[?25h\x1b[?1049l"
HOME = "\x1b[H"
CLEAR_LINE = "\x1b[K"
CLEAR_BELOW = "\x1b[J"
BOLD, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"

Status = Callable[[], PeerStatus]


class Style(Enum):
    """How a running peer shows itself."""

    LIVE = "live"
    HUMAN = "human"
    JSON = "json"


def choose_style(headless: bool, log_format: str) -> Style:
    """The live view where there is a terminal that can show it, unless told otherwise."""
    if log_format == "json":
        return Style.JSON
    capable = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return Style.HUMAN if headless or not capable else Style.LIVE


async def show(log: EventLog, style: Style, status: Status, output: Output) -> None:
    """Show what happens until cancelled or until the log closes."""
    if style is Style.LIVE:
        await _live(log, status, output)
    elif style is Style.JSON:
        await _lines(log, output, to_line, JSON_PROGRESS_S)
    else:
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


async def _live(log: EventLog, status: Status, output: Output) -> None:
    view = View()
    for stamped in log.recent():
        view.apply(stamped)
    await output.write(ENTER)
    try:
        with log.subscribe(ALL) as events:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_draw, view, status, output)
                await _follow(events, view)
                nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True), trio.move_on_after(1.0):
            await output.write(LEAVE)
    if view.left is not None:
        text = sentence(replace(view.left, problem=""))
        await output.write(f"{text[:1].upper()}{text[1:]}; the same command goes on from there.\n")


async def _follow(events: Subscription, view: View) -> None:
    async for stamped in events:
        view.apply(stamped)


async def _draw(view: View, status: Status, output: Output) -> None:
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    colour = "NO_COLOR" not in os.environ
    while True:
        view.update(status())
        size = shutil.get_terminal_size((80, 24))
        lines = render(view, size.columns, size.lines, clock=time.strftime("%H:%M:%S"), unicode=unicode)
        if colour:
            lines[0], lines[-1] = BOLD + lines[0] + PLAIN, DIM + lines[-1] + PLAIN
        await output.write(HOME + (CLEAR_LINE + "\r\n").join(lines) + CLEAR_LINE + CLEAR_BELOW)
        await trio.sleep(FRAME_S)
