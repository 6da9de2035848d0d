"""The page as one HTML document, without scripts and without requests.

Every text is escaped, and stands in an element of its own that keeps its direction to itself (`bdi`).  The policy of the
page (CSP) allows its own style sheet, by its hash, and nothing else: a text that slipped through could still load nothing,
run nothing and send nothing.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from html import escape
from pathlib import Path

from peer.control.history import CurvePoint
from peer.control.ledger import TeamCredit
from peer.page.chart import Axis, Chart, ChartMark, Line, LinePoint
from peer.page.facts import (
    MOST_SOURCES,
    AnswerFacts,
    CreditedPeer,
    Curves,
    PageFacts,
    PeerFacts,
    RunSummary,
    SampledFacts,
    StepBackFacts,
)
from protocol.formatting import amount, many, number, roughly, short

STYLE = Path(__file__).with_name("page.css")
SHOWN_ROWS = 12
"""Rows of a table that are shown before the reader asks for the others."""
TOLD_STEPS = 3
"""Steps back that a sentence below the curves tells; the charts mark all."""
INSTALL = "https://github.com/manyhands/manyhands#install"
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cg fill='none' stroke='%230f9b8e' "
    "stroke-width='2' stroke-linecap='round'%3E%3Cpath d='M3 13V8M8 13V3M13 13V6'/%3E%3C/g%3E%3C/svg%3E"
)


def document(facts: PageFacts, json_name: str) -> str:
    """Return the page.  json_name: name of the file beside it with the same facts."""
    run, style = facts.run, STYLE.read_text()
    digest = b64encode(sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    sections = [
        _figures(facts),
        _curves(facts.curves),
        *_samples(facts.samples),
        *_answers(facts.answers),
        _join(facts),
        *_people(facts),
        _about(run),
    ]
    title, sentence = escape(run.name), escape(run.description or _sentence(facts))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f'<meta name="description" content="{sentence}">\n'
        f'<meta property="og:title" content="{title}">\n<meta property="og:description" content="{sentence}">\n'
        f'<title>{title} · Manyhands</title>\n<link rel="icon" href="{ICON}">\n<style>{style}</style>\n</head>\n<body>\n'
        f"{_header(facts)}\n<main>\n" + "\n".join(sections) + f"\n</main>\n{_footer(facts, json_name)}\n</body>\n</html>\n"
    )


# ------------------------------------------------------------------------------------------------------------------------
# The head of the page: the run, how far it is, and its main figures.


def _sentence(facts: PageFacts) -> str:
    run = facts.run
    who = many(facts.contributor_count, "computer") if facts.contributor_count else "volunteers"
    return f"{_capital(run.model)}, trained by {who} together, peer to peer, on {run.data}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _header(facts: PageFacts) -> str:
    run = facts.run
    percent = min(100.0, 100 * run.done / max(1, run.total))
    shown = f"{percent:.1f}" if percent < 10 else f"{percent:.0f}"
    done = amount(run.done) if run.unit == "tokens" else f"{run.done:,}"
    total = amount(run.total) if run.unit == "tokens" else f"{run.total:,}"
    left = "the run has ended" if run.ended else f"about {roughly(run.left_s)} to go" if run.left_s is not None else ""
    return (
        f"<header><p class=brand>A model trained by many hands</p><h1><bdi>{escape(run.name)}</bdi></h1>"
        + (f'<p class="lead purpose"><bdi>{escape(run.description)}</bdi></p>' if run.description else "")
        + f"<p class=lead>{escape(_sentence(facts))}</p>"
        f'<div class=goal><progress max="100" value="{percent:.1f}" aria-label="Progress of the run"></progress>'
        f"<p><b>{shown} %</b> <span>{done} of {total} {run.unit}</span><span class=left>{left}</span></p></div>"
        + (f"<p class=copies>Data: {escape(run.copies)}.</p>" if run.copies else "")
        + "</header>"
    )


def _figures(facts: PageFacts) -> str:
    run, curves = facts.run, facts.curves
    shown = [("Rounds", f"{run.rounds:,}"), ("Tokens", amount(run.tokens))]
    if curves.loss:
        shown.insert(0, ("Training loss", number(curves.loss[-1].value)))
    if curves.held_out:
        shown.insert(0, ("Held-out loss", number(curves.held_out[-1].loss)))
    if curves.reward:
        shown.insert(0, ("Reward", number(curves.reward[-1].value)))
    if facts.peers_here is not None:
        shown.append(("Peers here", str(facts.peers_here)))
    if run.tokens_per_s is not None and not run.ended:
        shown.append(("Tokens a second", amount(run.tokens_per_s)))
    tiles = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in shown)
    return f'<dl class="figures">{tiles}</dl>'


# ------------------------------------------------------------------------------------------------------------------------
# The curves.


LOSS = Axis("nats a token", lambda value: f"{value:.2f}", plausible=16.0)
"""Losses begin near the logarithm of the vocabulary, which is 12.5 for 256 Ki tokens."""
REWARD = Axis("reward", lambda value: f"{value:.2f}", 0.0, 1.0)
MEMBERS = Axis("members", lambda value: f"{value:.0f}", 0.0, whole=True)
ROUNDS = Axis("rounds", lambda value: f"{value:,.0f}", whole=True)
TOKENS = Axis("tokens", lambda value: amount(value), whole=True)


def _curves(curves: Curves) -> str:
    if not curves.loss:
        text = "The first round is not complete yet; the curves begin with it."
        return f'<section><h2>Curves</h2><p class="empty">{text}</p></section>'
    figure = partial(_figure, steps_back=curves.steps_back)
    figures = [figure("Loss", "nats a token", lambda of: _loss_lines(curves, of), LOSS)]
    if curves.reward:
        figures.insert(
            0,
            figure("Reward of the rollouts", "mean, 0 to 1", lambda of: [_line("reward", "c3", curves.reward, of)], REWARD),
        )
    measured = [name for each in curves.held_out for name in each.losses]
    sources = list(dict.fromkeys([*curves.sources, *measured]))[:MOST_SOURCES]
    if len(set(measured)) > 1:
        figures.append(
            figure("Held-out loss by source", "nats a token", lambda of: _measured_lines(curves, sources, of), LOSS)
        )
    if len(curves.sources) > 1:
        figures.append(
            figure("Training loss by source", "nats a token", lambda of: _source_lines(curves, sources, of), LOSS)
        )
    figures.append(figure("Members of a round", "peers", lambda of: [_line("members", "c4", curves.members, of)], MEMBERS))
    return (
        '<section class="curves"><h2>Curves</h2>'
        '<input type="radio" name="axis" id="by-rounds" checked><label for="by-rounds">by rounds</label>'
        '<input type="radio" name="axis" id="by-tokens"><label for="by-tokens">by tokens</label>'
        + f'<div class="charts">{"".join(figures)}</div>{_told_steps(curves.steps_back)}</section>'
    )


def _figure(title: str, unit: str, lines: Callable[[str], list[Line]], y: Axis, steps_back: Sequence[StepBackFacts]) -> str:
    """Return a figure with a chart by rounds and one by tokens, of which the reader sees one."""
    by_rounds = Chart(lines("rounds"), ROUNDS, y, _marks(steps_back, "rounds"))
    by_tokens = Chart(lines("tokens"), TOKENS, y, _marks(steps_back, "tokens"))
    return (
        f"<figure><figcaption><h3>{title}</h3> <span>{unit}</span></figcaption>{by_rounds.legend()}"
        f'<div class="by-rounds">{by_rounds.html()}</div><div class="by-tokens">{by_tokens.html()}</div></figure>'
    )


def _marks(steps_back: Sequence[StepBackFacts], of: str) -> list[ChartMark]:
    return [ChartMark(getattr(each, of), _stepped_back(each)) for each in steps_back]


def _stepped_back(step: StepBackFacts) -> str:
    return f"went back {many(step.abandoned, 'round')}, to round {step.rounds:,}, on {step.at[:10]}"


def _told_steps(steps_back: Sequence[StepBackFacts]) -> str:
    """Return a sentence about the last steps back, which the charts mark; empty without any."""
    if not steps_back:
        return ""
    told = "; ".join(map(_stepped_back, reversed(steps_back[-TOLD_STEPS:])))
    more = f"; and {many(len(steps_back) - TOLD_STEPS, 'time')} before" if len(steps_back) > TOLD_STEPS else ""
    return f'<p class="empty steps">Dashed lines: the run {told}{more}. Rounds that were given up are not in the curves.</p>'


def _loss_lines(curves: Curves, of: str) -> list[Line]:
    measured = [LinePoint(getattr(each, of), each.loss, each.loss, each.loss) for each in curves.held_out]
    return [_line("training", "c1", curves.loss, of), Line("held out", "c2", measured)]


def _measured_lines(curves: Curves, sources: Sequence[str], of: str) -> list[Line]:
    lines = []
    for place, name in enumerate(sources, 1):
        points = [(getattr(each, of), each.losses[name]) for each in curves.held_out if name in each.losses]
        lines.append(Line(name, f"c{place}", [LinePoint(x, loss, loss, loss) for x, loss in points]))
    return lines


def _source_lines(curves: Curves, sources: Sequence[str], of: str) -> list[Line]:
    return [_line(name, f"c{place}", curves.sources.get(name, []), of) for place, name in enumerate(sources, 1)]


def _line(name: str, style: str, points: Sequence[CurvePoint], of: str) -> Line:
    return Line(name, style, [LinePoint(getattr(each, of), each.value, each.low, each.high) for each in points])


# ------------------------------------------------------------------------------------------------------------------------
# Samples: the newest completion of each prompt, and earlier ones for the reader who asks.


def _samples(samples: Sequence[SampledFacts]) -> list[str]:
    if not samples:
        return []
    newest = samples[-1]
    told = f"after {many(newest.rounds, 'round')}, as {_who(newest.peer, newest.name)} says"
    texts = "".join(_of_prompt(prompt, samples) for prompt in newest.completions)
    return [f'<section class="samples"><h2>What the model writes <span>{told}</span></h2>{texts}</section>']


def _of_prompt(prompt: str, samples: Sequence[SampledFacts]) -> str:
    """Return a prompt, what the newest model makes of it, and what earlier ones did, the newest of them first."""
    newest, *earlier = [each for each in reversed(samples) if prompt in each.completions]
    rows = "".join(
        f"<div><dt>after {many(each.rounds, 'round')}</dt><dd><bdi>{escape(each.completions[prompt])}</bdi></dd></div>"
        for each in earlier
    )
    rest = f'<details><summary>{len(earlier)} earlier</summary><dl class="about">{rows}</dl></details>' if earlier else ""
    text = f"<blockquote><bdi>{escape(newest.completions[prompt])}</bdi></blockquote>"
    return f"<h3><bdi>{escape(prompt)}</bdi></h3>{text}{rest}"


def _answers(answers: Sequence[AnswerFacts]) -> list[str]:
    """Return the best and a typical answer of a round, with their problems."""
    if not answers:
        return []
    texts = "".join(
        f"<h3>{_capital(each.kind)}, reward {each.reward:.2f}</h3><p class=empty><bdi>{escape(each.prompt)}</bdi></p>"
        f"<blockquote><bdi>{escape(each.text)}</bdi></blockquote>"
        for each in answers
    )
    told = f"in round {answers[0].round}, among those that one member learned from"
    return [f'<section class="samples"><h2>Answers <span>{told}</span></h2>{texts}</section>']


# ------------------------------------------------------------------------------------------------------------------------
# Peers and contributors.


def _people(facts: PageFacts) -> list[str]:
    parts = []
    if facts.peers_here is not None:
        parts.append(
            _table(
                "peers",
                "Here now",
                many(facts.peers_here, "peer"),
                ["Peer", "Role", "Tokens a second", "Round"],
                [_peer_row(each) for each in facts.peers],
                facts.peers_here,
            )
        )
    if facts.contributors:
        has_rollouts = any(each.accepted_tokens for each in facts.contributors)
        heads = ["Peer", "Share", "Tokens", *(["Tokens of rollouts"] if has_rollouts else []), "Rounds"]
        most = max(each.share for each in facts.contributors)
        rows = [_contributor_row(each, most, has_rollouts) for each in facts.contributors]
        told = f"{many(facts.contributor_count, 'peer')}, by the tokens they trained"
        parts.append(_table("contributors", "Contributors", told, heads, rows, facts.contributor_count))
    if facts.teams:
        has_rollouts = any(each.accepted_tokens for each in facts.teams)
        heads = ["Team", "Share", "Tokens", *(["Tokens of rollouts"] if has_rollouts else []), "Peers"]
        most = max(each.share for each in facts.teams)
        rows = [_team_row(each, most, has_rollouts) for each in facts.teams]
        told = f"{many(facts.team_count, 'team')}, by the tokens their peers trained"
        parts.append(_table("teams", "Teams", told, heads, rows, facts.team_count))
    return parts


def _peer_row(each: PeerFacts) -> list[str]:
    pace = amount(each.tokens_per_s) if each.tokens_per_s > 0 else "–"
    return [_who(each.peer, each.name), escape(each.role), escape(pace), f"{each.rounds:,}"]


def _contributor_row(each: CreditedPeer, most: float, has_rollouts: bool) -> list[str]:
    return [_who(each.peer, each.name), *_credit(each, most, has_rollouts), f"{each.rounds:,}"]


def _team_row(each: TeamCredit, most: float, has_rollouts: bool) -> list[str]:
    return [f"<bdi>{escape(each.team)}</bdi>", *_credit(each, most, has_rollouts), f"{each.peers:,}"]


def _credit(each: CreditedPeer | TeamCredit, most: float, has_rollouts: bool) -> list[str]:
    """Return the cells of a credit.  most: the largest share in the table."""
    width = round(100 * each.share / most) if most > 0 else 0
    filled = f'<rect width="100%" height="100%"/><rect width="{width}%" height="100%"/>'
    bar = f'<svg class="share" aria-hidden="true">{filled}</svg>'
    made = [escape(amount(each.accepted_tokens))] if has_rollouts else []
    return [f"{bar}<span>{100 * each.share:.1f} %</span>", escape(amount(each.tokens)), *made]


def _who(peer: str, name: str) -> str:
    """Return a peer's name, which it chose, and the end of its ID, which it did not."""
    return f"<bdi>{escape(name)}</bdi> <span class=id>{escape(short(peer))}</span>"


