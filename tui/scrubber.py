"""Scrubber of a replay, one line: the time, a bar with a mark for each round and each alarm, the speed."""

from __future__ import annotations

from datetime import datetime

from rich.text import Text

from peer.formatting import duration, fit
from tui.panels.look import ALARM, FAINT, STRONG, line
from tui.player import Player


def draw(player: Player, width: int, unicode: bool) -> Text:
    """Draw the line, `width` columns wide; without the bar if there is little room."""
    state = "end" if player.at_end else f"{player.speed:g}x" if player.plays else "stopped"
    left = f"{datetime.fromtimestamp(player.time):%Y-%m-%d %H:%M:%S} "
    right = f" {duration(player.time - player.begins)} of {duration(player.ends - player.begins)}  {state}"
    room = width - len(left) - len(right)
    if room < 10:
        return line((fit(left + right.strip(), width), STRONG))
    return line((left, STRONG), *_bar(player, room, unicode), (right, FAINT))


def _bar(player: Player, room: int, unicode: bool) -> list[tuple[str, str]]:
    """Return the cells of the bar: alarms cover rounds, and the present place covers both."""
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
