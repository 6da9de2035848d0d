"""Names, numbers and addresses for people.

Names of peers are written by strangers: characters that could move a terminal's cursor or reverse the direction of text are
removed here, and so are piles of combining marks, which cover the lines above.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from protocol.short_id import short_id
from protocol.team import INVISIBLE, MOST_MARKS

Naming = Callable[[str], str]
"""Function from a peer ID to the name to show."""

TENTHS_BELOW_S = 10


def harmless(text: str) -> Iterator[str]:
    """Yield the printable characters of `text` that can be seen, with at most `MOST_MARKS` marks on a letter."""
    marks = 0
    for character in text:
        if character.isprintable() and character not in INVISIBLE:
            marks = 0 if character.isascii() or unicodedata.category(character)[0] != "M" else marks + 1
            if marks <= MOST_MARKS:
                yield character


def clean(text: str, limit: int = 40) -> str:
    """Return the first `limit` printable characters of `text` that can be seen, with few combining marks on a letter."""
    return text[:limit] if text.isascii() and text.isprintable() else "".join(islice(harmless(text), limit))


def plain(text: str, limit: int = 40) -> str:
    """Return the first characters of a text of any length, as `clean` does, without spaces around them."""
    return clean(text[: 4 * limit], limit).strip()


def visible(text: str) -> str:
    """Return `text`, which may contain strangers' words, with escapes for unprintable characters except line feeds."""
    return "".join(each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text)


def short(peer: str) -> str:
    """Return the short form of a peer ID, which may contain any characters from a stranger."""
    return clean(short_id(peer))


def naming(names: Mapping[str, str]) -> Naming:
    """Return a function that shows a peer's name and the end of its ID, or the end of the ID alone without a name."""

    def name(peer: str) -> str:
        known = clean(names.get(peer, ""), 24)
        return f"{known} ({short(peer)})" if known else short(peer)

    return name


def size(count: float) -> str:
    """Format bytes for a person: "512 B", "3.2 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def amount(count: float) -> str:
    """Format a count for a person: "950", "3.2 k", "1.5 M"."""
    for unit in ("", " k", " M", " G"):
        if count < 1000:
            return f"{count:.0f}" if not unit else f"{count:.1f}{unit}"
        count /= 1000
    return f"{count:.1f} T"


def line_rate(bytes_per_s: float) -> str:
    """Format a rate in Mbit/s, the unit in which lines are sold."""
    return f"{8e-6 * bytes_per_s:.1f} Mbit/s"


def many(count: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun: "1 round", "2 rounds".  plural: needed unless it is the noun with an s."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """Format seconds: "4.2 s", "45 s", "3 min", "2 h 5 min"; "-" for an infinite time."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < TENTHS_BELOW_S:
        return f"{max(0.1, round(seconds, 1)) if seconds > 0 else 0:g} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes = round(whole / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def roughly(seconds: float) -> str:
    """Format seconds roughly: "40 seconds", "12 minutes", "5 hours", "6 days", "3 years"."""
    whole = max(0, round(seconds))
    for unit, length, least in (
        ("year", 31_557_600, 2),
        ("day", 86_400, 2),
        ("hour", 3600, 2),
        ("minute", 60, 2),
        ("second", 1, 0),
    ):
        if whole >= least * length:
            count = round(whole / length)
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return "0 seconds"


def endpoint(address: str) -> str:
    """Format a multiaddr for a person: "192.0.2.1 port 4001"."""
    parts = address.split("/")
    return clean(f"{parts[2]} port {parts[4]}" if len(parts) > 4 and parts[3] == "tcp" else address, 80)


def attempted(tried: Sequence[Mapping[str, Any]]) -> str:
    """Format the first four addresses with their results, and the number of further ones."""
    parts = []
    for each in tried[:4]:
        # A foreign log may lack some of these.
        address, count, problem = (each.get(key, "") for key in ("address", "times", "problem"))
        times = f"{count} time{'' if count == 1 else 's'}: " if count else ""
        parts.append(f"{endpoint(str(address))} ({times}{clean(str(problem), 80)})")
    return ", ".join(parts) + (f" and {len(tried) - 4} more" if len(tried) > 4 else "")


def number(value: float | None, digits: int = 3) -> str:
    """Format a number, such as a loss; "-" if there is none yet."""
    if value is None or not math.isfinite(value):
        return "-"
    text = f"{value:.{digits}f}"
    return text if float(text) else text.removeprefix("-")


def of_fragment(fragment: int, fragments: int) -> str:
    """Format the fragment that a round exchanges, to follow its number: ", fragment 3 of 4"; "" if there is only one."""
    return f", fragment {fragment + 1} of {fragments}" if fragments > 1 else ""


def to_go(seconds: float | None) -> str:
    """Format the time left: "2 min to go", or "" if the time is unknown."""
    return "" if seconds is None or not math.isfinite(seconds) else f"{duration(seconds)} to go"
