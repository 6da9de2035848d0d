"""Whose turn it is at the trainer process, and when work that is of no use any more gives it back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
import trio.testing

from protocol.rollouts.trainer import REST_S, TrainerLock
from protocol.wire.hashes import hash_bytes

OLD, NEW, OTHER = (hash_bytes("tip", bytes([number])) for number in range(3))


def in_time(main: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        with trio.fail_after(1000):
            await main()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


async def work(turn: TrainerLock, done: list[str], seconds: float) -> None:
    """A batch of version 3."""
    with_it = "given up"
    async with turn.lent():
        turn.about(3, OLD)
        await trio.sleep(seconds)
        with_it = "done"
    done.append(with_it)


async def looks(turn: TrainerLock) -> None:
    while True:
        turn.look()
        await trio.sleep(0.25)


def tried(change: Callable[[TrainerLock], None], seconds: float = 500.0) -> tuple[str, float]:
    """What becomes of a batch that takes so long and a change in the midst of it, and when somebody else has the turn."""
    done: list[str] = []
    waited: list[float] = []

    async def main() -> None:
        turn = TrainerLock()
        turn.moved({3: OLD, 2: OTHER})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(looks, turn)
            nursery.start_soon(work, turn, done, seconds)
            await trio.sleep(1.0)
            change(turn)
            begun = trio.current_time()
            async with turn.taken():
                waited.append(trio.current_time() - begun)
            nursery.cancel_scope.cancel()

    in_time(main)
    [became] = done
    return became, waited[0]


def test_a_batch_that_nobody_would_take_any_more_gives_the_turn_back() -> None:
    for tips in ({4: NEW, 5: NEW}, {3: OTHER}):
        became, waited_s = tried(lambda turn, tips=tips: turn.moved(tips))  # type: ignore[misc]
        assert became == "given up" and waited_s <= 0.25
    assert tried(lambda turn: turn.moved({3: OLD, 5: NEW}))[0] == "done", "it is young enough"


def test_a_short_rest_keeps_what_is_being_made_and_a_long_one_gives_the_turn_back() -> None:
    became, waited_s = tried(lambda turn: turn.rest(True))
    assert became == "given up" and REST_S <= waited_s <= REST_S + 0.5

    def rests_and_goes_on(turn: TrainerLock) -> None:
        turn.rest(True)
        turn.rest(False)

    assert tried(rests_and_goes_on)[0] == "done"
    assert tried(lambda turn: turn.rest(True), REST_S / 2)[0] == "done"


async def test_what_takes_the_process_but_for_a_moment_is_never_given_up() -> None:
    turn = TrainerLock()
    turn.rest(True)
    async with turn.taken():
        await trio.sleep(2 * REST_S)
        turn.look()
        await trio.lowlevel.checkpoint()
