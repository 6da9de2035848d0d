"""Texts that strangers choose to move a terminal, to turn or hide text, or to be more than text where they are shown.

Whatever shows a text of a stranger is tested with each of them: the interface, the page and its JSON file, lines and JSON of
commands, model cards, and the trackers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from protocol.events.events import EVENTS, Event

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "attribute": '"><img src=x onerror=alert(1)>',
    "single quotes": "' onmouseover='alert(1)",
    "end of style": "</style><script>alert(1)</script>",
    "comment": "--><!-- <b>",
    "entities": "&#x202e;&lt;script&gt;",
    "Markdown": "# a [link](javascript:alert(1)) ![](https://evil.example) `code` | cell\n\n---\n",
    "YAML": "a: &b !!python/object:os.system x\n--- *b",
    "JSON": '"}, {"admin": true, "\\u202e": [\\',
    "Jinja": "{{ 7 * 7 }}{% for each in range(10**9) %}${HOME} %s {0!r}",
    "Rich markup": "[red]x[/red] [/] [/nothing] [link=https://evil.example]x[/link] [@click=app.quit]x[/] [",
    "a path": "../../../../etc/passwd",
    "a formula": "=HYPERLINK(1)+cmd|' /C calc'!A0",
    "an option": "--help -rf",
    "terminal escapes": "\x1b[2J\x1b]0;title\x07\r\n\0",
    "a clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "a hyperlink": "\x1b]8;;https://evil.example\x1b\\text\x1b]8;;\x1b\\",
    "eight-bit escapes": "\x9b31mred\x9d0;title\x9c\x85",
    "overwriting": "good\rbad\b\b\b\x7f\v\f",
    "line separators": "one\u2028two\u2029three\x85four\nfive\x1c\x1d\x1e",
    "turned text": "\u202egnirts\u202c \u2066\u2069\u200f\u061c",
    "invisible": "\u200b\u2060\ufeff\u00ad",
    "tags": "a\U000e0041\U000e007f",
    "letters without ink": "\u3164\u115f\u1160\uffa0",
    "lone surrogates": "\ud800name\udfff",
    "no characters": "\ufffe\uffff\U0010ffff\ue000",
    "a megabyte": "A" * (1 << 20),
    "a megabyte of marks": "\u202e" * (1 << 20),
    "a megabyte of wide letters": "\u5bbd" * (1 << 20),
    "combining marks": "a" + "\u0300" * 5000,
    "enclosing marks": "a" + "\u20dd\u0489\u0e47" * 2000,
    "a family": "\U0001f468\u200d\U0001f469\u200d\U0001f467\ufe0f" * 20,
    "right to left": "\u0645\u0631\u062d\u0628\u0627",
    "nothing": "",
    "spaces": "   \u3000\u00a0  ",
}
EACH_HOSTILE = [
    pytest.param(text, id=name, marks=[pytest.mark.slow] if "megabyte" in name else []) for name, text in HOSTILE.items()
]
"""For `pytest.mark.parametrize`; a text of a megabyte takes a second where it is drawn."""
HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e01ef"
    "\u034f\u115f\u1160\u3164\uffa0\ufe00-\ufe0f]"
    "|[\u0300\u20dd\u0489\u0e47]{4}"
)
"""Characters that a terminal obeys, or that turn or hide text, and piles of marks; tabs and line feeds are no harm here."""


def every_event(text: str, peer: str, whole: int, number: float) -> Iterator[Event]:
    """Yield an event of each kind with these values, as a foreign log may have it."""
    answer = {"reward": number, "prompt": text, "text": text}
    values: dict[str, Any] = {
        "int": whole,
        "float": number,
        "str": text,
        "bool": whole > 0,
        "list[str]": [peer],
        "int | None": whole,
        "float | None": number,
        "dict[str, int]": {peer: whole},
        "dict[str, float]": {text: number},
        "dict[str, Any]": {"peer": peer},
        "dict[str, str]": {text: "reachable"},
        "list[dict[str, Any]]": [{"address": text, "times": whole, "problem": text, **answer}, answer],
    }
    for cls in EVENTS.values():
        yield cls(*[values[str(field.type)] for field in fields(cls)])