def _table(style: str, title: str, told: str, heads: Sequence[str], rows: Sequence[Sequence[str]], count: int) -> str:
    """Return a table of which the first rows are shown, and the others when the reader wants them.  count: of all rows."""
    columns = "".join(f'<th scope="col">{head}</th>' for head in heads)

    def body(part: Sequence[Sequence[str]]) -> str:
        lines = "".join(
            f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>' for row in part
        )
        return f'<table aria-label="{title}"><thead><tr>{columns}</tr></thead><tbody>{lines}</tbody></table>'

    rest = ""
    if len(rows) > SHOWN_ROWS:
        untold = f"<p>and {count - len(rows)} more</p>" if count > len(rows) else ""
        rest = f"<details><summary>{count - SHOWN_ROWS} more</summary>{body(rows[SHOWN_ROWS:])}{untold}</details>"
    return f"<section class={style}><h2>{title} <span>{told}</span></h2>{body(rows[:SHOWN_ROWS])}{rest}</section>"


# ------------------------------------------------------------------------------------------------------------------------
# How to join, and the end of the page.


def _join(facts: PageFacts) -> str:
    """Return how to take part; once the run has ended, how to get the model."""
    ended, invitation = facts.run.ended, escape(facts.invitation)
    steps = [
        f'<a href="{INSTALL}" rel="noopener noreferrer">Install Manyhands</a> on a computer with Linux; a GPU helps, but is '
        "not needed."
    ]
    if invitation:
        until = " --until-end" if ended else ""
        command = f"<code class=invitation>peer join {invitation}{until}</code>"
        steps.append(f"Type this command, which has the invitation:{command}")
    else:
        steps += [
            "Ask the organiser for an invitation; <code>peer id</code> prints the ID that the organiser may want.",
            f"Type <code>peer join</code> and the invitation{', and <code>--until-end</code>' if ended else ''}.",
        ]
    if ended:
        steps.append(
            "Your computer fetches the final weights from the others. Then <code>peer export FOLDER</code> writes the model "
            "as a Hugging Face folder."
        )
    elif invitation:
        steps.append("Your computer finds the others, fetches the model and trains. You can pause or leave at any moment.")
    told = "".join(f"<li>{step}</li>" for step in steps)
    return f'<section class="join"><h2>{"Get the model" if ended else "Join in"}</h2><ol>{told}</ol></section>'


def _about(run: RunSummary) -> str:
    home = (
        f'<a href="{escape(run.url)}" rel="noopener noreferrer nofollow"><bdi>{escape(run.url)}</bdi></a>' if run.url else ""
    )
    texts = [
        ("Trains", run.model),
        ("Reads", run.data),
        ("Learning rate", run.rate),
        ("Licence", run.licence),
        ("Organiser", run.organiser),
        ("Run", run.id),
    ]
    rows = [("Home page", home), *((name, f"<bdi>{escape(text)}</bdi>") for name, text in texts if text)]
    told = "".join(f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in rows if text)
    return f'<section><h2>The run</h2><dl class="about">{told}</dl></section>'


def _footer(facts: PageFacts, json_name: str) -> str:
    day, _, time = facts.at.partition("T")
    return (
        f'<footer><p>As of <time datetime="{facts.at}">{day} {time[:5]} UTC</time>, as one peer of the run saw it. '
        f'<a href="{json_name}">The same facts as JSON</a></p>'
        "<p>Names and teams are chosen by the peers; nobody checks them. Losses and samples are what the members claim.</p>"
        "</footer>"
    )
