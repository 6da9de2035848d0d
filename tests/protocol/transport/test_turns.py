"""Turns: how many tasks go on in one turn of the event loop."""

from __future__ import annotations

from collections import Counter

import trio

from protocol.transport.gossip import Turns


class LoopTurns(trio.abc.Instrument):
    """Counts the turns of the event loop."""

    def __init__(self) -> None:
        self.now = 0

    def before_io_wait(self, timeout: float) -> None:
        self.now += 1


def test_one_task_goes_on_in_each_turn_of_the_loop_and_each_gets_as_many() -> None:
    turns, loop, taken = Turns(), LoopTurns(), list[tuple[int, int]]()

    async def work(who: int) -> None:
        for _ in range(20):
            await turns.take()
            taken.append((loop.now, who))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for who in range(10):
                nursery.start_soon(work, who)

    trio.run(main, instruments=[loop])
    assert len(taken) == 200
    assert len({turn for turn, _ in taken}) == 200, "no two in one turn of the loop"
    for number in range(0, 180, 10):
        assert max(Counter(who for _, who in taken[number : number + 10]).values()) <= 2, "nobody comes first every time"


def test_a_task_that_is_cancelled_while_it_waits_holds_up_nobody() -> None:
    async def main() -> None:
        turns, passed = Turns(), list[int]()

        async def work(who: int, scope: trio.CancelScope) -> None:
            with scope:
                await turns.take()
                passed.append(who)

        scopes = [trio.CancelScope() for _ in range(3)]
        async with trio.open_nursery() as nursery:
            for who, scope in enumerate(scopes):
                nursery.start_soon(work, who, scope)
            scopes[1].cancel()
        assert sorted(passed) == [0, 2]

    trio.run(main)
