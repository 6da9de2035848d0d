"""Panel of the samples: the newest completion of each of the run's prompts, and some earlier completions below it.

A trainer of a run with rollouts also sees the best and a typical answer of those from which it learned last.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from peer.control.curves import MOST_CHARACTERS, MOST_PROMPTS, AnswersOfRound, SampledState
from peer.formatting import fit
from protocol.formatting import many, naming, plain
from tui.panels.drawing import FAINT, STRONG, Look, line
from tui.picture import Picture

TITLE = "Samples"
ROUND = 14
"""Columns of the rounds in front of an earlier completion."""
NEWEST_LINES = 4
"""Most lines of the newest completion of a prompt."""
ANSWER_LINES = 3
"""Most lines of an answer, and of the problem that it answers."""


def draw(picture: Picture, width: int, height: int, look: Look) -> list[Text]:
    """Draw the answers, and then the prompts in turn; each prompt gets an equal share of the lines that are left."""
    states, status, answers = picture.curves.samples.states, picture.status, picture.curves.answers
    definition = status.run_definition if status is not None else None
    prompts = [*states[-1].completions] if states else definition.prompts if definition is not None else []
    if not prompts and answers is None:
        return [line((fit("this run has no prompts to complete", width), FAINT))]
    lines = _answers(answers, width) if answers is not None else []
    if prompts:
        head = "no sample yet; the first ones come with the first evaluation"
        if states:
            who = naming(picture.names)(states[-1].by)
            head = f"written by the model after {many(states[-1].rounds, 'round')}, as {who} says"
        lines.append(line((fit(head, width), FAINT)))
        share = max(2, (height - len(lines)) // len(prompts[:MOST_PROMPTS]))
        for prompt in prompts[:MOST_PROMPTS]:
            lines += _of_prompt(prompt, states, width, share)
    return [lines[place] for place in look.window(len(lines), height)]


def _answers(answers: AnswersOfRound, width: int) -> list[Text]:
    """Draw two answers, each below the problem that it answers."""
    lines: list[Text] = []
    for name, answer in (("the best answer", answers.best), ("a typical answer", answers.typical)):
        head = f"{name} of round {answers.round}, reward {answer.reward:.2f}"
        lines.append(line((fit(head, width), FAINT)))
        for text, style in ((answer.prompt, STRONG), (answer.text, "")):
            lines += [line((each, style)) for each in _cut(plain(text, MOST_CHARACTERS), width, ANSWER_LINES)]
    return lines


def _of_prompt(prompt: str, states: Sequence[SampledState], width: int, room: int) -> list[Text]:
    """Draw a prompt, its newest completion, and some earlier ones, the last of which is the oldest known."""
    lines = [line((fit(plain(prompt, MOST_CHARACTERS), width), STRONG))]
    known = [each for each in reversed(states) if prompt in each.completions]
    if not known:
        return lines
    newest, *earlier = known
    lines += [line(each) for each in _cut(_text(newest, prompt), width, min(NEWEST_LINES, room - 1))]
    room -= len(lines)
    if len(earlier) > room:  # evenly spread from the first to the last
        places = (place * (len(earlier) - 1) // (room - 1) for place in range(room)) if room > 1 else range(max(0, room))
        earlier = [earlier[place] for place in places]
    for each in earlier:
        when = (fit(f"{f'after {each.rounds}':<{ROUND}}", width), FAINT)
        lines.append(line(when, fit(_text(each, prompt), max(0, width - ROUND))))
    return lines


def _text(state: SampledState, prompt: str) -> str:
    return plain(state.completions[prompt], MOST_CHARACTERS)


def _cut(text: str, width: int, most: int) -> list[str]:
    """Cut a text into lines of at most `width` columns, after a space if there is one; leave out what is beyond `most`."""
    lines: list[str] = []
    while text and len(lines) < most and (part := fit(text, width)):
        if len(part) < len(text) and (space := part.rfind(" ")) > 0:
            part = part[: space + 1]
        lines.append(part)
        text = text[len(part) :]
    return lines
