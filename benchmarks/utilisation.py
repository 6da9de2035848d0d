"""Share of the time in which trainers compute, in plain and in overlapped rounds, with the whole protocol in virtual time.

Peers of the real protocol run on a simulated network (`tests.simulation`).  Their trainers compute nothing, but each step
takes a given time; encoding and merging take no time.  Utilisation is the time of the steps of the counted contributions,
over the time from the contribution before them to the last of them.

The settings are those of INTELLECT-1 (Prime Intellect 2024: ten billion parameters, H = 100, int8, 38 minutes of compute
beside a median all-reduce of 103, 382 or 469 s), and members with one GPU and a line of 25 Mbit/s each that train a billion
parameters, 65 536 tokens a step at 10 000 tokens/s.  The model is small, and its lines are so narrow that an ideal exchange
of its state in int8 takes as long as an exchange of the real model's state.  All times except latencies are a tenth of the
real ones, so round trips of the agreement, which do not grow with the model, weigh ten times as much as in reality.  Members
are equally fast, except in one setting.  A loss affects whole requests, answers and gossip, because TCP repeats lost
packets.

"plain" is one fragment in int8, for whose result the members wait.  "overlapped" is four fragments in int4; meanwhile the
members train for the next round, at most all its steps.  The first pass does not count: it begins without early leases.

    python -m benchmarks.utilisation [--json]

The bar: overlapped rounds have more than 99 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kernels.codecs.ladder import INT8
from protocol.events.events import Event, ReadySent
from protocol.formats.model import ModelConfig
from protocol.run.manifest import RoundSection, RunManifest, SignedManifest, sign
from protocol.run.sections import DataSection
from protocol.wire.identity import Identity, PeerId
from tests.simulation.runs import simulate
from tests.simulation.seat import Seat
from tests.simulation.wire import Weather
from tests.simulation.world import World

MEMBERS = 4
INNER_STEPS = 100
SCALE = 10
"""Times of the settings over the simulated ones."""
FRAGMENTS = 4
FIRST_PASSES, PASSES = 1, 4
"""Passes over the whole state before the counted ones, and counted ones."""
BAR = 0.99
BYTES_PER_MBIT = 125_000


@dataclass(frozen=True)
class Setting:
    """Times of the real run in seconds.  compute_s: for H inner steps.  exchange_s: for exchanging the whole state in int8.

    published: the utilisation that was reported; None if there is no such report.  spread: the share of a step's time by
    which the slowest member's steps are longer than the fastest one's; the steps of the others are spaced evenly between.
    """

    name: str
    compute_s: float
    exchange_s: float
    latency_s: float
    loss: float = 0.0
    published: float | None = None
    spread: float = 0.0

    def step_s(self, number: int) -> float:
        """Return the virtual seconds of a step of a member."""
        return self.compute_s / SCALE / INNER_STEPS * (1 + self.spread * number / (MEMBERS - 1))


def exchange_s(parameters: float, mbit: float) -> float:
    """Return the seconds of an ideal exchange in int8 on equal lines."""
    return ideal_bytes(parameters) / (mbit * BYTES_PER_MBIT)


def ideal_bytes(parameters: float) -> float:
    """Return the bytes that a member sends, and receives, in an exchange in int8: parts, and then averages."""
    return 2 * (MEMBERS - 1) / MEMBERS * parameters * (1 + 4 / INT8.block)


SETTINGS = (
    Setting("INTELLECT-1, USA", 2280, 103, 0.02, published=0.957),
    Setting("INTELLECT-1, transatlantic", 2280, 382, 0.045, published=0.856),
    Setting("INTELLECT-1, worldwide", 2280, 469, 0.1, published=0.83),
    Setting("INTELLECT-1, worldwide, members up to 5 % slower", 2280, 469, 0.1, spread=0.05),
    Setting("1B, one GPU, 25 Mbit/s, 40 ms, 0.1 % lost", INNER_STEPS * 65_536 / 10_000, exchange_s(1e9, 25), 0.04, 0.001),
)


@lru_cache(maxsize=2)
def run_of(*, overlapped: bool) -> SignedManifest:
    """Return a run of half a million parameters, in chunks that are large enough to wait for their turn on a line."""
    organiser, fragments = Identity.from_seed(b"\x2a" * 32), FRAGMENTS if overlapped else 1
    return sign(
        organiser,
        RunManifest(
            name="utilisation",
            organiser=organiser.peer_id,
            founders="anyone",
            seed=1,
            model=ModelConfig(vocab=256, dim=96, layers=4, heads=2, kv_heads=2, ffn=256),
            data=DataSection(sequence_length=8, sequences_per_step=1),
            rounds=RoundSection(inner_steps=INNER_STEPS, delay=INNER_STEPS // fragments if overlapped else 0),
            fragments=fragments,
            codec="int4" if overlapped else "int8",
            chunk_parameters=8192,
            checkpoint_interval=1000,
            checkpoint_chunk_bytes=1 << 20,
            total_tokens=10**9,
        ),
    )


@dataclass(frozen=True)
class Row:
    """One line of the table.  round_s: a virtual time.  done: the share of a round's steps that the members did."""

    setting: Setting
    overlapped: bool
    utilisation: float
    round_s: float
    done: float

    def as_json(self) -> dict[str, Any]:
        return {
            "setting": self.setting.name,
            "overlapped": self.overlapped,
            "utilisation": round(self.utilisation, 6),
            "published": self.setting.published,
            "round_s": self.round_s,
            "steps_done": self.done,
        }


