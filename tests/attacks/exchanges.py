"""Members that withhold parts and averages, send worthless ones, or average wrongly."""

from __future__ import annotations

from functools import lru_cache

import trio

from protocol.allreduce.runner import ExchangeRunner
from protocol.run.manifest import SignedManifest, sign
from tests.attacks.attack import Attack, Conduct
from tests.attacks.stage import ORGANISER, Stage, identity_of
from tests.simulation.adversaries import ATTACKS as HARMFUL
from tests.simulation.adversaries import turn as turn_trainer
from tests.simulation.exchange_liars import (
    Bogus,
    Crowding,
    Delaying,
    DelayingAverages,
    DelayingAveragesLess,
    DelayingSome,
    KeepingBack,
    KeepingParts,
    KeepingResults,
    Trickling,
    TwoFaced,
    exchanging,
)
from tests.simulation.liars import Corrupt, blow_up, flip_one, turn
from tests.simulation.world import simulated_run


def lying_as(kind: type[ExchangeRunner]) -> Conduct:
    """The liars' exchanges are of this kind."""

    async def conduct(stage: Stage) -> None:
        with exchanging(kind, {seat.peer for seat in stage.liars}):
            await trio.sleep_forever()

    return conduct


always_late, late_for_each = lying_as(Delaying), lying_as(DelayingSome)
averages_late, averages_a_little_late = lying_as(DelayingAverages), lying_as(DelayingAveragesLess)


async def averaging_wrongly(stage: Stage, corrupt: Corrupt) -> None:
    """The liars start again as owners that spoil what they sign, until every honest peer has proof of it.

    What they make of their own averages afterwards, on a branch of their own, is their business: their lives end then.
    """
    for seat in stage.liars:
        stage.world.faults.kill(seat)
        turn(stage.world, seat, corrupt)
        stage.world.start(seat)
    while not all(stage.ejected(seat.peer) for seat in stage.liars):
        await trio.sleep(1.0)
    for seat in stage.liars:
        stage.world.faults.kill(seat)


def expect_ejected(stage: Stage) -> None:
    """Expect that every honest peer has proof against every liar."""
    stage.expect("everybody has ejected the liars", lambda: all(stage.ejected(seat.peer) for seat in stage.liars))


async def destructive_averages(stage: Stage) -> None:
    expect_ejected(stage)
    await averaging_wrongly(stage, blow_up)


async def slightly_wrong_averages(stage: Stage) -> None:
    expect_ejected(stage)
    await averaging_wrongly(stage, flip_one)


async def two_averages(stage: Stage) -> None:
    """It signs one average of each of its chunks for one half of the members, and another one for the rest: whoever
    holds the one and sees the other in the record has proof."""
    expect_ejected(stage)
    liar = stage.liars[0]
    TwoFaced(stage.network(liar), liar.identity, stage.run, stage.honest_peers[:2])
    await trio.sleep_forever()


async def harmful_contributions(stage: Stage) -> None:
    """Its honest contribution with its sign turned, a thousand times as large."""
    for seat in stage.liars:
        stage.world.faults.kill(seat)
        turn_trainer(seat, HARMFUL["sign flip x -1000"])
        stage.world.start(seat)
    await trio.sleep_forever()


@lru_cache(maxsize=1)
def last_three_found(peers: int) -> SignedManifest:
    """The last three of so many seats are the founders."""
    founders = sorted(identity_of(number).peer_id for number in range(peers - 3, peers))
    return sign(ORGANISER, simulated_run().manifest.model_copy(update={"founders": founders}))


async def crowd_the_buffers(stage: Stage) -> None:
    """They push slowly, too, so that nothing is ever complete."""
    for seat in stage.liars:
        end = stage.world.wire.end(seat.peer)
        assert end is not None
        end.access.up.bytes_per_s = 100.0
    await lying_as(Crowding)(stage)


async def slow_trainer(stage: Stage) -> None:
    """Works at a fifth of the pace of the others, and says so."""
    for seat in stage.liars:
        assert seat.trainer is not None
        seat.trainer.step_s = 2.0
    await trio.sleep_forever()


ATTACKS = [
    Attack("withholds everything", "parts and averages", lying_as(KeepingBack)),
    Attack("two withhold everything", "of seven", lying_as(KeepingBack), 7, 2),
    Attack("withholds parts", "and averages what it gets", lying_as(KeepingParts)),
    Attack("withholds averages", "and gives its parts", lying_as(KeepingResults)),
    Attack("bogus parts", "withhold everything, and push a worthless part every 2 s (simK)", lying_as(Bogus)),
    Attack("crowd the buffers", "four newcomers beside three founders", crowd_the_buffers, 7, 4, run=last_three_found),
    Attack("trickles", "one chunk every 4.5 s", lying_as(Trickling)),
    Attack("parts always late", "by 4.5 s, in every exchange", always_late),
    Attack("two always late", "of seven", always_late, 7, 2, window_s=300),
    Attack("averages always late", "by 4.5 s, in every exchange", averages_late),
    Attack("two averages always late", "of seven", averages_late, 7, 2, window_s=300),
    Attack("averages a little late", "by 1.9 s, in every exchange", averages_a_little_late, window_s=300),
    Attack("two averages a little late", "of seven", averages_a_little_late, 7, 2, window_s=300),
    Attack("late for each", "by 4.5 s, for one after the other", late_for_each, window_s=300),
    Attack("destructive averages", "times 1000", destructive_averages),
    Attack("slightly wrong averages", "by one in one value", slightly_wrong_averages),
    Attack("two averages of one chunk", "for different members", two_averages),
    Attack("harmful contributions", "turned and times 1000", harmful_contributions),
    Attack("slow trainer", "at a fifth of the pace", slow_trainer),
]
