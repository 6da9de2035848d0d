"""Description of the peers of a planned run: groups of peers, from options and from a TOML file.

A quantity is one value, or a range such as "2000..20000".  The peers of a group are spread evenly over the logarithm of the
range, both ends included, so the same description always gives the same peers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from peer.errors import ExitCode, PeerError
from peer.settings.values import read_rate
from protocol.run.toml_text import check_dots, decode_toml, parse_toml

Numbers = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

MOST_PEERS = 100_000
MOST_GROUPS = 64
MAX_FILE_BYTES = 1 << 20
FIELDS = ("count", "speed", "up", "down", "rtt", "online")
"""Fields of a group in a file."""


@dataclass(frozen=True)
class QuantityRange:
    """Range of a quantity, ends included; one value if they are equal."""

    low: float
    high: float

    def spread(self, count: int) -> Numbers:
        """Return `count` values, evenly spread over the logarithm of the range; a single one lies in the middle."""
        if count == 1 or self.low == self.high:
            return np.full(count, self.low if self.low == self.high else math.sqrt(self.low * self.high))
        return np.geomspace(self.low, self.high, count)


@dataclass(frozen=True)
class OnlineTime:
    """Mean seconds for which a peer is online, and then offline; offline_s = 0: always online."""

    online_s: float
    offline_s: float


@dataclass(frozen=True)
class PeerGroup:
    """Group of similar peers.  speed: tokens per second of a trainer.  up, down: bytes per second.  rtt: seconds."""

    count: int
    speed: QuantityRange
    up: QuantityRange
    down: QuantityRange
    rtt: QuantityRange
    online: OnlineTime


@dataclass(frozen=True)
class PlannedPeers:
    """Peers of a planned run, one value of each array per peer; the units are those of `PeerGroup`."""

    speed: Numbers
    up: Numbers
    down: Numbers
    rtt: Numbers
    online_s: Numbers
    offline_s: Numbers

    @classmethod
    def of(cls, groups: Sequence[PeerGroup], seed: int = 1) -> PlannedPeers:
        """Return the peers of all groups.  seed: seed of the draw that assigns lines and speeds within a group."""
        rng = np.random.default_rng(seed)

        def column(of: Callable[[PeerGroup], QuantityRange]) -> Numbers:
            return np.concatenate([rng.permutation(of(group).spread(group.count)) for group in groups])

        def constant(of: Callable[[PeerGroup], float]) -> Numbers:
            return np.concatenate([np.full(group.count, of(group)) for group in groups])

        return cls(
            speed=column(lambda group: group.speed),
            up=column(lambda group: group.up),
            down=column(lambda group: group.down),
            rtt=column(lambda group: group.rtt),
            online_s=constant(lambda group: group.online.online_s),
            offline_s=constant(lambda group: group.online.offline_s),
        )

    def take(self, which: Indices) -> PlannedPeers:
        """Return some of the peers, in this order."""
        return PlannedPeers(*(column[which] for column in vars(self).values()))

    def __len__(self) -> int:
        return len(self.speed)


# ------------------------------------------------------------------------------------------------------------------------
# Notation of the quantities.


_NUMBER = re.compile(r"([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)\s*([A-Za-z]*)", re.ASCII)
_SPEED_UNITS = {"": 1.0, "k": 1e3, "m": 1e6}
_RTT_UNITS = {"ms": 1e-3, "s": 1.0}
_TIME_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
LEAST_SPEED, MOST_SPEED = 0.01, 1e9
LEAST_RTT, MOST_RTT = 1e-5, 60.0
LEAST_TIME, MOST_TIME = 60.0, 366 * 86_400.0


def _scaled(text: str, units: Mapping[str, float], least: float, most: float, how: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    unit = match[2].lower() if match is not None else ""
    value = float(match[1]) * units[unit] if match is not None and unit in units else math.nan
    if not least <= value <= most:
        raise ValueError(f"{text[:40] or 'nothing'} is not {how}")
    return value


def read_speed(text: str) -> float:
    """Read tokens per second, from "5000" or "5k"."""
    return _scaled(
        text, _SPEED_UNITS, LEAST_SPEED, MOST_SPEED, "a speed; write tokens a second, such as 5000 or 2000..20000"
    )


def read_rtt(text: str) -> float:
    """Read a round-trip time in seconds, from "40ms" or "0.2s"."""
    return _scaled(text, _RTT_UNITS, LEAST_RTT, MOST_RTT, "a round-trip time; write a time such as 40ms or 20ms..200ms")


def read_range(text: str, read: Callable[[str], float]) -> QuantityRange:
    """Read one value or a range, "LOW..HIGH".  read: reads one value.  Raises ValueError with a sentence."""
    low, dots, high = text.partition("..")
    first = read(low)
    last = read(high) if dots else first
    if last < first:
        raise ValueError(f"{text[:60]} is a range that ends below its start; write the smaller value first")
    return QuantityRange(first, last)


def read_online(text: str) -> OnlineTime:
    """Read mean times online and offline, from "8h/16h", or "always".  Raises ValueError with a sentence."""
    how = "a pair of times; write the mean times online and offline, such as 8h/16h (s, m, h, d), or always"
    if text == "always":
        return OnlineTime(MOST_TIME, 0.0)
    online, _, offline = text.partition("/")
    return OnlineTime(*(_scaled(each, _TIME_UNITS, LEAST_TIME, MOST_TIME, how) for each in (online, offline)))


# ------------------------------------------------------------------------------------------------------------------------


def read_groups(peers: str, options: Mapping[str, str]) -> list[PeerGroup]:
    """Return the groups of peers.  Raises PeerError.

    peers: a number of peers, or the path of a TOML file with a section [[peers]] for each group.  options: text of each
    field except "count", for a number of peers and for fields that a group leaves out.
    """
    if peers.replace("_", "").isascii() and peers.replace("_", "").isdigit():
        return [_group({"count": int(peers.replace("_", "")[:16])}, options, "--peers")]
    path = Path(peers)
    if path.suffix != ".toml":
        raise PeerError(
            f"--peers {peers[:80]} is neither a number nor a TOML file; give a number such as 8, or the path of a TOML file",
            ExitCode.USAGE,
        )
    with path.open("rb") as file:
        raw = file.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise PeerError(f"{path.name} has more than {MAX_FILE_BYTES} bytes; describe fewer groups", ExitCode.INPUT)
    try:
        text = decode_toml(raw)
        check_dots(text)
        sections = parse_toml(text).get("peers")
    except ValueError as error:
        raise PeerError(f"{path.name}: not valid TOML: {str(error)[:200]}; correct that place", ExitCode.INPUT) from error
    if not isinstance(sections, list) or not 1 <= len(sections) <= MOST_GROUPS:
        raise PeerError(
            f"{path.name} has no groups of peers; write [[peers]] for each of 1 to {MOST_GROUPS} groups, and count, speed, "
            "up, down, rtt and online below it",
            ExitCode.INPUT,
        )
    groups = [_group(section, options, f"{path.name}, group {place}") for place, section in enumerate(sections, 1)]
    if sum(group.count for group in groups) > MOST_PEERS:
        raise PeerError(f"{path.name} describes more than {MOST_PEERS} peers; describe fewer", ExitCode.INPUT)
    return groups


def _group(section: Any, options: Mapping[str, str], where: str) -> PeerGroup:
    """Return a group.  section: its fields.  where: the place to name in errors."""
    fields = section if isinstance(section, dict) else {}
    if unknown := [str(name)[:40] for name in fields if name not in FIELDS]:
        raise PeerError(f"{where}: there is no field {unknown[0]}; a group has {', '.join(FIELDS)}", ExitCode.INPUT)
    count = fields.get("count", 1)
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST_PEERS:
        raise PeerError(f"{where}: the number of peers is a whole number from 1 to {MOST_PEERS}; correct it", ExitCode.INPUT)
    texts = {**options, **{name: str(value) for name, value in fields.items() if name != "count"}}
    try:
        return PeerGroup(
            count,
            read_range(texts["speed"], read_speed),
            read_range(texts["up"], read_rate),
            read_range(texts["down"], read_rate),
            read_range(texts["rtt"], read_rtt),
            read_online(texts["online"]),
        )
    except ValueError as error:
        raise PeerError(f"{where}: {error}", ExitCode.INPUT) from error
