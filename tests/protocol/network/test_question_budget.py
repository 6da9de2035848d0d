"""How much room questions get, who gets it, and what happens to those that find none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest
import trio
import trio.testing

from protocol.events import Dropped, Event
from protocol.network.interface import Unreachable
from protocol.network.libp2p import open_network
from protocol.network.libp2p.question_budget import BUDGET_BYTES, EVENT_EVERY_S, SMALL_BYTES, QuestionBudget
from protocol.wire.identity import Identity, PeerId
from tests.protocol.network.recorder import LOOPBACK, PATIENCE_S, RUN, Recorder, network
from tests.protocol.peers import TheseMembers

SIZE = 1 << 20
MEMBER, OTHER_MEMBER, STRANGER = PeerId("member"), PeerId("other member"), PeerId("stranger")
REASON = "too many large questions of all peers at once"


def a_budget(events: list[Event], total_bytes: int = BUDGET_BYTES) -> QuestionBudget:
    return QuestionBudget(TheseMembers(MEMBER, OTHER_MEMBER), events.append, total_bytes)


def granted(budget: QuestionBudget, held: ExitStack, peer: PeerId, size: int = SIZE) -> int:
    """How many of 100 questions of one size find room, one after the other."""
    count = 0
    for _ in range(100):
        try:
            held.enter_context(budget.hold(peer, size))
        except Unreachable:
            continue
        count += 1
    return count


def in_virtual_time(check: Callable[[], None]) -> None:
    async def main() -> None:
        await trio.lowlevel.checkpoint()
        check()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_strangers_get_half_and_a_peer_as_much_as_it_leaves_free() -> None:
    def check() -> None:
        budget = a_budget([])
        with ExitStack() as held:
            assert [granted(budget, held, PeerId(f"stranger {number}")) for number in range(6)] == [16, 8, 4, 2, 1, 1]
            assert granted(budget, held, MEMBER) == 16 and granted(budget, held, OTHER_MEMBER) == 8
            assert budget.held_bytes == 56 * SIZE
        assert budget.held_bytes == 0
        with ExitStack() as held:
            assert granted(budget, held, STRANGER) == 16, "all room is given back"

    in_virtual_time(check)


def test_small_questions_find_room_when_there_is_none() -> None:
    def check() -> None:
        budget = a_budget([], total_bytes=0)
        with ExitStack() as held:
            assert granted(budget, held, STRANGER, SMALL_BYTES) == 100
            assert granted(budget, held, MEMBER, SMALL_BYTES + 1) == 0

    in_virtual_time(check)


def test_refusals_of_all_peers_are_told_in_sums() -> None:
    events: list[Event] = []

    async def main() -> None:
        budget = a_budget(events, total_bytes=0)
        for peer in (STRANGER, MEMBER):
            granted(budget, ExitStack(), peer)
        await trio.sleep(EVENT_EVERY_S)
        granted(budget, ExitStack(), STRANGER)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert events == [Dropped(STRANGER, "question", REASON, 1), Dropped(STRANGER, "question", REASON, 200)]


def test_questions_hold_their_room_until_they_are_answered_and_others_are_refused_at_once() -> None:
    """Whole questions of a stranger that nobody answers: half of the room of strangers, and no more."""

    async def main() -> None:
        a, told, held, refused = Recorder(), list[Event](), list[bytes](), list[Unreachable]()

        async def keep(kind: str, data: bytes) -> bytes:
            if kind == "never":
                held.append(data)
                a.changed()
                await trio.sleep_forever()
            return data

        a.answer = keep
        async with (
            open_network(Identity.generate(), RUN, a, LOOPBACK, emit=told.append) as one,
            network(b := Recorder()) as two,
        ):
            a.end = one

            async def ask() -> None:
                try:
                    await two.request(one.peer_id, "never", bytes(2 * SIZE), timeout_s=PATIENCE_S)
                except Unreachable as error:
                    refused.append(error)
                    b.changed()

            two.remember(one.addresses())
            await b.greeted.wait()
            async with trio.open_nursery() as nursery:
                for _ in range(12):
                    nursery.start_soon(ask)
                await b.until(lambda: len(refused) == 4)
                await a.until(lambda: len(held) == 8)
                assert await two.request(one.peer_id, "echo", b"small", timeout_s=PATIENCE_S) == b"small"
                with pytest.raises(Unreachable):
                    await two.request(one.peer_id, "echo", bytes(2 * SIZE), timeout_s=PATIENCE_S)
                assert len(held) == 8 and [type(event) for event in told] == [Dropped]
                nursery.cancel_scope.cancel()

    trio.run(main)
