"""Notation of settings: readers from text to value, and the way back.

A reader raises ValueError with a sentence that names the mistake and a correct form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from peer.addresses import multiaddr_of

RATE_UNITS = {"": 125e3, "kbit": 125.0, "mbit": 125e3, "gbit": 125e6, "kb": 1e3, "mb": 1e6, "gb": 1e9}
SIZE_UNITS = {"mb": 10**6, "gb": 10**9, "tb": 10**12}
LEAST_RATE, MOST_RATE = 16e3, 1e12
LEAST_SIZE, MOST_SIZE = 10**6, 10**16
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


def read_port(text: str) -> int:
    """Read a TCP port; 0 for a free one."""
    if not _is_number(text, 5) or int(text) > 65535:
        raise ValueError(f"{text} is no port; give a number from 1 to 65535, or 0 for a free one")
    return int(text)


def read_metrics_port(text: str) -> int:
    """Read a TCP port other than 0: the collector has to know it."""
    if not _is_number(text, 5) or not 0 < int(text) < 65536:
        raise ValueError(f"{text} is no port; give a number from 1 to 65535")
    return int(text)


def read_count(text: str) -> int:
    """Read a whole number from 1."""
    if not _is_number(text, 10) or not 1 <= int(text) <= 1 << 30:
        raise ValueError(f"{text} is no count; give a whole number from 1")
    return int(text)


def read_rate(text: str) -> float:
    """Read a rate in bytes a second, from Mbit/s, bits a second (kbit, mbit, gbit) or bytes a second (kB, MB, GB)."""
    rate = _scaled(text, RATE_UNITS)
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise ValueError(f"{text} is no rate; give 16kB or more, as 20Mbit (bits) or 1.5MB (bytes) a second")
    return rate


def read_rate_or_off(text: str) -> float:
    """Read a rate, or 0 for "off"."""
    return 0.0 if text == "off" else read_rate(text)


def read_size(text: str) -> int:
    """Read a size in bytes, from "500MB", "20GB", "1TB"."""
    size = _scaled(text, SIZE_UNITS)
    if not LEAST_SIZE <= size <= MOST_SIZE:
        raise ValueError(f"{text} is no size; give 1MB or more, as 500MB or 20GB")
    return int(size)


def read_switch(text: str) -> bool:
    """Read yes or no."""
    if text.lower() not in ("yes", "no", "true", "false", "on", "off", "1", "0"):
        raise ValueError(f"{text} is neither yes nor no")
    return text.lower() in ("yes", "true", "on", "1")


def read_temperature(text: str) -> float:
    """Read a temperature in Celsius."""
    return _between(text, "C", 30, 120, "temperature", "85C, from 30C to 120C")


def read_power(text: str) -> float:
    """Read a power in watts."""
    return _between(text, "W", 10, 2000, "power", "200W, from 10W to 2000W")


def read_addresses(text: str) -> tuple[str, ...]:
    """Read TCP multiaddrs, from multiaddrs or HOST:PORT, with commas between them."""
    written = tuple(part.strip() for part in text.split(","))
    if len(written) > MOST_ADDRESSES:
        raise ValueError(f"at most {MOST_ADDRESSES} addresses are announced")
    addresses = tuple(multiaddr_of(each, USUAL_PORT) for each in written)
    if any(address.count("/") != 4 for address in addresses):
        raise ValueError(f"{text} says more than where this computer is reached; write HOST:PORT alone")
    return addresses


def read_owners(text: str) -> tuple[str, ...]:
    """Read peer IDs, with commas between them."""
    owners = tuple(part.strip() for part in text.split(","))
    if len(owners) > MOST_ADDRESSES:
        raise ValueError(f"at most {MOST_ADDRESSES} owners")
    for owner in owners:
        if not PEER_ID.fullmatch(owner):
            raise ValueError(f"{owner or 'nothing'} is no peer ID; `peer id` shows yours on the computer you watch from")
    return owners


def one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """Return a reader of these words alone."""

    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text} is none of {', '.join(choices)}")
        return text

    return read


def show_rate(rate: float) -> str:
    """Format a rate as `read_rate` takes it."""
    return f"{rate / 125e3:g}Mbit"


def show_rate_or_off(rate: float) -> str:
    """Format a rate as `read_rate_or_off` takes it."""
    return show_rate(rate) if rate else "off"


def show_size(size: int) -> str:
    """Format a size as `read_size` takes it."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9)):
        if size >= factor:
            return f"{size / factor:g}{unit}"
    return f"{size / 10**6:g}MB"


def show_temperature(celsius: float) -> str:
    """Format a temperature as `read_temperature` takes it."""
    return f"{celsius:g}C"


def show_power(watts: float) -> str:
    """Format a power as `read_power` takes it."""
    return f"{watts:g}W"


def show_switch(on: bool) -> str:
    """Format a switch as `read_switch` takes it."""
    return "yes" if on else "no"


def _is_number(text: str, digits: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= digits


def _between(text: str, unit: str, least: float, most: float, what: str, example: str) -> float:
    try:
        value = float(text.upper().removesuffix(unit))
    except ValueError:
        value = 0.0
    if not least <= value <= most:
        raise ValueError(f"{text} is no {what}; give one as {example}")
    return value


def _scaled(text: str, units: dict[str, float] | dict[str, int]) -> float:
    number = text.lower().rstrip("abcdefghijklmnopqrstuvwxyz")
    try:
        return float(number) * units[text.lower()[len(number) :]]
    except (ValueError, KeyError):
        return 0.0
