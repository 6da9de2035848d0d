"""Names, numbers and addresses as a person reads them.

Names of peers are text of strangers: what could move a terminal's cursor or turn its direction is taken out here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protocol.events.status import PeerStatus

from protocol.short_id import short_id

Naming = Callable[[str], str]
"""Peer ID -> what to call it."""

TENTHS_BELOW_S = 10


def clean(text: str, limit: int = 40) -> str:
    """`text` without anything but printable characters, at most `limit` of them."""
    return "".join(character for character in text if character.isprintable())[:limit]


def visible(text: str) -> str:
    """`text`, in which files and peers may have their part, with escapes for what is no line feed and cannot be printed."""
    return "".join(each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text)


def short(peer: str) -> str:
    """The short form of a peer ID, of which a stranger may have written any character."""
    return clean(short_id(peer))


def naming(names: Mapping[str, str]) -> Naming:
    """Calls peers by their names with the end of their ID, and unnamed ones by that alone."""

    def name(peer: str) -> str:
        known = clean(names.get(peer, ""), 24)
        return f"{known} ({short(peer)})" if known else short(peer)

    return name


def size(count: float) -> str:
    """Bytes for a person: "512 B", "3.2 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def amount(count: float) -> str:
    """A count for a person: "950", "3.2 k", "1.5 M"."""
    for unit in ("", " k", " M", " G"):
        if count < 1000:
            return f"{count:.0f}" if not unit else f"{count:.1f}{unit}"
        count /= 1000
    return f"{count:.1f} T"


def many(count: int, noun: str, plural: str = "") -> str:
    """ "1 round", "2 rounds"; `plural` where it is not the noun with an s."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """ "4.2 s", "45 s", "3 min", "2 h 5 min"; "-" for what has no end."""
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
    """ "40 seconds", "12 minutes", "5 hours", "6 days"."""
    whole = max(0, round(seconds))
    for unit, length, least in (("day", 86_400, 2), ("hour", 3600, 2), ("minute", 60, 2), ("second", 1, 0)):
        if whole >= least * length:
            count = round(whole / length)
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return "0 seconds"


def endpoint(address: str) -> str:
    """A multiaddr as people know it: "192.0.2.1 port 4001"."""
    parts = address.split("/")
    return clean(f"{parts[2]} port {parts[4]}" if len(parts) > 4 and parts[3] == "tcp" else address, 80)


def attempted(tried: Sequence[Mapping[str, Any]]) -> str:
    """Addresses and what came of them, the first four."""
    parts = []
    for each in tried[:4]:
        times = f"{each['times']} time{'' if each['times'] == 1 else 's'}: " if each["times"] else ""
        parts.append(f"{endpoint(str(each['address']))} ({times}{clean(str(each['problem']), 80)})")
    return ", ".join(parts) + (f" and {len(tried) - 4} more" if len(tried) > 4 else "")


def number(value: float | None, digits: int = 3) -> str:
    """A loss, or "-" when there is none yet."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def goal_line(status: PeerStatus) -> str:
    """How far the run is: "41 of 100 rounds (41 %), about 2 hours to go", or that it has ended."""
    if not status.goal_total:
        return "-"
    total = f"{amount(status.goal_total)} tokens" if status.goal_unit == "tokens" else many(status.goal_total, "round")
    done = amount(status.goal_done) if status.goal_unit == "tokens" else str(status.goal_done)
    text = f"{done} of {total} ({min(100, 100 * status.goal_done // status.goal_total)} %)"
    if status.run_ended:
        return f"{text}; the run has ended, and `peer export FOLDER` writes its final state"
    left = status.goal_left_s
    return text if left is None else f"{text}, about {roughly(left)} to go at the speed of the last round"


def to_go(seconds: float | None) -> str:
    """ "2 min to go", or "" when that is not known."""
    return "" if seconds is None or not math.isfinite(seconds) else f"{duration(seconds)} to go"
