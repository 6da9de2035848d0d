"""Panel of the training progress: the loss of the rounds, the held-out loss, tokens per second."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from rich.text import Text

from peer.control.curves import LossPoint, StepBack
from peer.formatting import fit, spread, wrapped
from protocol.events.events import EvalLoss
from protocol.events.status import PeerStatus
from protocol.formatting import amount, clean, many, naming, number
from tui.panels.chart import STEP_BACK, Curve, Ticks, amounts, chart, clock_times
from tui.panels.drawing import FAINT, GOOD, WARNING, Look, line, paragraph
from tui.panels.rollouts import reward_curves
from tui.picture import Picture

TITLE = "Training"


DAY = 86_400
ZOOMS = (("the whole run", math.inf), ("the last day", DAY), ("the last hour", 3600))
"""Parts of the run that the curves show, in seconds before the newest value."""
UNITS: tuple[tuple[str, Callable[[LossPoint], float], Ticks], ...] = (
    ("tokens read", lambda point: point.tokens, amounts),
    ("time", lambda point: point.at, clock_times),
)
SOURCES_FROM = 10
"""Smallest height, in lines, at which several sources have curves of their own."""
HELD_OUT = "cyan"
OF_SOURCES = ("magenta", "blue", "yellow", "red")
"""Styles of the sources' curves, in turns."""


def draw(picture: Picture, width: int, height: int, look: Look) -> list[Text]:
    """Draw lines of numbers, of the held-out loss, of preferences and of several sources, and the curves below."""
    status = picture.status
    mine = status.tokens_per_s if status is not None else 0.0
    # Generated and trained tokens must not be added together, so only peers of our role count.
    same = [each for each in status.swarm if each.liveness == "alive" and each.role == status.role] if status else []
    swarm = mine + sum(known.tokens_per_s for known in same)
    training = picture.curves.training.points
    newest = training[-1].value if training else status.loss if status is not None else None
    loss = "no training loss yet" if newest is None else f"training loss {number(newest)}"
    is_rl = status is not None and from_rollouts(status)
    rewards, known = picture.rollouts.rewards, status.rollouts if status is not None else None
    last = rewards[-1][1] if rewards else known.reward if known is not None else None
    reward = f"reward {number(last)}   " if is_rl else ""
    others = f" (all: {amount(swarm)})" if swarm > mine else ""
    head = f"{reward}{loss}, {amount(mine)} tokens/s{others}"
    hint = "9 samples" if picture.has_samples and not look.alone else ""  # otherwise the tabs show it
    lines = paragraph(spread(head, hint, width) if hint else head, width)
    if is_rl:
        return [*lines, *reward_curves(picture.rollouts, width, height - len(lines), look)]
    lines += paragraph(_held_out(picture), width, HELD_OUT if picture.evals else FAINT)
    if picture.ready is not None and (pairs := picture.ready.preferences):
        lines += paragraph(pairs, width)
    if status is not None and len(status.losses) > 1:
        measured = {source: f" (held out {number(loss)})" for source, loss in status.eval_losses.items()}
        sources = (f"{clean(each, 40)} {number(loss)}{measured.get(each, '')}" for each, loss in status.losses.items())
        told = f"by source: {', '.join(sources)}"
        lines += [line(each) for each in wrapped(told, width)[: max(1, height // 6)]]
    return [*lines, *_curves(picture, width, height - len(lines), look)]


def from_rollouts(status: PeerStatus) -> bool:
    """Return True if the run learns from rollouts now: the loss of its text, if it has any, says nothing of its progress."""
    facts = status.run_definition
    return facts is not None and bool(facts.environment) and status.round >= facts.warm_rounds


def _curves(picture: Picture, width: int, height: int, look: Look) -> list[Text]:
    """Draw what the curves show in a line, and the curves below."""
    known, status = picture.curves, picture.status
    series = [("training", GOOD, known.training), ("held out", HELD_OUT, known.held_out)]
    several = known.by_source if len(known.by_source) > 1 and height >= SOURCES_FROM else {}
    for place, (name, each) in enumerate(several.items()):
        series.insert(place, (clean(name, 20), OF_SOURCES[place % len(OF_SOURCES)], each))
    if not any(len(each.points) > 1 for _, _, each in series):
        which = "round" if status is None or status.role == "trainer" else "held-out loss"
        return [line((fit(f"the curve starts with the second {which}", width), FAINT))]
    part, seconds = ZOOMS[look.zoom % len(ZOOMS)]
    since = max(each.points[-1].at for _, _, each in series if each.points) - seconds
    has_tokens = any(point.tokens for _, _, each in series for point in each.points[-1:])
    unit, place_of, ticks = UNITS[look.unit % len(UNITS) if has_tokens else 1]
    points = [[(place_of(point), point.value) for point in each.points if point.at >= since] for _, _, each in series]
    drawn = [Curve(name, style, some) for (name, style, _), some in zip(series, points, strict=True)]
    told = f"loss in nats a token, by {unit}, {part}" + ("; sources: held out" if several else "")
    caption = line((fit(spread(told, f"z zoom  u {'time' if unit != 'time' else 'tokens'}", width), width), FAINT))
    back = [each for each in known.steps_back if each.at >= since]
    marked = [line((fit(_stepped_back(back[-1], look.unicode), width), WARNING))] if back else []
    places = [float(each.at if unit == "time" else each.tokens) for each in back]
    rows = chart(drawn, width, height - 1 - len(marked), ticks, steps_back=places, unicode=look.unicode)
    return [caption, *marked, *rows]


def _stepped_back(step: StepBack, unicode: bool) -> str:
    """Describe a step back, which the chart marks."""
    when = time.strftime("%d %b %H:%M", time.localtime(step.at))
    return f"{STEP_BACK[not unicode]} went back {many(step.abandoned, 'round')}, to round {step.rounds}, on {when}"


def _held_out(picture: Picture) -> str:
    status = picture.status
    percent = status.eval_percent if status is not None else None
    measuring = f", the next is {percent} % measured" if percent is not None else ""
    if picture.evals:
        found = picture.evals[-1]
    elif status is not None and status.eval_loss is not None and status.eval_rounds is not None:
        found = EvalLoss(status.eval_rounds, status.eval_loss, status.eval_by or "", members=status.eval_members)
    else:
        return "no held-out loss yet" + measuring
    source = f"by {naming(picture.names)(found.by)}" if found.members == 1 else f"mean of {found.members} members"
    return f"held-out loss {number(found.loss)} after {many(found.rounds, 'round')}, {source}{measuring}"
