"""Panel of the run: its purpose, model, goal, learning rate, data and organiser, and the way to invite others."""

from __future__ import annotations

from rich.text import Text

from peer.formatting import bar, epochs_read, fit, goal_amount, goal_done, pad, votes_line, wrapped
from protocol.events.status import PeerStatus, RunDefinition, RunMixture
from protocol.formatting import amount, clean, many, roughly, short
from tui.panels.drawing import FAINT, GOOD, STRONG, Look, hanging, line
from tui.picture import Picture

TITLE = "Run"
LABEL = 12
NAME, BAR = 26, 20
"""Columns of a source's name, and of the bar of its share."""
NUMBER = 12
"""Columns of a share in a later mixture."""
ROWS = {"text": "text", "chat": "chats, of which only the assistant's turns count", "preference": "preferences (DPO)"}


def draw(picture: Picture, width: int, height: int, look: Look) -> list[Text]:
    """Draw the facts, the most important first; the description gets the lines that are left, and the sources come last."""
    status = picture.status
    if status is None:
        return []
    facts = status.run_definition
    head = clean(status.run_name, 64) or "a run whose manifest is being fetched"
    organiser = f"   organised by {short(status.organiser)}" if status.organiser else ""
    blocks = [hanging(label, text, width, LABEL) for label, text in _facts(status, facts)]
    first = sum(map(len, blocks[: 2 if facts is not None else 1]))  # model and goal, above the bar of the progress
    rows = [each for block in blocks for each in block]
    sources = _sources(facts, status.run_tokens, width, look) if facts is not None else []
    told = wrapped(clean(facts.description, 500), width) if facts is not None and facts.description else []
    room = max(1, height - 2 - len(rows) - len(sources))
    if len(told) > room:
        told = [*told[: room - 1], f"{fit(told[room - 1], width - 1)}…" if look.unicode else told[room - 1]]
    progress = [_progress(status, width, look)] if status.goal_total else []
    lines = [line((fit(head + organiser, width), STRONG)), *(line(fit(each, width)) for each in told)]
    lines += [*rows[:first], *progress, *rows[first:], *sources]
    return [lines[place] for place in look.window(len(lines), height)]


def _facts(status: PeerStatus, facts: RunDefinition | None) -> list[tuple[str, str]]:
    read = f", {amount(status.run_tokens)} tokens so far" if status.goal_unit == "rounds" and not status.data_total else ""
    rows = [goal := ("goal", goal_amount(status) + read if status.goal_total else "not known yet")]
    if facts is not None:
        start = "the weights of a folder" if facts.begins_with_weights else "from scratch"
        shape = f"{many(facts.layers, 'layer')} of {facts.dim}"
        size = f"{amount(facts.parameters)} parameters ({shape}), {start}"
        if facts.frozen:
            size = f"adapter of {amount(facts.parameters)} values on {amount(facts.frozen)} parameters ({shape})"
        model = f"{clean(facts.family, 20)}, {size}"
        rows.insert(0, ("model", model))
        rows += [("rate", _rate(status, facts)), ("data", _data(facts))]
        if epochs := epochs_read(facts, per_member=status.goal_unit == "rounds"):
            rows.append(("", epochs))
        if facts.requires:
            rows.append(("to train", clean(facts.requires, 300)))
        if facts.licence:
            rows.append(("licence", clean(facts.licence, 64)))
        if facts.url:
            rows.append(("home page", clean(facts.url, 200)))
    if votes := votes_line(status):
        place = len(rows) if status.founders_vote_until is None else rows.index(goal) + 1  # what costs something comes first
        rows.insert(place, ("votes", votes))
    if status.invitation:
        invitation = f"i copies it: {clean(status.invitation, 12)}…{clean(status.invitation[-6:])}"
    elif status.invite_command:
        invitation = "the run admits by token; i copies the command that makes one"
    else:
        invitation = "from the organiser" if facts is not None else "-"
    return [*rows, ("invitation", invitation)]


def _rate(status: PeerStatus, facts: RunDefinition) -> str:
    """Describe the rate, with the peak of what is learned from now: rows and rollouts have rates of their own."""
    from_rollouts = facts.environment and status.round >= facts.warm_rounds
    peak = facts.rollout_rate if from_rollouts else facts.peak_rate
    if status.learning_rate is None:
        return f"{peak:g} at its peak"
    return f"{status.learning_rate:.3g}, {clean(status.rate_phase, 20)} (peak {peak:g})"


def _data(facts: RunDefinition) -> str:
    rows = ROWS.get(facts.rows, clean(facts.rows, 20))
    if facts.is_local:
        text = f"{rows} of each member's own, which nobody can audit"
    else:
        times = f", at most {facts.epochs} times" if facts.epochs else ""
        text = f"{rows}, about {amount(facts.data_tokens)} tokens{times}, in rows of {facts.sequence_length}"
    if not facts.environment:
        return text
    warm = f"{text}, for {facts.warm_rounds} rounds, then " if facts.warm_rounds else ""
    return f"{warm}rollouts of {clean(facts.environment, 200)}"


def _progress(status: PeerStatus, width: int, look: Look) -> Text:
    left = status.goal_left_s
    told = "the run has ended" if status.run_ended else "" if left is None else f"about {roughly(left)} to go at this speed"
    room = max(4, min(40, width - LABEL - len(told) - 2))
    cells = bar(*goal_done(status), room, unicode=look.unicode)
    return line(" " * min(LABEL, width), (cells, GOOD), fit(f"  {told}", max(0, width - LABEL - room)))


def _sources(facts: RunDefinition, tokens: int, width: int, look: Look) -> list[Text]:
    """Draw a line for each source: its share now as a number and a bar, and its share in later mixtures if they fit."""
    begun = [mixture for mixture in facts.mixtures if mixture.from_tokens <= tokens]
    if not begun:
        return []
    now, later = begun[-1], facts.mixtures[len(begun) :]
    names = list(dict.fromkeys(name for mixture in (now, *later) for name in mixture.shares))
    if len(names) == 1:
        return hanging("source", clean(names[0], 64), width, LABEL)
    fits = max(0, (width - NAME - 8 - BAR - 2) // NUMBER)
    heads = "".join(f"{f'from {amount(each.from_tokens)}':>{NUMBER}}" for each in later[:fits])
    lines = [line((fit(f"{'SOURCE':<{NAME}}{'SHARE':>7}{' ' * (BAR + 2)}{heads}", width), FAINT))]
    return [*lines, *(_source(name, now, later[:fits], width, look) for name in names)]


def _source(name: str, now: RunMixture, later: list[RunMixture], width: int, look: Look) -> Text:
    share = now.shares.get(name, 0.0)
    numbers = "".join(f"{_percent(each.shares.get(name, 0.0)):>{NUMBER}}" for each in later)
    cells = bar(round(1000 * share), 1000, BAR, unicode=look.unicode)
    text = f"{pad(clean(name, 64), NAME)}{_percent(share):>7}"
    if width < NAME + 7 + BAR + 2:
        return line(fit(text, width))
    return line(text, "  ", (cells, GOOD), fit(numbers, width - NAME - 7 - BAR - 2))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share else "-"
