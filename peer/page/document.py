"""The page as one HTML document, without scripts and without requests: the template `page.html`, and the charts in it.

Every text is escaped (autoescape), and stands in its own `bdi` element, so that its direction of writing does not affect
other texts.  The policy of the page (CSP) allows its own style sheet, by its hash, and nothing else: a text that slipped
through could still load nothing, run nothing and send nothing.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from peer.page.chart import Axis, Chart, ChartMark, Line, LinePoint
from peer.page.facts import MOST_SOURCES, PageFacts
from protocol.formatting import amount, many, number, roughly, short

FOLDER = Path(__file__).parent
SHOWN_ROWS = 12
"""Rows of a table that are shown before the reader asks for the others."""
TOLD_STEPS = 3
"""Number of steps back that have a sentence below the curves; the charts mark all steps back."""
INSTALL = "https://github.com/manyhands/manyhands#install"
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cg fill='none' stroke='%230f9b8e' "
    "stroke-width='2' stroke-linecap='round'%3E%3Cpath d='M3 13V8M8 13V3M13 13V6'/%3E%3C/g%3E%3C/svg%3E"
)


def document(facts: PageFacts, json_name: str) -> str:
    """Return the page.  json_name: name of the file beside it with the same facts."""
    run, style = facts["run"], (FOLDER / "page.css").read_text()
    model, digest = run["model"], b64encode(sha256(style.encode()).digest()).decode()
    who = many(facts["contributor_count"], "computer") if facts["contributor_count"] else "volunteers"
    templates = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    return templates.get_template("page.html").render(
        facts=facts,
        json_name=json_name,
        style=style,
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'",
        sentence=f"{model[:1].upper()}{model[1:]}, trained by {who} together, peer to peer, on {run['data']}.",
        percent=min(100.0, 100 * run["done"] / max(1, run["total"])),
        of_unit=amount if run["unit"] == "tokens" else "{:,}".format,
        tiles=_tiles(facts),
        figures=_figures(facts["curves"]),
        icon=ICON,
        install=INSTALL,
        shown_rows=SHOWN_ROWS,
        told_steps=TOLD_STEPS,
        stepped_back=_stepped_back,
        earlier_samples=lambda prompt: [each for each in facts["samples"][-2::-1] if prompt in each["completions"]],
        amount=amount,
        many=many,
        roughly=roughly,
        short=short,
    )


def _tiles(facts: PageFacts) -> list[tuple[str, str]]:
    """Return the main figures with their names."""
    run, curves = facts["run"], facts["curves"]
    shown = [("Rounds", f"{run['rounds']:,}"), ("Tokens", amount(run["tokens"]))]
    for title, name, value in (
        ("Training loss", "loss", "value"),
        ("Held-out loss", "held_out", "loss"),
        ("Reward", "reward", "value"),
    ):
        if points := curves[name]:
            shown.insert(0, (title, number(points[-1][value])))
    if facts["peers_here"] is not None:
        shown.append(("Peers here", str(facts["peers_here"])))
    if run["tokens_per_s"] is not None and not run["ended"]:
        shown.append(("Tokens a second", amount(run["tokens_per_s"])))
    return shown


# ------------------------------------------------------------------------------------------------------------------------
# The curves.


LOSS = Axis("nats a token", lambda value: f"{value:.2f}", plausible=16.0)
"""Losses begin near the logarithm of the vocabulary, which is 12.5 for 256 Ki tokens."""
REWARD = Axis("reward", lambda value: f"{value:.2f}", 0.0, 1.0)
MEMBERS = Axis("members", lambda value: f"{value:.0f}", 0.0, whole=True)
ROUNDS = Axis("rounds", lambda value: f"{value:,.0f}", whole=True)
TOKENS = Axis("tokens", lambda value: amount(value), whole=True)


@dataclass(frozen=True)
class Figure:
    """Figure with a chart by rounds and a chart by tokens; the reader chooses which one is visible."""

    title: str
    unit: str
    by_rounds: Chart
    by_tokens: Chart


def _figures(curves: Mapping[str, Any]) -> list[Figure]:
    """Return the figures of the run; none before its first round."""
    if not curves["loss"]:
        return []

    def figure(title: str, unit: str, lines: Callable[[str], list[Line]], y: Axis) -> Figure:
        charts = (
            Chart(lines(of), x, y, [ChartMark(each[of], _stepped_back(each)) for each in curves["steps_back"]])
            for of, x in (("rounds", ROUNDS), ("tokens", TOKENS))
        )
        return Figure(title, unit, *charts)

    def line(name: str, style: str, points: Sequence[Mapping[str, Any]], of: str) -> Line:
        return Line(name, style, [LinePoint(each[of], each["value"], each["low"], each["high"]) for each in points])

    def held_out(name: str, style: str, source: str | None, of: str) -> Line:
        known = [(each[of], each["losses"].get(source) if source else each["loss"]) for each in curves["held_out"]]
        return Line(name, style, [LinePoint(x, y, y, y) for x, y in known if y is not None])

    measured = [name for each in curves["held_out"] for name in each["losses"]]
    sources = list(enumerate(list(dict.fromkeys([*curves["sources"], *measured]))[:MOST_SOURCES], 1))
    found = []
    if curves["reward"]:
        rewards = lambda of: [line("reward", "c3", curves["reward"], of)]  # noqa: E731
        found.append(figure("Reward of the rollouts", "mean, 0 to 1", rewards, REWARD))
    both = lambda of: [line("training", "c1", curves["loss"], of), held_out("held out", "c2", None, of)]  # noqa: E731
    found.append(figure("Loss", "nats a token", both, LOSS))
    if len(set(measured)) > 1:
        of_measured = lambda of: [held_out(name, f"c{place}", name, of) for place, name in sources]  # noqa: E731
        found.append(figure("Held-out loss by source", "nats a token", of_measured, LOSS))
    if len(trained := curves["sources"]) > 1:
        of_trained = lambda of: [line(name, f"c{place}", trained.get(name, []), of) for place, name in sources]  # noqa: E731
        found.append(figure("Training loss by source", "nats a token", of_trained, LOSS))
    found.append(figure("Members of a round", "peers", lambda of: [line("members", "c4", curves["members"], of)], MEMBERS))
    return found


def _stepped_back(step: Mapping[str, Any]) -> str:
    return f"went back {many(step['abandoned'], 'round')}, to round {step['rounds']:,}, on {step['at'][:10]}"
