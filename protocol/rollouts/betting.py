"""Wealth of the betting test against one rollout peer's honesty, from the growth that our trainer process reports.

`trainer.rl.betting` describes the bets. Each of them is played with many beginnings: before our n-th check of the peer, the
share 1 / (n (n + 1)) of its capital is put in. These shares add up to 1. So a peer that was honest for n checks before it
begins to cheat, or that alternates, has lost only the capital put in earlier: an alarm after n checks needs n (n + 1) times
the growth of an alarm from the start, which is 2 ln n more in the logarithm. The mean over kinds of deviation, over their
stakes and over the beginnings is one test: the wealth of an honest peer ever reaches `ALARM` with a probability of at most
1 / `ALARM`, over any number of checks between two restarts (Ville 1939). A plain floor under the wealth would find
alternating peers as well, but its guarantee would be a false alarm in `ALARM` checks on average, for each peer, for ever.

All precisions share one wealth: each growth was computed with the bounds for the stated precision and ours, so a peer gains
nothing by changing the precision that it states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, log
from pathlib import Path
from typing import Self

from protocol.disk import Disk, read_guarded, write_guarded
from protocol.formats.bets import BETS, KINDS, Growth, is_growth
from protocol.wire import canonical
from protocol.wire.identity import PeerId

ALARM = 1e4
"""Wealth at which a peer is set aside; the reciprocal bounds the probability for an honest peer."""
SUSPICIOUS = 10.0
"""Wealth at which everything of a peer is checked."""
POOREST = -1e6
"""Least logarithm of a bet's wealth; the next beginning replaces it anyway."""

_WEIGHTS = [log(1 / (len(KINDS) * count)) for _, count in KINDS for _ in range(count)]
_ENDS = [*accumulate(count for _, count in KINDS)]


@dataclass(frozen=True)
class Wealth:
    """Wealth of all bets against one peer.

    checks: number of our checks of the peer's batches.  logs: logarithm of each bet's wealth.
    """

    checks: int = 0
    logs: tuple[float, ...] = (POOREST,) * BETS

    def after(self, growth: Growth) -> Self:
        """Return the wealth after one more check."""
        assert is_growth(growth), "a finite number for each bet"
        checks = self.checks + 1
        share = -log(checks * (checks + 1))
        logs = (max(POOREST, _log_sum([before, share]) + each) for before, each in zip(self.logs, growth, strict=True))
        return type(self)(checks, tuple(logs))

    @property
    def log(self) -> float:
        """Logarithm of the whole wealth."""
        return _log_sum([weight + each for weight, each in zip(_WEIGHTS, self.logs, strict=True)])

    @property
    def reason(self) -> str:
        """Reason for an alarm, as a phrase; empty below `ALARM`."""
        if self.log < log(ALARM):
            return ""
        parts = [self.logs[end - count : end] for end, (_, count) in zip(_ENDS, KINDS, strict=True)]
        most = max(range(len(KINDS)), key=lambda kind: _log_sum(parts[kind]) - log(len(parts[kind])))
        return f"its {KINDS[most][0]} in {self.checks} checked batches add up to more than rounding explains"


def _log_sum(logs: Sequence[float]) -> float:
    """Return the logarithm of the sum of numbers given by their logarithms."""
    most = max(logs)
    return most + log(sum(exp(each - most) for each in logs))


# ------------------------------------------------------------------------------------------------------------------------


MOST_CHECKS = 1 << 40
"""Bound on the checks in a file."""
MOST_KEPT = 256
"""Most peers whose wealth is on disk: those with the highest wealth."""


class WealthFile:
    """File of the wealth against peers, for a restart of this peer."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk, self._path = disk, path

    def save(self, wealth: Mapping[PeerId, Wealth]) -> None:
        """Replace the file with the highest wealth of these, above the wealth at the beginning.  Raises `StoreFailed`."""
        kept = sorted(((peer, each) for peer, each in wealth.items() if each.log > 0), key=lambda pair: -pair[1].log)
        fields = {peer: [each.checks, *each.logs] for peer, each in kept[:MOST_KEPT]}
        write_guarded(self._disk, self._path, canonical.encode(fields))

    def load(self) -> dict[PeerId, Wealth]:
        """Return the wealth in the file; none if the file is missing or damaged.

        Raises ValueError for data of another version, and `StoreFailed`.
        """
        data = read_guarded(self._disk, self._path)
        fields = canonical.decode(data, max_bytes=len(data)) if data is not None else {}
        if not isinstance(fields, dict):
            raise ValueError("the file is not a map")
        return {PeerId(peer): _decoded(values) for peer, values in fields.items()}


def _decoded(values: object) -> Wealth:
    match values:
        case [int(checks), *logs] if type(checks) is int and 0 < checks < MOST_CHECKS:
            numbers = tuple(each for each in logs if isinstance(each, float))
            if len(logs) == len(numbers) and is_growth(numbers):
                return Wealth(checks, numbers)
    raise ValueError("the wealth against a peer has another form")
