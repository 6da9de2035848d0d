"""Tokens until the betting test finds a cheat, and its alarms against honest peers.

`python -m benchmarks.evidence --folder DIR [--json]` reads what `python -m benchmarks.evidence_peers --folder DIR` measured.
For each family it takes the rates of the worst honest peer, between peers of either precision and between peers of one.
Streams are resampled from whole rollouts, and come in batches of `BATCH_TOKENS`; a cheat's stream is looked at after each
block of 32 tokens, an honest one after each batch, as a validator does.  Honest streams mix all honest peers, and validators
of both precisions.  The table has the tokens until the alarm (median and 99th percentile), and the kind of deviation that
finds the cheat alone.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.evidence_peers import PRECISIONS, Measurements
from protocol.formats.bets import BETS, KINDS
from protocol.formats.rl import RlConfig
from protocol.rollouts.betting import POOREST, Wealth
from trainer.rl.betting import HonestBounds

BATCH_TOKENS = 4096
BLOCK = 32
CHEAT_TOKENS, HONEST_TOKENS = 50_000, 200_000
Blocks = NDArray[np.float64]
"""Growth in each block of one rollout: (blocks, `BETS`)."""


@dataclass(frozen=True)
class Judged:
    """Rollouts of a peer as a validator measured them."""

    family: str
    length: int
    name: str
    precision: str
    validator: str
    found: Measurements

    @property
    def is_honest(self) -> bool:
        return self.name.startswith("honest")

    @property
    def is_same(self) -> bool:
        return self.precision == self.validator

    @property
    def rates(self) -> tuple[float, float, float]:
        """Shortfall and exchanges per unit of density, and mean difference of mantissas."""
        found = self.found
        density = found.densities.sum()
        return (
            float(found.shortfalls.clip(max=1).sum() / density),
            float((found.shortfalls > 0).sum() / density),
            float(found.mantissas.mean()),
        )

    def blocks(self, bounds: HonestBounds) -> list[Blocks]:
        """Return the growth of each rollout, in blocks of `BLOCK` tokens with one chunk each."""
        found, rollouts = self.found, []
        tokens, chunks = (np.concatenate([[0], np.cumsum(each)]) for each in (found.lengths, found.chunks))
        for at in range(len(found.lengths)):
            short, dense = (each[tokens[at] : tokens[at + 1]] for each in (found.shortfalls, found.densities))
            means = found.mantissas[chunks[at] : chunks[at + 1]]
            grown = []
            for start, mean in zip(range(0, len(short), BLOCK), means, strict=False):
                block = slice(start, start + BLOCK)
                grown.append(bounds.growth(torch.from_numpy(short[block]), torch.from_numpy(dense[block]), [mean]))
            rollouts.append(np.array(grown))
        return rollouts


def loaded(folder: Path) -> Iterator[Judged]:
    """Yield the measurements in a folder."""
    for path in sorted(folder.glob("*.npz")):
        family, length, name, precision, validator = path.stem.split("+")
        found = Measurements(**np.load(path))
        yield Judged(family, int(length), name.replace("_", " "), precision, validator, found)


def calibrated(judged: Sequence[Judged]) -> RlConfig:
    """Return the settings with the rates of the worst honest peers."""
    honest = [each for each in judged if each.is_honest]
    mixed, same = (
        [max(rates) for rates in zip(*(each.rates for each in honest if each.is_same or not is_same), strict=True)]
        for is_same in (False, True)
    )
    names = ("shortfall_rate", "exchange_rate", "mantissa_rate")
    fields = dict(zip(names, mixed, strict=True)) | {f"same_{name}": rate for name, rate in zip(names, same, strict=True)}
    return RlConfig().changed(**fields)


def tokens_to_alarm(rollouts: Sequence[Blocks], random: np.random.Generator, only: int | None = None) -> float:
    """Return the tokens of a resampled stream until the alarm; infinity after `CHEAT_TOKENS`.

    only: the kind of deviation whose bets count; all kinds unless given.
    """
    wealth, tokens, in_batch, grown = Wealth(), 0, 0, np.zeros(BETS)
    others = [] if only is None else others_than(only)
    while tokens < CHEAT_TOKENS:
        for block in rollouts[int(random.integers(len(rollouts)))]:
            tokens, in_batch, grown = tokens + BLOCK, in_batch + BLOCK, grown + block
            grown[others] = 2 * POOREST
            now = wealth.after(tuple(grown.tolist()))
            if now.reason:
                return tokens
            if in_batch >= BATCH_TOKENS:
                wealth, in_batch, grown = now, 0, np.zeros(BETS)
    return math.inf


def others_than(kind: int) -> list[int]:
    """Return the places of the bets of all other kinds."""
    ends = [*accumulate(count for _, count in KINDS)]
    return [bet for bet in range(BETS) if not ends[kind] - KINDS[kind][1] <= bet < ends[kind]]


def most_wealth(rollouts: Sequence[NDArray[np.float64]], lengths: Sequence[int], random: np.random.Generator) -> float:
    """Return the largest logarithm of the wealth in an honest stream of `HONEST_TOKENS`.

    rollouts: growth (`BETS`) of each whole rollout.
    """
    wealth, tokens, in_batch, grown, most = Wealth(), 0, 0, np.zeros(BETS), -math.inf
    while tokens < HONEST_TOKENS:
        at = int(random.integers(len(rollouts)))
        tokens, in_batch, grown = tokens + lengths[at], in_batch + lengths[at], grown + rollouts[at]
        if in_batch >= BATCH_TOKENS:
            wealth, in_batch, grown = wealth.after(tuple(grown.tolist())), 0, np.zeros(BETS)
            most = max(most, wealth.log)
    return most


def rows(judged: Sequence[Judged], streams: int, draws: int) -> Iterator[dict[str, Any]]:
    """Yield the rates, the honest streams and each cheat of one family and length."""
    rl, random = calibrated(judged), np.random.default_rng(0)
    bounds = {same: HonestBounds.of(rl, same_precision=same) for same in (False, True)}
    fields = ("shortfall_rate", "exchange_rate", "mantissa_rate")
    yield {"rates": {name: getattr(rl, name) for name in (*fields, *(f"same_{name}" for name in fields))}}
    for scope in ("mixed", *PRECISIONS):
        honest = [
            each for each in judged if each.is_honest and (scope == "mixed" or each.precision == each.validator == scope)
        ]
        grown, lengths = [], list[int]()
        for each in honest:
            grown += [blocks.sum(axis=0) for blocks in each.blocks(bounds[each.is_same])]
            lengths += each.found.lengths.tolist()
        highest = [most_wealth(grown, lengths, random) for _ in range(streams)]
        alarms = sum(each >= math.log(1e4) for each in highest)
        yield {"honest": scope, "streams": streams, "alarms": alarms, "highest_log_wealth": max(highest)}
    for each in judged:
        if each.is_honest:
            continue
        rollouts = each.blocks(bounds[each.is_same])
        times = [tokens_to_alarm(rollouts, random) for _ in range(draws)]
        alone = {
            KINDS[kind][0]: quantile([tokens_to_alarm(rollouts, random, kind) for _ in range(max(5, draws // 10))], 0.5)
            for kind in range(len(KINDS))
        }
        yield {
            "cheat": each.name,
            "precision": each.precision,
            "validator": each.validator,
            "tokens_median": quantile(times, 0.5),
            "tokens_99": quantile(times, 0.99),
            "alone_median": alone,
        }


def quantile(times: Sequence[float], share: float) -> int | None:
    """Return a quantile of the tokens until an alarm; None if there is no alarm within `CHEAT_TOKENS`."""
    found = float(np.quantile(times, share, method="higher"))
    return int(found) if math.isfinite(found) else None


def shown(row: Mapping[str, Any]) -> str:
    """Return a line for people."""
    head = f"{row['family']:6} {row['length']:5}"
    if "rates" in row:
        return f"{head} " + ", ".join(f"{name} = {rate:.3g}" for name, rate in row["rates"].items())
    if "honest" in row:
        highest = math.exp(row["highest_log_wealth"])
        alarms = f"{row['alarms']} alarms in {row['streams']} streams"
        return f"{head} honest, {row['honest']:9} {alarms}; wealth at most {highest:.3g}"
    alone = ", ".join(f"{name} {tokens or 'never'}" for name, tokens in row["alone_median"].items())
    pair, times = f"{row['precision']} at {row['validator']}", (row["tokens_median"], row["tokens_99"])
    median, late = (each or "never" for each in times)
    return f"{head} {row['cheat']:22} {pair:22} {median:>6} {late:>6}   alone: {alone}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="measurements of `benchmarks.evidence_peers`")
    parser.add_argument("--streams", type=int, default=300, metavar="N", help="honest streams of 200,000 tokens")
    parser.add_argument("--draws", type=int, default=100, metavar="N", help="streams of each cheat")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    parts: dict[tuple[str, int], list[Judged]] = {}
    for each in loaded(arguments.folder):
        parts.setdefault((each.family, each.length), []).append(each)
    for (family, length), judged in parts.items():
        for row in rows(judged, arguments.streams, arguments.draws):
            row = {"family": family, "length": length, **row}
            print(json.dumps(row) if arguments.json else shown(row), flush=True)


if __name__ == "__main__":
    main()
