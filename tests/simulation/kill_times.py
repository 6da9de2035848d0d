"""What the death of a member costs an exchange, by the moment at which it dies.

Four members on links so narrow that an exchange takes about a minute.  One of them is killed at some moment after the
proposal; measured is how long the survivors take to commit the same round, against the bar of 1.5 times the undisturbed
exchange plus the time until they noticed, and whether a chunk of the result lacks the part of a survivor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import trio

from protocol.events.events import Event, MemberLost, RoundCommitted, RoundProposed
from protocol.formats.model import ModelConfig
from protocol.run.manifest import RoundSection, RunManifest, SignedManifest, sign
from protocol.run.sections import DataSection
from protocol.wire.messages import members_in
from tests.simulation.runs import Finished, simulate
from tests.simulation.seat import Seat
from tests.simulation.wire import Weather
from tests.simulation.world import ORGANISER, World

MEMBERS = 4
ROUND = 1
EXCHANGE_S = 60.0
BAR = 1.5


@lru_cache(maxsize=1)
def narrow_run() -> SignedManifest:
    """About 0.8 M parameters in 50 chunks."""
    return sign(
        ORGANISER,
        RunManifest(
            name="narrow",
            organiser=ORGANISER.peer_id,
            founders="anyone",
            seed=1,
            model=ModelConfig(vocab=256, dim=128, layers=4, heads=2, kv_heads=2, ffn=352),
            data=DataSection(sequence_length=8, sequences_per_step=1),
            aggregation="mean",
            rounds=RoundSection(inner_steps=10, min_members=1, max_members=64, grace_s=10, eviction_s=60, stall_s=10),
            chunk_parameters=16384,
            checkpoint_interval=100,
            checkpoint_chunk_bytes=1 << 20,
            total_tokens=10**9,
        ),
    )


def link_bytes_per_s() -> float:
    """At which an exchange that balances perfectly takes `EXCHANGE_S`."""
    return (MEMBERS - 1) / MEMBERS * narrow_run().manifest.layouts.exchanged_bytes / EXCHANGE_S


@dataclass(frozen=True)
class Outcome:
    """at_s: when the victim died, None for nobody.  seconds: proposal to the last survivor's commit.

    noticed_s: death to the last survivor's notice.  lost: (survivor, chunk) pairs that are not in the result.
    """

    victim: str
    at_s: float | None
    seconds: float
    noticed_s: float
    lost: int
    failure: str | None


class _Watch:
    """Takes down what happens in the measured round."""

    def __init__(self, world: World) -> None:
        self.proposed: float | None = None
        self.proposer = ""
        self.died_at = 0.0
        self.noticed: dict[str, float] = {}
        self.committed: dict[str, float] = {}
        self._world = world
        world.listeners.append(self._on_event)

    def _on_event(self, seat: Seat, event: Event) -> None:
        now = self._world.now()
        if isinstance(event, RoundProposed) and event.round == ROUND and self.proposed is None:
            self.proposed, self.proposer = now, event.proposer
        elif isinstance(event, RoundCommitted) and event.round == ROUND:
            self.committed[seat.peer] = now
        elif isinstance(event, MemberLost) and event.round == ROUND and self.died_at:
            self.noticed.setdefault(seat.peer, now)


def kill_at(victim: str, at_s: float | None) -> Outcome:
    """One run in which the victim dies `at_s` after the proposal."""
    outcomes: list[Outcome] = []

    async def scenario(world: World) -> None:
        watch = _Watch(world)
        for seat in world.seats:
            seat.step_s = 0.3
            world.start(seat)
        await world.until("the proposal", lambda: watch.proposed is not None, within_s=400)
        assert watch.proposed is not None
        others = [seat for seat in world.seats if seat.peer != watch.proposer]
        struck = next(seat for seat in world.seats if seat not in others) if victim == "proposer" else others[0]
        if at_s is not None:
            await trio.sleep_until(watch.proposed + at_s)
            watch.died_at = world.now()
            world.faults.kill(struck)
        survivors = [seat for seat in world.seats if seat.up]
        await world.until("the commit", lambda: all(seat.peer in watch.committed for seat in survivors), within_s=600)
        seconds = max(watch.committed[seat.peer] for seat in survivors) - watch.proposed
        noticed = [watch.noticed[seat.peer] for seat in survivors if seat.peer in watch.noticed]
        noticed_s = max(noticed, default=watch.died_at) - watch.died_at
        outcomes.append(Outcome(victim, at_s, seconds, noticed_s, _lost(survivors), None))

    rate = link_bytes_per_s()
    run: Finished = simulate(MEMBERS, scenario, 1, Weather(latency_s=0.02, jitter_s=0.005, bytes_per_s=rate), narrow_run())
    return outcomes[0] if outcomes else Outcome(victim, at_s, 0.0, 0.0, 0, run.failure)


def _lost(survivors: list[Seat]) -> int:
    """How many chunks of the record lack the part of a survivor, all survivors together."""
    node = survivors[0].node
    assert node is not None
    commit = node.commit_at(ROUND)
    names = [member.peer for member in commit.record.members]
    indices = [names.index(seat.peer) if seat.peer in names else -1 for seat in survivors]
    return sum(index not in members_in(entry.mask, len(names)) for entry in commit.index for index in indices)
