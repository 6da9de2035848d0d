"""Notation of settings: functions that read a value from text, and functions that show it as text.

A reader raises ValueError with a sentence that names the mistake and a correct form.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from peer.addresses import multiaddr_of

# ------------------------------------------------------------------------------------------------------------------------
# Hours during which a peer may compute, in the form that a person writes: "mon-fri 18:00-08:00, sat-sun".
#
# A day is written with three letters; two days joined by a hyphen are a span.  Hours are local time, and may go past
# midnight into the next day.  Days without hours are whole days; hours without days apply to every day.


DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60
WEEK_MINUTES = 7 * DAY_MINUTES
MOST_SPANS = 32
_SPAN = re.compile(
    r"(?:(?P<first>[a-z]{3})(?:-(?P<last>[a-z]{3}))?)?\s*(?:(?P<from>\d{1,2}:\d{2})-(?P<to>\d{1,2}:\d{2}))?", re.ASCII
)
HOW = "write days and hours, such as mon-fri 18:00-08:00, sat-sun"


@dataclass(frozen=True)
class Schedule:
    """Weekly schedule.  spans: (first minute of the week, minutes), from Monday 00:00.  text: the schedule as written."""

    text: str
    spans: tuple[tuple[int, int], ...]

    def allows(self, now: datetime) -> bool:
        """Return True if the peer may compute at `now` (local time)."""
        minute = _minute_of_week(now)
        return any((minute - begin) % WEEK_MINUTES < length for begin, length in self.spans)

    def next_change(self, now: datetime) -> datetime:
        """Return the next time at which `allows` changes; a week from now if it never does."""
        begun, allowed = now.replace(second=0, microsecond=0), self.allows(now)
        edges = sorted(
            {
                (edge - _minute_of_week(now)) % WEEK_MINUTES or WEEK_MINUTES
                for begin, length in self.spans
                for edge in (begin, begin + length)
            }
        )
        changes = (begun + timedelta(minutes=edge) for edge in edges)
        return next((at for at in changes if self.allows(at) is not allowed), begun + timedelta(days=7))


def read_schedule(text: str) -> Schedule:
    """Parse a schedule.  Raises ValueError with a sentence."""
    parts = [part.strip() for part in text.lower().split(",")]
    if len(parts) > MOST_SPANS:
        raise ValueError(f"a schedule has at most {MOST_SPANS} parts")
    return Schedule(text, tuple(span for part in parts for span in _spans(part)))


def _spans(part: str) -> list[tuple[int, int]]:
    match = _SPAN.fullmatch(part)
    if not part or match is None:
        raise ValueError(f"{part or 'nothing'} is not part of a schedule; {HOW}")
    first, last = match["first"] or "mon", match["last"] or match["first"] or "sun"
    if first not in DAYS or last not in DAYS:
        raise ValueError(f"{first if first not in DAYS else last} is not a day; {HOW}")
    begin = _minutes(match["from"]) if match["from"] else 0
    end = _minutes(match["to"]) if match["to"] else DAY_MINUTES
    length = (end - begin) % DAY_MINUTES or DAY_MINUTES
    count = (DAYS.index(last) - DAYS.index(first)) % 7 + 1
    return [((DAYS.index(first) + day) % 7 * DAY_MINUTES + begin, length) for day in range(count)]


def _minutes(text: str) -> int:
    hours, minutes = map(int, text.split(":"))
    if minutes > 59 or hours * 60 + minutes > DAY_MINUTES:
        raise ValueError(f"{text} is not a time of day; {HOW}")
    return hours * 60 + minutes


def _minute_of_week(now: datetime) -> int:
    return now.weekday() * DAY_MINUTES + now.hour * 60 + now.minute


# ------------------------------------------------------------------------------------------------------------------------


RATE_UNITS = {"": 125e3, "kbit": 125.0, "mbit": 125e3, "gbit": 125e6, "kb": 1e3, "mb": 1e6, "gb": 1e9}
SIZE_UNITS = {"mb": 10**6, "gb": 10**9, "tb": 10**12}
LEAST_RATE, MOST_RATE = 16e3, 1e12
LEAST_SIZE, MOST_SIZE = 10**6, 10**16
MOST_PROCESSES = 64
LEAST_LOAD = 0.1
"""A trainer waits at most nine times as long as it has worked."""
MAX_NAME = 40
USUAL_PORT = 4001
MOST_ADDRESSES = 4
PEER_ID = re.compile("12D3KooW[1-9A-HJ-NP-Za-km-z]{44}")
"""Form of an Ed25519 key's peer ID in base58."""


