"""Text of a web page: what stands between its tags, a line for each block.

The page is split at each <, so the time is linear in its size, whatever is left open in it.  Scripts, styles and comments
are left out.  Nothing is guessed about navigation or advertisements.
"""

from __future__ import annotations

import html
import re

_NAME = re.compile(r"/?([a-zA-Z][a-zA-Z0-9]*)")
_HIDDEN = frozenset("script style template noscript svg".split())
_SPACE = re.compile(r"\s+")
_BLOCKS = frozenset(
    "address article aside blockquote body br caption dd details div dl dt figcaption figure footer form h1 h2 h3 h4 h5 h6 "
    "header hr html li main nav ol option p pre section summary table td th title tr ul".split()
)


def text_of_page(page: str) -> str:
    """Return the text of a page; empty if it has none."""
    first, *pieces = page.split("<")
    parts, ending, is_pre = [_SPACE.sub(" ", first)], "", False
    for piece in pieces:
        if ending:
            if ending == "-->":
                _, closed, text = piece.partition(ending)
            else:
                closed = ">" if piece[: len(ending)].lower() == ending else ""
                text = piece.partition(">")[2]
            if closed:
                parts.append(text)
                ending = ""
            continue
        if piece.startswith("!--"):
            _, closed, text = piece.partition("-->")
            ending = "" if closed else "-->"
            parts.append(text)
            continue
        named = _NAME.match(piece)
        if named is None and not piece.startswith(("!", "?", "/")):
            parts.append("<" + piece)
            continue
        text = _after_tag(piece)
        name = named[1].lower() if named is not None else ""
        if name in _HIDDEN and not piece.startswith("/"):
            ending = "/" + name
            continue
        is_pre = not piece.startswith("/") if name == "pre" else is_pre
        text = text if is_pre else _SPACE.sub(" ", text)
        parts.append("\n" + (text if is_pre else text.lstrip()) if name in _BLOCKS else text)
    lines = (line.rstrip() for line in html.unescape("".join(parts)).split("\n"))
    return "\n".join(line for line in lines if line)


def _after_tag(piece: str) -> str:
    """Return the text after a tag; a > in quotes does not end it."""
    tag, closed, text = piece.partition(">")
    quotes = tag.count('"')
    while quotes % 2 and ">" in text:
        more, closed, text = text.partition(">")
        quotes += more.count('"')
    return text if closed else ""
