"""How much room questions and answers get, who gets it, and what happens to those that find none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest
import trio
import trio.testing

from protocol.events.events import Dropped, Event
from protocol.transport import answer_budget
from protocol.transport.interface import Unreachable
from protocol.transport.network import open_network
from protocol.transport.rate_limit import Allowance
from protocol.transport.requests import BUDGET_BYTES, EVENT_EVERY_S, SMALL_BYTES, MemoryBudget, encode_question
from protocol.transport.streams import ask_frame
from protocol.wire.identity import Identity, PeerId
from tests.protocol.peers import TheseMembers
from tests.protocol.transport.recorder import LOOPBACK, PATIENCE_S, RUN, Recorder, network, stack

SIZE = 1 << 20
MEMBER, OTHER_MEMBER, STRANGER = PeerId("member"), PeerId("other member"), PeerId("stranger")
REASON = "too many large questions of all peers at once"


def a_budget(events: list[Event], total_bytes: int = BUDGET_BYTES) -> MemoryBudget:
    return MemoryBudget(TheseMembers(MEMBER, OTHER_MEMBER), events.append, total_bytes)


def granted(budget: MemoryBudget, held: ExitStack, peer: PeerId, size: int = SIZE) -> int:
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


@pytest.mark.usefixtures("virtual_time")
async def test_refusals_of_all_peers_are_told_in_sums() -> None:
    events: list[Event] = []
    budget = a_budget(events, total_bytes=0)
    for peer in (STRANGER, MEMBER):
        granted(budget, ExitStack(), peer)
    await trio.sleep(EVENT_EVERY_S)
    granted(budget, ExitStack(), STRANGER)
    assert events == [Dropped(STRANGER, "question", REASON, 1), Dropped(STRANGER, "question", REASON, 200)]


async def test_questions_hold_their_room_until_they_are_answered_and_others_are_refused_at_once() -> None:
    """Whole questions of a stranger that nobody answers: half of the room of strangers, and no more."""
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
            assert len(held) == 8 and len([event for event in told if isinstance(event, Dropped)]) == 1
            nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("virtual_time")
async def test_who_finds_no_room_may_wait_for_it() -> None:
    """Three that wait get it when it is released, all of them."""
    budget, waited = a_budget([], total_bytes=16 * SIZE), list[float]()

    async def wait(peer: PeerId) -> None:
        with await budget.room(peer, SIZE):
            waited.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        began = trio.current_time()
        with ExitStack() as held:
            assert granted(budget, held, STRANGER) == 4
            for _ in range(3):
                nursery.start_soon(wait, STRANGER)
            await trio.sleep(3)
            assert budget.has_room(MEMBER, SIZE) and not budget.has_room(STRANGER, SIZE)
    assert waited == [3.0] * 3 and budget.held_bytes == 0


async def test_answers_that_nobody_reads_hold_their_room_and_members_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two strangers ask for 16 large answers each, and read none of them."""
    monkeypatch.setattr(answer_budget, "ALL_STRANGERS", Allowance(1.0, 1e9, 2))  # this is about room, not about pace
    a, asked = Recorder(), list[str]()

    async def give(kind: str, data: bytes) -> bytes:
        asked.append(kind)
        a.changed()
        return bytes(SIZE) if kind == "large" else data

    a.answer = give
    member = Identity.generate()
    a.members.add(member.peer_id)
    async with network(a) as one, network(b := Recorder()) as two, network(c := Recorder(), member) as three:
        answers = stack(one).requests._answers
        async with network(d := Recorder()) as four:
            for end, recorder in ((two, b), (three, c), (four, d)):
                end.remember(one.addresses())
                await recorder.greeted.wait()
            for end, held in ((two, 16), (four, 24)):
                requests, before = stack(end).requests, len(asked)
                for _ in range(16):
                    question = encode_question("large", b"", 100_000)
                    await ask_frame(stack(end).host, one.peer_id, requests._protocol, question)
                with trio.fail_after(PATIENCE_S):
                    while len(asked) < before + 16 or answers.held_bytes < held * SIZE:
                        await trio.sleep(0.01)
            assert answers.held_bytes == 24 * SIZE, "half of the strangers' room, and half of the rest"
            assert len(await three.request(one.peer_id, "large", b"", timeout_s=PATIENCE_S)) == SIZE
            assert len(asked) == 33, "those that wait are not found again before there is room"
        await a.until(lambda: len(asked) > 33)
