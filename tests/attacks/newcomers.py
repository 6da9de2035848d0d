"""Strangers that come in to stall once, and crowds that keep honest newcomers out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache

import trio

from protocol.allreduce.machine import ExchangeEffect
from protocol.allreduce.runner import ExchangeRunner
from protocol.run.manifest import SignedManifest
from protocol.wire.identity import PeerId
from tests.attacks.attack import Attack, exchange, holding
from tests.attacks.crowds import ready_and_mute
from tests.attacks.stage import Stage, founded_run, four_founders
from tests.attacks.standing import fair, shares_since

# -- sleepers -------------------------------------------------------------------------------------------------------------


class OnItsDay(ExchangeRunner):
    """Gives nothing in one round, and its part in all others."""

    days: dict[PeerId, int] = {}

    def _perform(self, effect: ExchangeEffect) -> None:
        me = self.machine.me
        day = self.days.setdefault(me, min(self.days.values(), default=self.machine.plan.round) + len(self.days))
        if self.machine.plan.round != day:
            super()._perform(effect)


async def sleepers_withhold(stage: Stage) -> None:
    """Newcomers that have contributed withhold everything, one after the other, each in one round."""
    first = stage.rounds() + 2
    OnItsDay.days = {seat.peer: first + number for number, seat in enumerate(stage.liars)}
    await holding(fair, exchange(OnItsDay))(stage)


async def sleepers_compute(stage: Stage) -> None:
    """Newcomers that have contributed are not ready, one after the other, each in one round."""
    with fair(stage):
        for seat in stage.liars:
            assert seat.trainer is not None
            seat.trainer.step_s, was = 1000.0, seat.trainer.step_s
            first = stage.rounds()
            while stage.rounds() == first:
                await trio.sleep(0.2)
            seat.trainer.step_s = was
        await trio.sleep_forever()


# -- newcomers ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def founded_by_four(peers: int) -> SignedManifest:
    """Open to anybody, founded by the first four seats."""
    return founded_run(4)


async def keep_newcomers_out(stage: Stage, count: int, rounds: int) -> None:
    """Mute keys are there before a peer comes back that has contributed before."""
    await stage.begin()
    *founders, newcomer = stage.honest
    stage.world.faults.kill(newcomer)
    tenured = stage.honest
    stage.honest = founders

    async def until(round: int) -> None:
        while stage.rounds() < round:
            await trio.sleep(0.5)

    await until(10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ready_and_mute(count), stage)
        await until(16)
        stage.world.start(newcomer)
        begun, waited = stage.rounds(), None
        while stage.rounds() < begun + rounds and waited is None:
            await trio.sleep(1.0)
            if stage.rounds() > begun and shares_since(stage, begun, [newcomer.peer])[newcomer.peer] > 0:
                waited = stage.rounds() - begun
        nursery.cancel_scope.cancel()
    stage.honest = tenured
    assert waited is not None, f"a newcomer waits for {rounds} rounds beside {count} mute keys"


def newcomer_beside(count: int, rounds: int) -> Callable[[Stage], Awaitable[None]]:
    async def conduct(stage: Stage) -> None:
        await keep_newcomers_out(stage, count, rounds)

    return conduct


ATTACKS = [
    # Each of the eight costs a bounded time once, all of them within 80 s: a window of that length holds nothing else.
    Attack("sleepers withhold", "one after the other", sleepers_withhold, 12, 8, run=four_founders, window_s=300),
    Attack("sleepers compute", "one after the other", sleepers_compute, 12, 8, run=four_founders),
    *(
        Attack(
            f"newcomer beside {count} mute keys",
            "that were there before",
            newcomer_beside(count, 40),
            5,
            0,
            count,
            run=founded_by_four,
            begun=False,
            quick=False,
        )
        for count in (1, 10, 1000)
    ),
]
