"""Predictions of `peer simulate` beside the whole protocol in virtual time: unequal members, and peers that come and go.

    python -m benchmarks.virtual_predictions [--only NAME ...] [--json]

Peers of the real protocol run on a simulated network (`tests.simulation`).  Their trainers compute nothing, but each step
takes as long as told.  Lines of the simulated network carry no headers and no gossip, so the model's exchanges are a little
too long.  Peers that come and go are online and offline for times drawn from exponential distributions, as in the model, but
not for the same ones.

The bar: no prediction is off by more than a tenth.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random

import numpy as np
import trio

from peer.planning.cost import RoundLoad, RoundRules, RoundSetting
from peer.planning.model import forecast_rounds
from peer.planning.swarm import PlannedPeers
from protocol.events.events import Event, RoundCommitted
from protocol.formats.model import ModelConfig
from protocol.run.manifest import RoundSection, RunManifest, SignedManifest, sign
from protocol.run.sections import DataSection
from protocol.wire.identity import Identity
from tests.simulation.runs import simulate
from tests.simulation.seat import Seat
from tests.simulation.wire import Weather
from tests.simulation.world import World

BAR = 0.1
STEPS, LATENCY_S = 10, 0.02
EXCHANGE_S = 3.0
"""Seconds of an ideal exchange of the whole state by four members."""
FIRST_ROUNDS = 4
"""Rounds that do not count."""


@dataclass(frozen=True)
class VirtualSetting:
    """One setting.  step_s: the seconds of each peer's step.

    online_s, offline_s: the mean times for which a peer is online and offline; offline_s = 0: always online.
    """

    name: str
    step_s: tuple[float, ...]
    rounds: int = 10
    fragments: int = 1
    delay: int = 0
    online_s: float = 1e9
    offline_s: float = 0.0

    @property
    def run(self) -> SignedManifest:
        """The run, of 1.2 M parameters, of which a round exchanges all or a fragment."""
        organiser = Identity.from_seed(b"\x2a" * 32)
        return sign(
            organiser,
            RunManifest(
                name="predictions",
                organiser=organiser.peer_id,
                founders="anyone",
                seed=1,
                model=ModelConfig(vocab=256, dim=160, layers=4, heads=2, kv_heads=2, ffn=400),
                data=DataSection(sequence_length=8, sequences_per_step=1),
                rounds=RoundSection(inner_steps=STEPS * self.fragments, delay=self.delay, min_members=2),
                fragments=self.fragments,
                chunk_parameters=16384,
                checkpoint_interval=1000,
                checkpoint_chunk_bytes=1 << 20,
                total_tokens=10**9,
            ),
        )

    def line(self, manifest: RunManifest) -> float:
        """Return the bytes per second of a line."""
        return 2 * 0.75 * manifest.layouts.contribution.payload_bytes * self.fragments / EXCHANGE_S


def spread(slowest: float, peers: int) -> tuple[float, ...]:
    """Return seconds of a step from one to the slowest member's, spread evenly over the logarithm."""
    return tuple(np.geomspace(1, slowest, peers).tolist())


SETTINGS = (
    VirtualSetting("even", (1.0,) * 4),
    VirtualSetting("one half as fast", (1.0, 1.0, 1.0, 2.0)),
    VirtualSetting("one a quarter as fast", (1.0, 1.0, 1.0, 4.0), rounds=20),
    VirtualSetting("eight, up to half as fast", spread(2.0, 8), rounds=5),
    VirtualSetting("four with steps of 10 to 20 s", tuple(10 * each for each in spread(2.0, 4)), rounds=5),
    VirtualSetting("overlapped, one half as fast", (1.0, 1.0, 1.0, 2.0), fragments=4, delay=4),
    VirtualSetting("six, 300 s online and 150 s offline", (1.0,) * 6, rounds=40, online_s=300.0, offline_s=150.0),
)


