"""Interface that shows a recording, with a scrubber; it sends no commands to a peer."""

from __future__ import annotations

import time
from datetime import datetime
from functools import partial
from typing import Any

from rich.text import Text
from textual.binding import Binding
from textual.widgets import Static

from peer.formatting import fit
from protocol.formatting import duration
from tui.app import PeerApp
from tui.feed import Told
from tui.panels.drawing import ALARM, FAINT, STRONG, line
from tui.player import Player
from tui.theme import DARK_NAME
from tui.widgets import Help, Panel

# ------------------------------------------------------------------------------------------------------------------------
# Scrubber of a replay in one line: the time, a bar with a mark for each round and each alarm, and the speed.


def draw_scrubber(player: Player, width: int, unicode: bool) -> Text:
    """Draw the line, `width` columns wide; without the bar if there is little room."""
    state = "end" if player.at_end else f"{player.speed:g}x" if player.plays else "stopped"
    left = f"{datetime.fromtimestamp(player.time):%Y-%m-%d %H:%M:%S} "
    right = f" {duration(player.time - player.begins)} of {duration(player.ends - player.begins)}  {state}"
    room = width - len(left) - len(right)
    if room < 10:
        return line((fit(left + right.strip(), width), STRONG))
    return line((left, STRONG), *_bar(player, room, unicode), (right, FAINT))


def _bar(player: Player, room: int, unicode: bool) -> list[tuple[str, str]]:
    """Return the cells of the bar: alarms cover rounds, and the present position covers both."""
    here, round, alarm, past, rest = "█┃!━─" if unicode else "#|!=-"
    seconds = max(1e-9, player.ends - player.begins)

    def cell(time: float) -> int:
        return min(room - 1, int(room * (time - player.begins) / seconds))

    place, marks = cell(player.time), dict[int, bool]()
    for number, is_alarm in player.file.marks:
        at = cell(player.file.times[number])
        marks[at] = marks.get(at, False) or is_alarm
    return [
        (here, STRONG)
        if at == place
        else (alarm if marks[at] else round, ALARM if marks[at] else "")
        if at in marks
        else (past if at < place else rest, FAINT)
        for at in range(room)
    ]


# ------------------------------------------------------------------------------------------------------------------------
# The interface.


TICK_S = 0.1
STEP_S, LONG_STEP_S = 10.0, 60.0
KEYS = (
    ("q", "close"),
    ("?", "help"),
    ("space", "play, stop"),
    ("arrows", "10 s"),
    ("n N", "next mark, last"),
    ("+ -", "speed"),
)
HELP = """\
space          play, stop
left, right    10 seconds back, on; with shift a minute
n, N           the next committed round or alarm, the one before
home, end      the beginning, the end
+, -           faster, slower
1 to 9         show one panel (8: rollouts, 9: samples); again or 0: all
up, down       scroll (also page up, page down)
s              sort the swarm            l  filter the log
a              mark alarms as seen       t  light or dark
q              close

A recording holds no progress within a step, and of other peers only
when they came and went.
"""


class Nothing:
    """Source without a peer."""

    def start(self) -> None:
        """Do nothing: there is no peer to follow."""

    def take(self) -> list[Told]:
        """Return nothing."""
        return []

    def ask(self, command: str, **fields: object) -> dict[str, object]:
        """Return nothing; never called."""
        return {}

    def close(self) -> None:
        """Do nothing: there is no peer to follow."""


class ReplayView(PeerApp):
    """View of the recording that `player` plays."""

    BETWEEN = (partial(Static, id="scrubber"),)
    CSS = PeerApp.CSS + "#scrubber { height: 1; padding: 0 1; }"
    BINDINGS = [
        Binding("space", "play", "play, stop"),
        Binding("left", f"move({-STEP_S})"),
        Binding("right", f"move({STEP_S})"),
        Binding("shift+left", f"move({-LONG_STEP_S})"),
        Binding("shift+right", f"move({LONG_STEP_S})"),
        Binding("n", "mark(True)", "next mark"),
        Binding("N", "mark(False)", "last mark"),
        Binding("home", "begin", "the beginning"),
        Binding("end", "finish_it", "the end"),
        Binding("plus,equals_sign", "faster(1)", "faster"),
        Binding("minus", "faster(-1)", "slower"),
    ]

    def __init__(self, player: Player, *, unicode: bool = True, theme: str = DARK_NAME) -> None:
        super().__init__(Nothing(), unicode=unicode, theme=theme)
        self._player, self._drawn_at = player, time.monotonic()
        self._stopped, self._keys = "", KEYS
        self._player.seek(player.begins)

    def on_mount(self) -> None:
        """Begin to play."""
        super().on_mount()
        self.set_interval(TICK_S, self.tick)
        file = self._player.file
        if file.damaged or file.left_out:
            self._say(f"{file.damaged} lines that are not events are left out, and {file.left_out} beyond the limit")

    def tick(self) -> None:
        """Play for the time that has passed since the last tick."""
        now = time.monotonic()
        passed, self._drawn_at = now - self._drawn_at, now
        if self._player.play(passed):
            self.show()
        elif self._player.plays:
            self._draw_scrubber()

    def show(self) -> None:
        """Draw the player's picture."""
        self.picture = self._player.picture
        for panel in self.query(Panel):
            panel.picture = self.picture
        self._draw()

    def _draw(self) -> None:
        super()._draw()
        self._draw_scrubber()

    def _draw_scrubber(self) -> None:
        width = max(1, self.size.width - 2)
        self.query_one("#scrubber", Static).update(draw_scrubber(self._player, width, self._unicode))

    # -- keys ---------------------------------------------------------------------------------------------------------

    def action_open(self, what: str) -> None:
        """Open the help; say that a recording has no settings."""
        if what == "help":
            self.push_screen(Help(HELP))
        else:
            self._ask("settings", "")

    def action_play(self) -> None:
        """Play, or stop; at the end, play from the beginning."""
        if self._player.at_end:
            self._player.seek(self._player.begins)
            self._player.plays = True
        else:
            self._player.plays = not self._player.plays
        self.show()

    def action_move(self, seconds: float) -> None:
        """Move forwards by this many seconds, or backwards if the number is negative."""
        self._player.move(seconds)
        self.show()

    def action_mark(self, forwards: bool) -> None:
        """Go to the next or the previous committed round or alarm."""
        self._player.next_mark(forwards)
        self.show()

    def action_begin(self) -> None:
        """Go to the beginning."""
        self._player.seek(self._player.begins)
        self.show()

    def action_finish_it(self) -> None:
        """Go to the end."""
        self._player.seek(self._player.ends)
        self.show()

    def action_faster(self, steps: int) -> None:
        """Change the speed by this many steps."""
        self._player.faster(steps)
        self._draw_scrubber()

    def _confirm(self, question: str, command: str, done: str, **fields: Any) -> None:
        """Say that a recording accepts no commands."""
        self._ask(command, done)

    def _ask(self, command: str, done: str, **fields: Any) -> None:
        """Say that a recording accepts no commands."""
        self._say("this is a recording: it takes no commands")
