"""A running peer on the terminal: log lines, JSON lines or the live view.

A listener of the event log like any other: what is slow here (a full pipe, a stopped terminal) never holds up the
daemon, it only loses lines.  What is shown is decided in `peer.live` and `peer.sentences`.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from enum import Enum
from typing import Any

import trio

from peer.control_client import Stamped
from peer.event_log import EventLog, Subscription, to_line
from peer.live import View, render
from peer.sentences import QUIET, level, naming, sentence
from protocol.events import PeerJoined

FRAME_S = 0.25
QUEUE_EVENTS = 10_000
ENTER = "\x1b[?1049h\x1b[?25l"
LEAVE = "\x1b[?25h\x1b[?1049l"
HOME = "\x1b[H"
CLEAR_LINE = "\x1b[K"
CLEAR_BELOW = "\x1b[J"
BOLD, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"

Status = Callable[[], dict[str, Any]]


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


async def show(log: EventLog, style: Style, status: Status) -> None:
    """Show what happens until cancelled or until the log closes; returns quietly when nobody reads any more."""
    try:
        if style is Style.LIVE:
            await _live(log, status)
        else:
            await _lines(log, _human_line(status()) if style is Style.HUMAN else to_line)
    except (BrokenPipeError, OSError):
        return  # the terminal or the reader is gone; the peer goes on


def _human_line(status: dict[str, Any]) -> Callable[[Stamped], str]:
    names: dict[str, str] = {status["peer"]: status["name"]}

    def line(stamped: Stamped) -> str:
        event = stamped.event
        if isinstance(event, PeerJoined):
            names[event.peer] = event.name
        kind = level(event)
        text = "" if isinstance(event, QUIET) or kind == "debug" else sentence(event, naming(names))
        clock = time.strftime("%H:%M:%S", time.localtime(stamped.at))
        return f"{clock} {'' if kind == 'info' else kind + ': '}{text}" if text else ""

    return line


async def _lines(log: EventLog, line: Callable[[Stamped], str]) -> None:
    while True:
        with log.subscribe(QUEUE_EVENTS) as events:
            async for stamped in events:
                text = line(stamped)
                if text:
                    await _write(text + "\n")
            if not events.dropped:
                return
        # too slow once: what was missed is in the log file; go on with what comes now


async def _live(log: EventLog, status: Status) -> None:
    view = View()
    for stamped in log.recent():
        view.apply(stamped)
    await _write(ENTER)
    try:
        while True:
            with log.subscribe(QUEUE_EVENTS) as events:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_draw, view, status)
                    await _follow(events, view)
                    nursery.cancel_scope.cancel()
                if not events.dropped:
                    return
    finally:
        with trio.CancelScope(shield=True), trio.move_on_after(1.0):
            await _write(LEAVE)


async def _follow(events: Subscription, view: View) -> None:
    async for stamped in events:
        view.apply(stamped)


async def _draw(view: View, status: Status) -> None:
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    colour = "NO_COLOR" not in os.environ
    while True:
        view.update(status())
        size = shutil.get_terminal_size((80, 24))
        lines = render(view, size.columns, size.lines, clock=time.strftime("%H:%M:%S"), unicode=unicode)
        if colour:
            lines[0], lines[-1] = BOLD + lines[0] + PLAIN, DIM + lines[-1] + PLAIN
        await _write(HOME + (CLEAR_LINE + "\r\n").join(lines) + CLEAR_LINE + CLEAR_BELOW)
        await trio.sleep(FRAME_S)


async def _write(text: str) -> None:
    await trio.to_thread.run_sync(_write_now, text, abandon_on_cancel=True)  # type: ignore[call-arg]  # stale stubs


def _write_now(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
