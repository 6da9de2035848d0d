"""`python -m tests.attacks.liveness`: how many rounds a virtual hour has, with liars that delay and with strangers' keys.

Each row is a simulated world of its own; rounds are counted after the third one, over `--minutes` virtual minutes.  With
SIMULATED_FRAGMENTS=4 in the environment, members train for the next fragment while a round is agreed on.
"""

from __future__ import annotations

import argparse
import multiprocessing
from dataclasses import dataclass

from tests.attacks.attack import Attack, holding, simulated
from tests.attacks.cabals import SIZES, delay_most, say_anything, take_turns
from tests.attacks.crowds import thousand_mute, thousand_wait
from tests.attacks.exchanges import always_late, averages_a_little_late, averages_late, late_for_each


@dataclass(frozen=True)
class Row:
    """failure: which invariant broke, or that no round came; None when neither did."""

    name: str
    electors: int
    liars: int
    keys: int
    rounds_per_hour: float
    failure: str | None


def worlds() -> list[Attack]:
    """The rows of the table."""
    rows: list[Attack] = []
    for peers, most in SIZES:
        rows.append(Attack("nobody lies", "", holding(), peers, 0))
        for liars in sorted({1, most}):
            rows.append(Attack("give nothing", "", delay_most, peers, liars))
            rows.append(Attack("keep things back in turns", "", take_turns, peers, liars))
            rows.append(Attack("are always late", "", always_late, peers, liars))
            rows.append(Attack("are late for each", "", late_for_each, peers, liars))
            rows.append(Attack("average late", "", averages_late, peers, liars))
            rows.append(Attack("average a little late", "", averages_a_little_late, peers, liars))
            rows.append(Attack("say anything unprovable", "", say_anything(0.5, 1, careful=True), peers, liars))
    rows.append(Attack("strangers compute for ever", "", thousand_wait, 4, 0, 1000))
    rows.append(Attack("strangers are ready and mute", "", thousand_mute, 4, 0, 1000))
    return rows


def measure(job: tuple[int, float]) -> Row:
    """One row: its number, and the virtual minutes."""
    number, minutes = job
    world = worlds()[number]
    outcome = simulated(world, 60.0 * minutes)
    return Row(world.name, world.peers, world.liars, world.keys, outcome.measured.rounds * 60 / minutes, outcome.failure)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks.liveness", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="virtual minutes over which rounds are counted")
    parser.add_argument("--electors", type=int, nargs="+", metavar="N", help="only rows with these numbers of electors")
    parser.add_argument("--only", metavar="NAME", help="only rows whose name contains this, and those where nobody lies")
    arguments = parser.parse_args()
    print("electors  liars  strangers' keys  rounds an hour   share  liars or strangers")
    calm: dict[int, float] = {}
    jobs = [
        (number, arguments.minutes)
        for number, world in enumerate(worlds())
        if (arguments.electors is None or world.peers in arguments.electors)
        and (arguments.only is None or not (world.liars or world.keys) or arguments.only in world.name)
    ]
    with multiprocessing.get_context("spawn").Pool(multiprocessing.cpu_count()) as pool:
        for row in pool.imap(measure, jobs):
            undisturbed = calm.setdefault(row.electors, row.rounds_per_hour)
            share = row.rounds_per_hour / undisturbed if undisturbed else 0.0
            print(
                f"{row.electors:>8} {row.liars:>6} {row.keys:>16} {row.rounds_per_hour:>15.0f} {share:>7.2f}  {row.name}"
                + (f"  ({row.failure[:120]})" if row.failure else ""),
                flush=True,
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
