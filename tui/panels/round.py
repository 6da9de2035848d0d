"""Panel of the current round and past ones: times of the parts, trainers' progress, and the peers still missing."""

from __future__ import annotations

from rich.text import Text

from peer.formatting import bar, fit, pad, rounds_line, wrapped
from protocol.events.status import PeerStatus
from protocol.formatting import clean, naming, of_fragment, short
from tui.panels.drawing import FAINT, GOOD, STRONG, WARNING, Look, line, paragraph
from tui.picture import COMMIT, EXCHANGE, PARTS, TRAINING, VOTES, WAIT, Picture, RoundPicture

TITLE = "Round"
NAME = 24
AHEAD, WAITING = "ahead", "waiting"
"""Words for the training for the next round, in place of a phase."""
CELLS = {TRAINING: "▆#", WAIT: "░.", EXCHANGE: "▓=", VOTES: "▒+", COMMIT: "▄-"}
"""Characters of the parts in a round's bar, with and without Unicode."""
ROUND, BUSY, MEMBERS = 7, 8, 9
COLUMNS = {TRAINING: 8, WAIT: 7, EXCHANGE: 11, VOTES: 8, COMMIT: 9}
LEAST_BAR, MEMBERS_FROM = 10, 90
SUMMARY_FROM = 4
"""Smallest height, in lines, of a table of rounds that has a line of the shares above it."""


def draw(picture: Picture, width: int, height: int, look: Look) -> list[Text]:
    """Draw the peers still missing, a bar for each trainer, the remedy for the wait, and the times of rounds below."""
    status = picture.status
    if status is None:
        return []
    lines = _waits(picture, status, width)[: max(1, height // 4)]
    if status.provisional_rounds:
        lines += paragraph(rounds_line(status), width, WARNING)[: max(1, height // 6)]
    todo = wrapped(f"to do: {status.why_remedy}", width) if status.why_remedy else []
    others = [known for known in status.swarm if known.liveness in ("alive", "suspect") and known.role == "trainer"]
    others.sort(key=lambda other: (other.phase != "computing", other.steps, other.name, other.peer))  # the slowest first
    room = max(1, (height - 1) * 2 // 3)
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
    return [*lines, *_timeline(picture, status, width, height - len(lines), look)]


def _waits(picture: Picture, status: PeerStatus, width: int) -> list[Text]:
    which = f"round {status.round}{of_fragment(status.fragment, status.fragments)}"
    if status.phase == "exchanging" and (chunks := picture.incomplete_chunks) is not None:
        done, total, waiting = chunks
        name = naming(picture.names)
        who = ", ".join(name(peer) for peer in waiting[:3]) + (f" and {len(waiting) - 3} more" if len(waiting) > 3 else "")
        waits = f", waiting for {who}" if waiting else ""
        return paragraph(f"{which}: exchanging {done}/{total} chunks{waits}", width)
    why = clean(status.why_detail or status.why_idle, 300)
    text = f"{which}: {status.phase}" + (f": {why}" if why else "")
    return paragraph(text, width, WARNING if why and not status.trains_ahead else GOOD)


def _progress(name: str, phase: str, steps: int, inner_steps: int, width: int, look: Look) -> Text:
    total = max(1, inner_steps)
    full = phase not in ("computing", "paused", "starting", "syncing", AHEAD, WAITING)
    done = total if full else min(steps, total)
    tail = f" {phase:<11}{done if full else steps:>5}/{total}"
    room = max(4, width - NAME - len(tail))
    style = GOOD if full else ""
    return line(pad(name, NAME), (bar(done, total, room, unicode=look.unicode), style), fit(tail, width - NAME - room))


def swarm_busy(status: PeerStatus) -> float | None:
    """Return the share of the last round in which its members computed; None while a member's speed is unknown.

    It is the rate at which the run read tokens, over the sum of the rates at which its members train.
    """
    rates = {known.peer: known.tokens_per_s for known in status.swarm} | {status.peer: status.tokens_per_s}
    speeds = [rates.get(peer, 0.0) for peer in status.members]
    if status.run_tokens_per_s is None or not speeds or not all(speed > 0 for speed in speeds):
        return None
    return min(1.0, status.run_tokens_per_s / sum(speeds))


def _timeline(picture: Picture, status: PeerStatus, width: int, height: int, look: Look) -> list[Text]:
    """Draw the share of time spent computing, and the parts of the running and the past rounds in seconds and as bars."""
    running = picture.running()
    rounds = [
        *([running] if running is not None else []),
        *(each for each in reversed(picture.rounds) if each.mine is not None),
    ]
    has_members = width >= MEMBERS_FROM
    room = width - ROUND - sum(COLUMNS.values()) - BUSY - MEMBERS * has_members - 2
    room = room if room >= LEAST_BAR else 0
    marks = {part: f"{CELLS[part][not look.unicode]} " if room else "" for part in PARTS}
    heads = [f"{marks[part]}{part.upper()}".rjust(columns) for part, columns in COLUMNS.items()]
    titles = ["ROUND".ljust(ROUND), *heads, "BUSY".rjust(BUSY), "MEMBERS".rjust(MEMBERS) if has_members else ""]
    count, swarm = len(status.members), swarm_busy(status)
    told = ["times in seconds"]
    if status.busy_share is not None:
        told.append(f"this peer trained {100 * status.busy_share:.0f} % of the last hour")
    if swarm is not None and count > 1:  # for one member, the first share says the same
        told.append(f"the {count} members trained {100 * swarm:.0f} % of the last round")
    summary = paragraph(", ".join(told), width, STRONG)
    lines = summary if height >= SUMMARY_FROM + len(summary) - 1 else []
    lines.append(line((fit("".join(titles), width), FAINT)))
    shown = look.window(len(rounds), height - len(lines))
    if not shown:
        return []
    longest = max(sum(rounds[place].seconds.get(part, 0.0) for part in PARTS) for place in shown)
    return lines + [_times(rounds[place], longest, width, room, look) for place in shown]


def _times(told: RoundPicture, longest: float, width: int, room: int, look: Look) -> Text:
    """Draw the seconds of each part of a round, the share of them spent computing, and a bar of the parts."""
    cells = [
        (f"{seconds:.1f}" if (seconds := told.seconds.get(part, 0.0)) else "-").rjust(columns)
        for part, columns in COLUMNS.items()
    ]
    name = f"{told.round}" + (f".{told.fragment + 1}" if told.fragments > 1 else "")
    members = f"{told.members or '-':>{MEMBERS}}" if width >= MEMBERS_FROM else ""
    text = fit("".join((name.ljust(ROUND), *cells, _busy(told).rjust(BUSY), members)), width)
    parts, so_far, taken = list[tuple[str, str]](), 0.0, 0
    for part in PARTS if room and longest > 0 else ():
        so_far += told.seconds.get(part, 0.0)
        end = round(room * so_far / longest)
        parts.append((CELLS[part][not look.unicode] * (end - taken), GOOD if part == TRAINING else ""))
        taken = end
    return line((text, "" if told.mine is None else FAINT), "  ", *parts)


def _busy(told: RoundPicture) -> str:
    if told.mine is None:
        return "running"
    if not told.mine:
        return "absent"
    return f"{100 * told.busy_share:.0f} %" if told.busy_share is not None else "-"