@dataclass(frozen=True)
class Contributed:
    """A contribution of a member.  at_s: the virtual time when it was announced.  steps: the inner steps done for it."""

    at_s: float
    steps: int


class Contributions:
    """Contributions of all members, by round."""

    def __init__(self, world: World) -> None:
        self.of: dict[PeerId, dict[int, Contributed]] = {seat.peer: {} for seat in world.seats}
        self._world = world
        world.listeners.append(self._on_event)

    def _on_event(self, seat: Seat, event: Event) -> None:
        if isinstance(event, ReadySent):
            self.of[seat.peer][event.round] = Contributed(self._world.now(), event.steps)


def busy_share(contributions: Mapping[int, Contributed], rounds: range, step_s: float) -> float:
    """Return the share of time, from the contribution before `rounds` to the last one, in which a member computed."""
    steps = sum(contributions[round].steps for round in rounds)
    return steps * step_s / (contributions[rounds[-1]].at_s - contributions[rounds[0] - 1].at_s)


def measure(setting: Setting, *, overlapped: bool) -> Row:
    """Run one setting, and return its line.  Raises AssertionError if the simulated swarm makes no progress."""
    rows, signed = list[Row](), run_of(overlapped=overlapped)
    manifest = signed.manifest
    first = FIRST_PASSES * manifest.fragments
    rounds = range(first, first + PASSES * manifest.fragments)

    async def scenario(world: World) -> None:
        contributions = Contributions(world)
        for seat in world.seats:
            seat.step_s = setting.step_s(seat.number)
            world.start(seat)
        within_s = 4 * rounds.stop * (setting.compute_s + setting.exchange_s) / SCALE
        await world.until_round(rounds.stop, within_s)
        shares = [busy_share(contributions.of[seat.peer], rounds, seat.step_s) for seat in world.seats]
        everything = [of[round] for of in contributions.of.values() for round in rounds]
        seconds = statistics.fmean(of[rounds[-1]].at_s - of[first - 1].at_s for of in contributions.of.values())
        done = sum(each.steps for each in everything) / (len(everything) * manifest.round_steps)
        rows.append(Row(setting, overlapped, statistics.fmean(shares), seconds / len(rounds), done))

    rate = ideal_bytes(manifest.parameters) / (setting.exchange_s / SCALE)
    weather = Weather(setting.latency_s, 0.1 * setting.latency_s, rate, gossip_loss=setting.loss, request_loss=setting.loss)
    run = simulate(MEMBERS, scenario, 1, weather, signed)
    assert rows, run.failure
    return rows[0]


def print_row(row: Row) -> None:
    published = f"{100 * row.setting.published:.1f} %" if row.setting.published is not None and not row.overlapped else ""
    print(
        f"| {row.setting.name} | {'overlapped' if row.overlapped else 'plain'} | {100 * row.utilisation:.2f} % "
        f"| {published} | {row.round_s:.2f} | {100 * row.done:.1f} % |",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.utilisation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args(arguments)
    print("| setting | rounds | utilisation | published | a round, virtual s | steps done |")
    print("|---|---|---|---|---|---|")
    rows = []
    for setting in SETTINGS:
        for overlapped in (False, True):
            rows.append(measure(setting, overlapped=overlapped))
            print_row(rows[-1])
    if options.json:
        print(json.dumps({"rows": [row.as_json() for row in rows]}))
    return 0 if all(row.utilisation > BAR for row in rows if row.overlapped) else 1


if __name__ == "__main__":
    sys.exit(main())
