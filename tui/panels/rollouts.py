"""Panel of rollouts: the reward, verdicts on batches, peers set aside, and the last batches of all peers or of this peer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.text import Text

from peer.formatting import fit, pad
from protocol.events.rollout_tally import ACCEPTED, REJECTED, STALE, UNSURE, WAITING, Aside, BatchSeen, RolloutTally
from protocol.formatting import amount, clean, many, naming, number
from tui.panels.chart import Curve, amounts, chart
from tui.panels.drawing import ALARM, FAINT, GOOD, STRONG, WARNING, Look, hanging, line, paragraph
from tui.picture import Picture

TITLE = "Rollouts"
NAME = 24
CURVE_FROM = 8
"""Smallest height, in lines, at which the reward curve is drawn."""
LEAST_CURVE, GAP = 36, 2
"""Columns of a curve, at least, and between two curves."""
MOST_ASIDE, ASIDE_LINES = 3, 2
MANY_FRUITLESS = 3
"""Rounds in a row that taught nothing from which the panel says so."""
BATCHES = {"rollout": "MY BATCHES", "validator": "WHAT I JUDGED"}
STYLES = {ACCEPTED: GOOD, REJECTED: ALARM, STALE: FAINT, UNSURE: WARNING, WAITING: ""}


def draw(picture: Picture, width: int, height: int, look: Look) -> list[Text]:
    """Draw numbers, a bar of the verdicts' shares, alarms, the curve of the reward if there is room, and batches."""
    if not picture.has_rollouts:
        return [line((fit("this run has no rollouts", width), FAINT))]
    counts = _counts(picture)
    lines = [*paragraph(_head(picture), width, STRONG), _shares(counts, width, look), *_policy(picture, width)]
    if (rounds := picture.rollouts.fruitless) >= MANY_FRUITLESS:
        told = f"! nothing learned in {rounds} rounds: all answers to each problem had the same reward"
        lines += paragraph(told, width, ALARM)
    lines += _aside(picture, width)
    if height >= CURVE_FROM:
        lines += reward_curves(picture.rollouts, width, max(4, (height - len(lines)) * 2 // 5), look)
    return [*lines, *_batches(picture, width, height - len(lines), look)]


def reward_curves(tally: RolloutTally, width: int, height: int, look: Look) -> list[Text]:
    """Draw the rewards, and the lengths of the outputs beside them if there is room, each with a caption."""
    drawn = [("mean reward by round", GOOD, tally.rewards), ("tokens of an output by round", "cyan", tally.lengths)]
    curves = [
        Curve(caption, style, [(float(round), value) for round, value in points if math.isfinite(value)])
        for caption, style, points in drawn
    ]
    known = [each for each in curves if len(each.points) > 1]
    if not known:
        return [line((fit("the reward curve starts with the second version", width), FAINT))]
    room = (width - GAP * (len(known) - 1)) // len(known)
    if room < LEAST_CURVE:
        known, room = known[:1], width
    columns = [
        [line((fit(curve.name, room), FAINT)), *chart([curve], room, height - 1, amounts, unicode=look.unicode)]
        for curve in known
    ]
    for first, *others in zip(*columns, strict=True):
        for other in others:  # beside the first, after a gap
            first.pad_right(room + GAP - first.cell_len)
            first.append_text(other)
    return columns[0]


def _head(picture: Picture) -> str:
    """Return the line of totals, from the peer's own counts if known, because a view opened late has seen fewer events."""
    tally, status = picture.rollouts, picture.status
    told = status.rollouts if status is not None else None
    role = status.role if status is not None else ""
    reward = tally.rewards[-1][1] if tally.rewards else told.reward if told is not None else None
    version = told.version if told is not None else status.state_rounds if status is not None else 0
    text = f"version {version}   reward {number(reward)}"
    if role == "rollout":
        rate = told.generated_tokens_per_s if told is not None else tally.generated_tokens / max(1e-3, tally.generating_s)
        made = told.generated if told is not None else tally.generated
        learned = told.accepted_tokens if told is not None else tally.accepted_tokens
        did = f"{many(made, 'batch', 'batches')} made at {amount(rate)} tokens/s"
        return f"{text}   {did}, {amount(learned)} tokens learned from"
    if role == "validator":
        speed = f", {told.verified_per_s:.1f} rollouts/s" if told is not None else ""
        judged = told.accepted + told.rejected if told is not None else tally.judged
        return f"{text}   {many(judged, 'batch', 'batches')} judged{speed}"
    used = told.used if told is not None else tally.used
    return f"{text}   {many(used, 'batch', 'batches')} learned from"


def _policy(picture: Picture, width: int) -> list[Text]:
    """Draw the figures on the policy of the last round from which this trainer learned something, and batches left out."""
    status, tally = picture.status, picture.rollouts
    told = tally.learnt or (status.rollouts if status is not None else None)
    if told is None or told.entropy is None:
        return []
    text = f"policy: entropy {number(told.entropy)}"
    if told.behaviour_kl is not None and told.truncated is not None and told.effective is not None:
        shares = f"{100 * told.truncated:.1f} % truncated, effective {100 * told.effective:.0f} %"
        text += f"; {number(told.behaviour_kl)} nats from the one that made the tokens, {shares}"
    left_out = status.rollouts.left_out if status is not None and status.rollouts is not None else tally.left_out
    text += f"; {many(left_out, 'batch', 'batches')} left out without their weights" if left_out else ""
    return paragraph(text, width)


def _counts(picture: Picture) -> list[tuple[str, int]]:
    """Return the number of batches by verdict, from the peer's own counts if known, otherwise from the events seen."""
    counts, status = picture.rollouts.counts, picture.status
    told = status.rollouts if status is not None else None
    if told is None:
        found = [(each, counts[each]) for each in (ACCEPTED, REJECTED, WAITING, STALE)]
    else:
        found = [(ACCEPTED, told.accepted), (REJECTED, told.rejected), (WAITING, told.waiting), (STALE, told.stale)]
    return [(name, count) for name, count in found if count or name != STALE]


def _shares(counts: Sequence[tuple[str, int]], width: int, look: Look) -> Text:
    """Draw the verdicts as sections of a bar, each with its own character, and a legend."""
    cells = dict(zip((ACCEPTED, REJECTED, WAITING, STALE), "█▒░·" if look.unicode else "#x.-", strict=True))
    legend = "  " + "  ".join(f"{cells[name]} {count} {name}" for name, count in counts)
    room, total = width - len(legend), sum(count for _, count in counts)
    if room < 4:
        return line(fit(legend.strip(), width))
    parts, taken, so_far = list[tuple[str, str]](), 0, 0
    for name, count in counts:
        so_far += count
        end = room * so_far // total if total else 0
        parts.append((cells[name] * (end - taken), STYLES[name]))
        taken = end
    return line(*parts, " " * (room - taken), legend)


def _aside(picture: Picture, width: int) -> list[Text]:
    """Draw the peers that were set aside last, with the reasons; each is also an alarm in the head."""
    aside, name = [*picture.rollouts.aside], naming(picture.names)

    def rows(each: Aside) -> list[Text]:
        what = "" if each.role == "rollout" else "validator "
        return paragraph(f"! set aside: {what}{name(each.peer)}: {clean(each.reason, 200)}", width, ALARM)[:ASIDE_LINES]

    lines = [row for each in aside[-MOST_ASIDE:] for row in rows(each)]
    if len(aside) > MOST_ASIDE:
        lines.insert(0, line((fit(f"! {len(aside) - MOST_ASIDE} more peers were set aside before", width), ALARM)))
    return lines


def _batches(picture: Picture, width: int, height: int, look: Look) -> list[Text]:
    status, tally = picture.status, picture.rollouts
    role = status.role if status is not None else ""
    found = {"rollout": tally.last(author=tally.me), "validator": tally.last(judge=tally.me)}.get(role, tally.last())
    title = BATCHES.get(role, "LAST BATCHES")
    if not found:
        return [line((fit("no batch of rollouts yet", width), FAINT))][: max(0, height)]
    head = f"{title:<{NAME}}{'VERSION':>8}{'BATCH':>7}  {'VERDICT':<10}WHY"
    name = naming(picture.names)
    rows = list[Text]()
    for batch in found:
        who = "me" if batch.author == tally.me else name(batch.author)
        text = f"{pad(who, NAME)}{batch.version:>8}{batch.number:>7}  {clean(batch.verdict, 9):<10}"
        style, why = STYLES.get(batch.verdict, ""), _why(batch, tally.me, name)
        if look.alone:
            rows += hanging(text, why, width, len(head) - len("WHY"), style=style, label_style=style)
        else:
            rows.append(line((fit(text + why, width), style)))
    shown = [rows[place] for place in look.window(len(rows), height - 1)]
    return [line((fit(head, width), FAINT)), *shown][: max(0, height)]


def _why(batch: BatchSeen, me: str, name: Callable[[str], str]) -> str:
    """Return the reason of a verdict, its judges, and the round that learned from the batch."""
    judges = ", ".join("me" if judge == me else name(judge) for judge in batch.judges[-2:])
    used = f"learned from in round {batch.round}" if batch.round is not None else ""
    parts = [clean(batch.reason, 60), f"by {judges}" if judges else "", used]
    return ", ".join(part for part in parts if part)