@dataclass(frozen=True)
class VirtualFigures:
    """Means over rounds, predicted or measured.  tokens_per_s: the tokens of all members that records count."""

    round_s: float
    members: float
    tokens_per_s: float


def predicted(setting: VirtualSetting) -> VirtualFigures:
    """Return the prediction of `peer simulate` for these peers."""
    manifest, count = setting.run.manifest, len(setting.step_s)
    line = np.full(count, setting.line(manifest))
    peers = PlannedPeers(
        speed=manifest.tokens_per_round / manifest.round_steps / np.array(setting.step_s),
        up=line,
        down=line,
        rtt=np.full(count, 2 * LATENCY_S),
        online_s=np.full(count, setting.online_s),
        offline_s=np.full(count, setting.offline_s),
    )
    forecast = forecast_rounds(RoundLoad.of(manifest, RoundSetting.of(manifest)), RoundRules.of(manifest), peers)
    return VirtualFigures(forecast.round_s, forecast.members, forecast.tokens_a_day / 86_400)


def measured(setting: VirtualSetting, seed: int = 1) -> VirtualFigures:
    """Return the figures of the protocol.  Raises AssertionError if the simulated swarm makes no progress."""
    commits: dict[int, tuple[float, RoundCommitted]] = {}
    signed = setting.run

    async def scenario(world: World) -> None:
        def note(seat: Seat, event: Event) -> None:
            if isinstance(event, RoundCommitted):
                commits.setdefault(event.round, (world.now(), event))

        world.listeners.append(note)
        for seat, step_s in zip(world.seats, setting.step_s, strict=True):
            seat.step_s = step_s
            if setting.offline_s:
                world.spawn(_come_and_go, world, seat, setting, Random(f"presence {seed} {seat.number}"))
            else:
                world.start(seat)
        last = FIRST_ROUNDS + setting.rounds
        await world.until(f"round {last}", lambda: last in commits, 100 * last * max(setting.step_s) * STEPS)

    run = simulate(len(setting.step_s), scenario, seed, Weather(LATENCY_S, 0.0, setting.line(signed.manifest)), signed)
    assert run.failure is None, run.failure
    rounds = range(FIRST_ROUNDS + 1, FIRST_ROUNDS + setting.rounds + 1)
    elapsed = commits[rounds[-1]][0] - commits[FIRST_ROUNDS][0]
    events = [commits[round][1] for round in rounds]
    return VirtualFigures(
        elapsed / len(rounds),
        sum(len(event.members) for event in events) / len(rounds),
        sum(event.tokens for event in events) / elapsed,
    )


async def _come_and_go(world: World, seat: Seat, setting: VirtualSetting, random: Random) -> None:
    """Start a peer and let it leave, again and again."""
    if random.random() >= setting.online_s / (setting.online_s + setting.offline_s):
        await trio.sleep(random.expovariate(1 / setting.offline_s))
    while True:
        world.start(seat)
        await trio.sleep(random.expovariate(1 / setting.online_s))
        await world.until("a node", lambda: seat.node is not None, 60)
        world.leave(seat)
        await world.until("the goodbye", lambda: not seat.up, 60)
        await trio.sleep(random.expovariate(1 / setting.offline_s))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.virtual_predictions", description=(__doc__ or "").splitlines()[0])
    names = [each.name for each in SETTINGS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args(arguments)
    print("| setting | figure | predicted | in virtual time | predicted over virtual |\n|---|---|---|---|---|", flush=True)
    rows, holds = [], True
    for setting in (each for each in SETTINGS if each.name in options.only):
        said, found = asdict(predicted(setting)), asdict(measured(setting))
        for name in said:
            ratio = said[name] / found[name]
            holds &= abs(ratio - 1) <= BAR
            print(f"| {setting.name} | {name} | {said[name]:.4g} | {found[name]:.4g} | {ratio:.3f} |", flush=True)
        rows.append({"setting": setting.name, "predicted": said, "virtual": found})
    if options.json:
        print(json.dumps({"holds": holds, "settings": rows}))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