def read_name(text: str) -> str:
    """Read at most 40 printable characters."""
    if len(text) > MAX_NAME or not text.isprintable():
        raise ValueError(f"a name has at most {MAX_NAME} characters, all of them printable")
    return text


def read_team(text: str) -> str:
    """Read the name of a team; an empty text stands for no team."""
    from protocol.team import MAX_TEAM, team_named  # imported only on use, because `peer --help` must be quick

    name = team_named(text)
    if text and not name:
        raise ValueError(
            f"a team's name has 1 to {MAX_TEAM} letters, digits, single spaces, hyphens and underscores; it begins with a "
            "letter or a digit"
        )
    return name


def whole_number(least: int, most: int, what: str) -> Callable[[str], int]:
    """Return the reader of a whole number.  what: completes the sentence "TEXT is not …"."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and least <= int(text) <= most):
            raise ValueError(f"{text} is not {what}")
        return int(text)

    return read


read_port = whole_number(0, 65535, "a port; give a number from 1 to 65535, or 0 for a free one")
read_metrics_port = whole_number(
    1, 65535, "a port; give a number from 1 to 65535"
)  # the metrics collector must know the port, so it is never 0
read_count = whole_number(1, 1 << 30, "a count; give a whole number from 1")
read_processes = whole_number(1, MOST_PROCESSES, f"a number of processes; give a number from 1 to {MOST_PROCESSES}")


def read_gpus(text: str) -> str:
    """Read "all", or numbers of GPUs with commas between them."""
    parts = [part.strip() for part in text.split(",")]
    if text == "all":
        return text
    if not all(re.fullmatch("[0-9]{1,3}", part) for part in parts) or len({int(part) for part in parts}) != len(parts):
        raise ValueError(f"{text} does not name GPUs; write all, or different numbers with commas between them, such as 0,2")
    if len(parts) > MOST_PROCESSES:
        raise ValueError(f"at most {MOST_PROCESSES} GPUs train together")
    return ",".join(str(int(part)) for part in parts)


def read_rate(text: str) -> float:
    """Read a rate in bytes a second, from Mbit/s, bits a second (kbit, mbit, gbit) or bytes a second (kB, MB, GB)."""
    rate = _scaled(text, RATE_UNITS)
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise ValueError(f"{text} is not a rate; give 16kB or more, such as 20Mbit (bits) or 1.5MB (bytes) a second")
    return rate


def read_size(text: str) -> int:
    """Read a size in bytes, from "500MB", "20GB", "1TB"."""
    size = _scaled(text, SIZE_UNITS)
    if not LEAST_SIZE <= size <= MOST_SIZE:
        raise ValueError(f"{text} is not a size; give 1MB or more, such as 500MB or 20GB")
    return int(size)


def read_switch(text: str) -> bool:
    """Read yes or no."""
    if text.lower() not in ("yes", "no", "true", "false", "on", "off", "1", "0"):
        raise ValueError(f"{text} is neither yes nor no; write one of them")
    return text.lower() in ("yes", "true", "on", "1")


def read_minutes(text: str) -> float:
    """Read a time, from "10min", "90s" or "2h"; return seconds."""
    match = re.fullmatch(r"(\d{1,6})\s*(s|min|m|h)", text.strip())
    seconds = int(match[1]) * {"s": 1, "m": 60, "min": 60, "h": 3600}[match[2]] if match else 0
    if not 10 <= seconds <= 86_400:
        raise ValueError(f"{text} is not a time; write a time from 10s to 24h, such as 10min")
    return float(seconds)


def read_addresses(text: str) -> tuple[str, ...]:
    """Read TCP multiaddrs, from multiaddrs or HOST:PORT, with commas between them."""
    written = tuple(part.strip() for part in text.split(","))
    if len(written) > MOST_ADDRESSES:
        raise ValueError(f"at most {MOST_ADDRESSES} addresses are announced")
    addresses = tuple(multiaddr_of(each, USUAL_PORT) for each in written)
    if any(address.count("/") != 4 for address in addresses):
        raise ValueError(f"{text} contains more than an address; write HOST:PORT alone")
    return addresses


def read_owners(text: str) -> tuple[str, ...]:
    """Read peer IDs, with commas between them."""
    owners = tuple(part.strip() for part in text.split(","))
    if len(owners) > MOST_ADDRESSES:
        raise ValueError(f"at most {MOST_ADDRESSES} owners are allowed")
    for owner in owners:
        if not PEER_ID.fullmatch(owner):
            raise ValueError(f"{owner or 'nothing'} is not a peer ID; `peer id` shows yours on the computer you watch from")
    return owners


def read_folders(text: str) -> tuple[str, ...]:
    """Read paths of folders, with colons between them; a path may begin with ~."""
    folders = tuple(read_path("a folder")(part) for part in text.split(":") if part)
    if not 1 <= len(folders) <= MOST_ADDRESSES:
        raise ValueError(f"1 to {MOST_ADDRESSES} folders, with colons between them")
    return folders


def read_path(what: str) -> Callable[[str], str]:
    """Return the reader of a path, which may begin with ~.  what: completes the sentence "name …"."""

    def read(text: str) -> str:
        if not text:
            raise ValueError(f"name {what}")
        return str(Path(os.path.expanduser(text)).absolute())

    return read


def read_trackers(text: str) -> tuple[str, ...]:
    """Read targets of trackers, with commas between them; `peer.tracking.trackers` opens them."""
    targets = tuple(part.strip() for part in text.split(","))
    for target in targets:
        kind, _, place = target.partition(":")
        if kind not in ("tensorboard", "wandb", "mlflow") or not place:
            raise ValueError(
                f"{target or 'nothing'} is not a tracker; write tensorboard:FOLDER, wandb:PROJECT or mlflow:URI"
            )
    return targets


def read_data(text: str) -> str:
    """Read the path of data, which may begin with ~, or the name of a data set of Hugging Face (hf:owner/name)."""
    return text if text.startswith("hf:") else read_path("a folder or a file")(text)


def read_networks(text: str) -> tuple[str, ...]:
    """Read IP networks, with commas between them."""
    try:
        return tuple(str(ipaddress.ip_network(part.strip())) for part in text.split(","))
    except ValueError as error:
        raise ValueError(
            f"{text} is not a list of networks; write networks such as 192.168.1.0/24, with commas between them"
        ) from error


def read_share(text: str) -> float:
    """Read a percentage, from "25%" or "100"."""
    try:
        share = float(text.removesuffix("%"))
    except ValueError as error:
        raise ValueError(f"{text} is not a percentage; write a number such as 25%") from error
    if not 0 <= share <= 100:
        raise ValueError(f"{text} is not a percentage from 0% to 100%; correct the number")
    return share / 100


def read_load(text: str) -> float:
    """Read a share of the time from "60%" or "60"; return it as a number up to 1."""
    share = read_share(text)
    if share < LEAST_LOAD:
        raise ValueError(f"{text} is too little; write {show_share(LEAST_LOAD)} or more, or pause the peer")
    return share


def show_share(share: float) -> str:
    """Return a share as a percentage."""
    return f"{100 * share:g}%"


@dataclass(frozen=True)
class Notation:
    """Notation of a setting's values.

    read: text to value; raises ValueError with a sentence.  show: value to text.  placeholder: word for the value in the
    flag's help; None for the setting's name.  choices: all permitted values; None for any value that `read` accepts.
    """

    read: Callable[[str], Any]
    show: Callable[[Any], str] = str
    placeholder: str | None = None
    choices: tuple[str, ...] | None = None


def in_unit(unit: str, least: int, most: int, what: str, placeholder: str) -> Notation:
    """Return the notation of an amount from `least` to `most` in this unit.  what: the amount, with an example."""
    noun, _, example = what.partition(" ")

    def read(text: str) -> float:
        try:
            value = float(text.upper().removesuffix(unit))
        except ValueError:
            value = 0.0
        if not least <= value <= most:
            raise ValueError(f"{text} is not a {noun}; give one as {example}, from {least}{unit} to {most}{unit}")
        return value

    return Notation(read, lambda value: f"{value:g}{unit}", placeholder)


def or_word(notation: Notation, word: str, meaning: Any) -> Notation:
    """Return a notation that also accepts a word for this value."""
    return Notation(
        lambda text: meaning if text == word else notation.read(text),
        lambda value: word if value == meaning else notation.show(value),
        f"{notation.placeholder}|{word}",
    )


def one_of(*choices: str) -> Notation:
    """Return the notation of a setting that must be one of these words."""

    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text} is not one of {', '.join(choices)}")
        return text

    return Notation(read, choices=choices)


def show_size(size: int) -> str:
    """Format a size so that `read_size` accepts it."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9)):
        if size >= factor:
            return f"{size / factor:g}{unit}"
    return f"{size / 10**6:g}MB"


