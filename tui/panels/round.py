"""Panel of the current round and past ones: times of the parts, trainers' progress, and the peers still missing."""

from __future__ import annotations

from textwrap import wrap

from rich.text import Text

from peer.formatting import bar, clean, duration, fit, many, naming, of_fragment, pad, short
from protocol.events.status import PeerStatus, SwarmPeer
from tui.panels.drawing import FAINT, GOOD, WARNING, Look, line
from tui.picture import PARTS, TRAINED_AHEAD, Picture, RoundPicture

TITLE = "Round"
NAME = 24
AHEAD, WAITING = "ahead", "waiting"
"""Words for the training for the next round, in place of a phase."""


def draw(picture: Picture, width: int, height: int, look: Look) -> list[Text]:
    """Draw the peers still missing, a bar for each trainer, the remedy for the wait, and past rounds if there is room."""
    status = picture.status
    if status is None:
        return []
    lines = [_waits(picture, status, width)]
    todo = wrap(f"to do: {status.why_remedy}", max(1, width)) if status.why_remedy else []
    others, room = _members(status), max(1, (height - 1) * 2 // 3)
    if status.role == "trainer":
        me, total = f"{clean(status.name, 14)} (me)", status.inner_steps
        lines.append(_progress(me, status.phase, status.steps, total, width, look))
        if status.ahead_inner_steps:
            what, name = AHEAD if status.trains_ahead else WAITING, f"  round {status.round + 1}"
            lines.append(_progress(name, what, status.ahead_steps, status.ahead_inner_steps, width, look))
        room -= len(lines) - 1
    for known in others[: max(0, room)]:
        name = f"{clean(known.name, 14)} {short(known.peer)}"
        lines.append(_progress(name, known.phase, known.steps, status.inner_steps, width, look))
    if len(others) > room > 0:
        lines[-1] = line((fit(f"and {len(others) - room + 1} more trainers", width), FAINT))
    lines += [line(each) for each in todo]
    past = [each for each in picture.rounds if each.mine is not None]
    rows = range(len(past) - 1, -1, -1)
    shown = look.window(len(past), height - len(lines))
    return [*lines, *(_past(past[rows[place]], width) for place in shown)]


def _waits(picture: Picture, status: PeerStatus, width: int) -> Text:
    which = f"round {status.round}{of_fragment(status.fragment, status.fragments)}"
    if status.phase == "exchanging" and picture.chunks is not None:
        done, total, waiting = picture.chunks
        name = naming(picture.names)
        who = ", ".join(name(peer) for peer in waiting[:3]) + (f" and {len(waiting) - 3} more" if len(waiting) > 3 else "")
        waits = f", waiting for {who}" if waiting else ""
        return line(fit(f"{which}: exchanging {done}/{total} chunks{waits}", width))
    why = clean(status.why_detail or status.why_idle, 300).removeprefix(
        f"round {status.round}: "
    )  # older peers add this prefix
    text = f"{which}: {status.phase}" + (f": {why}" if why else "")
    return line((fit(text, width), WARNING if why and not status.trains_ahead else GOOD))


def _members(status: PeerStatus) -> list[SwarmPeer]:
    """Return the other live trainers, the furthest behind first."""
    others = [known for known in status.swarm if known.liveness in ("alive", "suspect") and known.role == "trainer"]
    return sorted(others, key=lambda other: (other.phase != "computing", other.steps, other.name, other.peer))


def _progress(name: str, phase: str, steps: int, inner_steps: int, width: int, look: Look) -> Text:
    total = max(1, inner_steps)
    full = phase not in ("computing", "paused", "starting", "syncing", AHEAD, WAITING)
    done = total if full else min(steps, total)
    tail = f" {phase:<11}{done if full else steps:>5}/{total}"
    room = max(4, width - NAME - len(tail))
    style = GOOD if full else ""
    return line(pad(name, NAME), (bar(done, total, room, unicode=look.unicode), style), fit(tail, width - NAME - room))


def _past(past: RoundPicture, width: int) -> Text:
    parts = ", ".join(f"{part} {duration(past.seconds[part])}" for part in PARTS if past.seconds.get(part))
    parts += f", trained ahead for {duration(past.seconds[TRAINED_AHEAD])}" if past.seconds.get(TRAINED_AHEAD) else ""
    which = f"round {past.round}{of_fragment(past.fragment, past.fragments)}"
    whose = many(past.members, "member") + ("" if past.mine else ", without us")
    return line((fit(f"{which}: {whose}" + (f"; {parts}" if parts else ""), width), FAINT))
