"""Head: a line of run, round, time left and peers; and a sentence about this peer's work or its wait, with the remedy."""

from __future__ import annotations

from rich.text import Text

from peer.formatting import bar, columns, fit, goal_done, spread, wrapped
from protocol.formatting import clean, short, to_go
from tui.panels.drawing import ALARM, FAINT, GOOD, STRONG, WARNING, hanging, line, paragraph
from tui.picture import Picture

WORKING = ("computing", "ready", "exchanging", "voting", "applying", "seeding", "generating", "verifying")
ALARM_LINES = 2
NOTHING = "nothing"
"""Beginning of the remedies for waits that end by themselves."""


def draw(picture: Picture, stopped: str, width: int, unicode: bool) -> list[Text]:
    """Draw the head, and below it the newest alarm, if any, in `ALARM_LINES` at most.

    stopped: the reason why there is no connection to a peer; empty while there is one.
    """
    status = picture.status
    if status is None:
        return [
            line((fit("manyhands", width), STRONG)),
            *paragraph(clean(stopped, 300) or "looking for the peer", width, WARNING),
        ]
    peers = 1 + status.peers
    where = f"manyhands · {clean(status.run_name) or status.run[:12]} · round {status.round}"
    where += f" · {status.provisional_rounds} provisional" if status.provisional_rounds else ""
    if status.goal_total:
        done, total = goal_done(status)
        where += " · ended" if status.run_ended else f" · {min(100, 100 * done // total)} %"
    who = f"{clean(status.name, 24)} {short(status.peer)} · {status.role} · {peers} {'peer' if peers == 1 else 'peers'}"
    lines = [line((fit(_plain(spread(where, who, width), unicode), width), STRONG))]
    if stopped:
        lines += paragraph(f"the peer stopped: {clean(stopped, 300)}", width, ALARM)
    else:
        lines += _now(picture, width, unicode)
    if picture.alarms:
        more = f" ({len(picture.alarms)} alarms; a: seen)" if len(picture.alarms) > 1 else " (a: seen)"
        rows = wrapped(fit(f"! {picture.alarms[-1].text}", 2 * width - len(more)), width - len(more))[:ALARM_LINES]
        lines += [line((fit(row, width), ALARM + " reverse")) for row in rows[:-1]]
        lines += [line((fit(row, width - len(more)) + more, ALARM + " reverse")) for row in rows[-1:]]
    return lines


def _now(picture: Picture, width: int, unicode: bool) -> list[Text]:
    status = picture.status
    assert status is not None
    state = clean(status.phase, 20).upper()
    why = clean(status.why_detail or status.why_idle, 300)
    style = GOOD if status.phase in WORKING else WARNING
    if status.trains_ahead:
        state = "TRAINING AHEAD"
        text = _steps(
            state, status.ahead_steps, status.ahead_inner_steps, f"steps of round {status.round + 1}", width, unicode
        )
    elif status.phase == "computing" and status.inner_steps and not why:
        left = f"steps  {to_go(status.round_left_s)}"
        text = _steps(state, status.steps, status.inner_steps, left, width, unicode)
    elif status.phase == "exchanging" and (chunks := picture.incomplete_chunks) is not None:
        done, total, _ = chunks
        text = f" {bar(done, total, max(4, min(40, width - columns(state) - 24)), unicode=unicode)} {done}/{total} chunks"
    else:
        return _waits(state, style, why, status.why_remedy, width, unicode)
    return [line((state, style), fit(_plain(text, unicode), width - columns(state)))]


def _steps(state: str, done: int, total: int, what: str, width: int, unicode: bool) -> str:
    """Draw a bar of inner steps and their numbers, in the room beside `state`."""
    counts = f" {done}/{total} {what}"
    room = max(4, min(40, width - columns(state) - len(counts) - 2))
    return f" {bar(done, total, room, unicode=unicode)}{counts}"


def _waits(state: str, style: str, why: str, remedy: str, width: int, unicode: bool) -> list[Text]:
    """Draw the reason for the peer's wait, and the remedy: at the end of the line, or below it if there is no room there.

    A remedy that begins with "nothing" needs no line of its own.
    """
    text = _plain(why, unicode)
    left = width - columns(state) - 1 - columns(text) - columns(remedy)
    if remedy and left >= 2:
        return [line((state, style), f" {text}" + " " * left, (remedy, FAINT))]
    lines = hanging(state, text, width, columns(state) + 1, label_style=style)
    return [*lines, *paragraph(f"to do: {remedy}", width, FAINT)] if remedy and not remedy.startswith(NOTHING) else lines


def _plain(text: str, unicode: bool) -> str:
    return text if unicode else text.replace("·", "|").replace("…", "..")