def show_switch(on: bool) -> str:
    """Format a switch so that `read_switch` accepts it."""
    return "yes" if on else "no"


def _scaled(text: str, units: dict[str, float] | dict[str, int]) -> float:
    number = text.lower().rstrip("abcdefghijklmnopqrstuvwxyz")
    try:
        return float(number) * units[text.lower()[len(number) :]]
    except (ValueError, KeyError):
        return 0.0


SIZE = Notation(read_size, show_size, "SIZE")
RATE = Notation(read_rate, lambda rate: f"{rate / 125e3:g}Mbit", "RATE")
RATE_OR_OFF = or_word(RATE, "off", 0.0)
SWITCH = Notation(read_switch, show_switch, "yes|no")
COUNT = Notation(read_count, placeholder="N")
SHARE_OR_AUTO = or_word(Notation(read_share, show_share, "PERCENT"), "auto", None)
LOAD = Notation(read_load, show_share, "PERCENT")
TEMPERATURE = in_unit("C", 30, 120, "temperature 85C", "CELSIUS")
POWER = in_unit("W", 10, 2000, "power 200W", "WATTS")
TIME = Notation(read_minutes, lambda seconds: f"{seconds / 60:g}min" if seconds % 60 == 0 else f"{seconds:g}s", "TIME")


# ------------------------------------------------------------------------------------------------------------------------
# External addresses of a rented machine, from its provider's environment variables.
#
# RunPod: RUNPOD_PUBLIC_IP, and RUNPOD_TCP_PORT_4001 for the external port that leads to 4001 here.  Vast.ai:
# PUBLIC_IPADDR and VAST_TCP_PORT_4001 likewise.


PROVIDERS = (("RUNPOD_PUBLIC_IP", "RUNPOD_TCP_PORT_"), ("PUBLIC_IPADDR", "VAST_TCP_PORT_"))


def mapped_addresses(environment: Mapping[str, str], port: int) -> tuple[str, ...]:
    """Return the multiaddrs that lead to `port` of this machine; none if no provider's variables give a valid address."""
    found: list[str] = []
    for address, prefix in PROVIDERS:
        ip, outside = environment.get(address, "").strip(), environment.get(f"{prefix}{port}", "").strip()
        with contextlib.suppress(ValueError):
            found += read_addresses(f"/{'ip6' if ':' in ip else 'ip4'}/{ip}/tcp/{outside}")
    return tuple(found)
