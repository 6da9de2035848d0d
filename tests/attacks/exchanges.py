"""Members that withhold parts and averages, send worthless ones, or average wrongly."""

from __future__ import annotations

from functools import lru_cache

import trio

from protocol.run.manifest import SignedManifest
from tests.attacks.attack import Attack, exchange, holding
from tests.attacks.exchange_liars import (
    Bogus,
    Corrupt,
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
    averaging_wrong,
    blow_up,
    flip_one,
)
from tests.attacks.stage import Stage, found_by

always_late, late_for_each = holding(exchange(Delaying)), holding(exchange(DelayingSome))
averages_late, averages_a_little_late = holding(exchange(DelayingAverages)), holding(exchange(DelayingAveragesLess))


async def averaging_wrongly(stage: Stage, corrupt: Corrupt) -> None:
    """The liars start again as owners that spoil what they sign, until every honest peer has proof of it.

    What they make of their own averages afterwards, on a branch of their own, is their business: their lives end then.
    """
    stage.expect_ejected()
    for seat in stage.liars:
        seat.offload = averaging_wrong(corrupt)
        stage.restart(seat)
    while not all(map(stage.ejected, stage.liar_peers)):
        await trio.sleep(1.0)
    for seat in stage.liars:
        stage.world.faults.kill(seat)


async def destructive_averages(stage: Stage) -> None:
    """Everybody looks at such an average before the vote.  Who comes back, also without its disk, knows who lied, too."""
    judge, (returns, lost, *_) = stage.world.judge, stage.honest
    await averaging_wrongly(stage, blow_up)
    stage.expect("nothing of it was averaged", lambda: not judge.false_chunks, 1.0)
    for peer in stage.liar_peers:
        for seat in (returns, lost):
            judge.ejections[peer].pop(seat.peer)
    stage.restart(returns)
    stage.world.faults.lose_disk(lost)
    stage.world.start(lost)


async def slightly_wrong_averages(stage: Stage) -> None:
    await averaging_wrongly(stage, flip_one)


async def two_averages(stage: Stage) -> None:
    """It signs one average of each of its chunks for one half of the members, and another one for the rest: whoever
    holds the one and sees the other in the record has proof."""
    stage.expect_ejected()
    liar = stage.liars[0]
    TwoFaced(stage.network(liar), liar.identity, stage.run, stage.honest_peers[:2])
    await trio.sleep_forever()


@lru_cache(maxsize=1)
def last_three_found(peers: int) -> SignedManifest:
    """The last three of so many seats are the founders."""
    return found_by(range(peers - 3, peers))


async def crowd_the_buffers(stage: Stage) -> None:
    """They push slowly, too, so that nothing is ever complete."""
    for peer in stage.liar_peers:
        end = stage.world.wire.end(peer)
        assert end is not None
        end.access.up.bytes_per_s = 100.0
    await holding(exchange(Crowding))(stage)


async def slow_trainer(stage: Stage) -> None:
    """Works at a fifth of the pace of the others, and says so."""
    for seat in stage.liars:
        assert seat.trainer is not None
        seat.trainer.step_s = 2.0
    await trio.sleep_forever()


ATTACKS = [
    Attack("withholds everything", "parts and averages", holding(exchange(KeepingBack))),
    Attack("two withhold everything", "of seven", holding(exchange(KeepingBack)), 7, 2),
    Attack("withholds parts", "and averages what it gets", holding(exchange(KeepingParts))),
    Attack("withholds averages", "and gives its parts", holding(exchange(KeepingResults))),
    Attack("bogus parts", "withhold everything, and push a worthless part every 2 s (simK)", holding(exchange(Bogus))),
    Attack("crowd the buffers", "four newcomers beside three founders", crowd_the_buffers, 7, 4, run=last_three_found),
    Attack("trickles", "one chunk every 4.5 s", holding(exchange(Trickling))),
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
    Attack("slow trainer", "at a fifth of the pace", slow_trainer),
]
