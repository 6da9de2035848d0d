"""Answers are charged to whoever asks: strangers share one allowance and one worker thread, a member has its own."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio

from protocol.offload import charged, charging
from protocol.transport.answer_budget import ALL_STRANGERS, MAX_TABS, ONE_MEMBER, QUESTION_S, AnswerBudget
from protocol.transport.interface import Unreachable
from protocol.transport.limits import ABANDONED
from protocol.transport.requests import decode_answer, decode_question
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.identity import PeerId
from tests.protocol.peers import TheseMembers
from tests.protocol.transport.recorder import Recorder, pair, stack

MEMBER, STRANGER, NEWCOMER = PeerId("member"), PeerId("stranger"), PeerId("newcomer")
FORMER = [PeerId(f"former member {number}") for number in range(32)]
"""Members that are not active: each was in one record."""
ANSWER_S, SECONDS = 0.02, 100.0
"""Processor time of an answer, and how long strangers ask (s, virtual)."""


class Flood:
    """Strangers that ask all the time, 16 questions each.  took_s: processor time by peer.  most: answers at a time."""

    def __init__(self, budget: AnswerBudget, size: int = 0) -> None:
        self.budget, self.size = budget, size
        self.took_s, self.answers = defaultdict[PeerId, float](float), Counter[PeerId]()
        self.running = self.most = 0

    async def ask(self, peer: PeerId) -> None:
        """Get one answer."""
        async with self.budget.turn(peer):
            self.running += 1
            self.most = max(self.most, self.running)
            await trio.sleep(ANSWER_S)
            self.budget.charge(peer, ANSWER_S, self.size)
            self.running -= 1
        self.took_s[peer] += ANSWER_S
        self.answers[peer] += 1

    async def go_on(self, peer: PeerId) -> None:
        while True:
            await self.ask(peer)

    async def by(self, strangers: int, beside: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint) -> None:
        """Flood for `SECONDS`; call `beside` in the middle of it."""
        await self.by_these([PeerId(f"stranger {number}") for number in range(strangers)], beside)

    async def by_these(
        self, peers: Sequence[PeerId], beside: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
    ) -> None:
        """Flood with these peers instead of strangers."""
        async with trio.open_nursery() as nursery:
            for peer in peers:
                for _ in range(16):
                    nursery.start_soon(self.go_on, peer)
            await trio.sleep(SECONDS / 2)
            await beside()
            await trio.sleep(SECONDS / 2)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def a_budget() -> AsyncIterator[AnswerBudget]:
    """One that knows one member."""
    async with trio.open_nursery() as nursery:
        budget = AnswerBudget(TheseMembers(MEMBER, *FORMER), {MEMBER}.__contains__)
        nursery.start_soon(budget.run)
        yield budget
        assert not budget._strangers.waiting and not budget._others.waiting
        nursery.cancel_scope.cancel()


@pytest.fixture
def budget(virtual_time: None) -> AbstractAsyncContextManager[AnswerBudget]:
    return a_budget()


@pytest.mark.parametrize("strangers", [1, 32])
async def test_any_number_of_strangers_take_one_allowance_and_one_place(budget: AnswerBudget, strangers: int) -> None:
    flood = Flood(budget)
    await flood.by(strangers)
    allowed = ALL_STRANGERS.per_s * (SECONDS + ALL_STRANGERS.burst_s)
    assert 0.9 * allowed < sum(flood.took_s.values()) <= allowed + ANSWER_S
    assert flood.most == 1 and len(flood.answers) == strangers
    assert max(flood.answers.values()) - min(flood.answers.values()) <= 1


async def test_the_bytes_of_answers_to_strangers_have_one_allowance(budget: AnswerBudget) -> None:
    flood = Flood(budget, size=1 << 20)
    await flood.by(8)
    allowed = ALL_STRANGERS.bytes_per_s * (SECONDS + ALL_STRANGERS.burst_s)
    assert 0.9 * allowed < flood.answers.total() << 20 <= allowed + (1 << 20)


async def test_members_never_wait_for_strangers_and_newcomers_are_answered_next(budget: AnswerBudget) -> None:
    flood, waited = Flood(budget), dict[PeerId, float]()

    async def others() -> None:
        for peer in (MEMBER, NEWCOMER):
            began = trio.current_time()
            await flood.ask(peer)
            waited[peer] = trio.current_time() - began - ANSWER_S

    await flood.by(32, others)
    assert waited[MEMBER] == pytest.approx(0.0, abs=1e-9)
    assert waited[NEWCOMER] <= 2 * ANSWER_S / ALL_STRANGERS.per_s, "the answer before it is paid for, and no more"


async def test_members_that_are_not_active_share_one_allowance_and_keep_neither_members_nor_strangers_waiting(
    budget: AnswerBudget,
) -> None:
    """In an open run, each of them is a key that contributed once."""
    flood, waited = Flood(budget), dict[PeerId, float]()

    async def others() -> None:
        for peer in (MEMBER, STRANGER):
            began = trio.current_time()
            async with budget.turn(peer):
                waited[peer] = trio.current_time() - began

    await flood.by_these(FORMER, others)
    allowed = ALL_STRANGERS.per_s * (SECONDS + ALL_STRANGERS.burst_s)
    assert 0.9 * allowed < sum(flood.took_s.values()) <= allowed + ANSWER_S
    assert flood.most == 1 and waited == {MEMBER: 0.0, STRANGER: 0.0}


async def test_a_fresh_key_that_is_active_has_saved_up_nothing(budget: AnswerBudget) -> None:
    """Tokens admit many keys, one after the other."""
    flood = Flood(budget)
    for _ in range(2):
        await flood.ask(MEMBER)
    assert trio.current_time() == pytest.approx(ANSWER_S / ONE_MEMBER.per_s + ANSWER_S)


async def test_a_member_that_asks_all_the_time_takes_its_own_allowance(budget: AnswerBudget) -> None:
    flood = Flood(budget)
    with trio.move_on_after(SECONDS):
        await flood.go_on(MEMBER)
    allowed = ONE_MEMBER.per_s * (SECONDS + ONE_MEMBER.burst_s)
    assert 0.9 * allowed < flood.took_s[MEMBER] <= allowed + ANSWER_S


async def test_who_gives_up_waiting_leaves_nothing_behind(budget: AnswerBudget) -> None:
    flood = Flood(budget)
    budget.charge(STRANGER, 100.0)
    for _ in range(5):
        with trio.move_on_after(1.0):
            await flood.ask(NEWCOMER)
    assert not flood.answers and not budget._strangers.waiting
    await flood.ask(NEWCOMER)
    assert trio.current_time() == pytest.approx(100.0 / ALL_STRANGERS.per_s - ALL_STRANGERS.burst_s + ANSWER_S)


async def test_keys_that_nobody_heard_before_take_bounded_memory(budget: AnswerBudget) -> None:
    for number in range(MAX_TABS + 10):
        budget.charge(PeerId(f"key {number}"), 0.0)
    assert len(budget._strangers.tags) == MAX_TABS


async def test_work_in_threads_is_charged_even_if_it_fails_and_our_own_is_not(budget: AnswerBudget) -> None:
    charges: list[tuple[PeerId, float]] = []
    keep: Any = lambda peer, seconds, size=0: charges.append((peer, seconds))  # noqa: E731
    budget.charge = keep  # type: ignore[method-assign]

    async def inline(function: Callable[..., Any], *arguments: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    def work(fails: bool) -> int:
        total = sum(range(200_000))
        if fails:
            raise ValueError("as it may happen")
        return total

    offload = charged(inline)
    assert await offload(work, False) and not charges
    with charging(budget.payer(STRANGER)):
        assert await offload(work, False)
        with pytest.raises(ValueError, match="as it may"):
            await offload(work, True)
    assert [peer for peer, _ in charges] == [STRANGER, STRANGER] and all(seconds > 0 for _, seconds in charges)


@pytest.mark.slow
async def test_questions_are_charged_and_whoever_does_not_wait_for_answers_is_penalised() -> None:
    b = Recorder()
    async with pair(Recorder(), b) as (one, two):
        budget, penalties = stack(two).requests._budget, list[tuple[PeerId, float]]()

        def penalise(peer: PeerId, penalty: float, why: str) -> None:
            penalties.append((peer, penalty))
            b.changed()

        stack(two).reputation.penalise = penalise  # type: ignore[method-assign]
        await one.request(two.peer_id, "echo", bytes(100_000), timeout_s=60)
        assert budget._strangers.tags[one.peer_id] >= 100_000 / ALL_STRANGERS.bytes_per_s
        budget.charge(one.peer_id, 1e6 * QUESTION_S)
        with pytest.raises(Unreachable):
            await one.request(two.peer_id, "echo", b"", timeout_s=0.3)
        await b.until(lambda: penalties)
        assert penalties == [(one.peer_id, ABANDONED)]


@pytest.mark.parametrize("decode", [decode_question, decode_answer])
def test_questions_and_answers_of_many_values_are_not_read(decode: Callable[[bytes], object]) -> None:
    """Before the asker pays for anything: what they cost to read does not grow with their values."""
    with pytest.raises(Malformed):
        decode(canonical.encode({"data": [{}] * 1000, "open": True}))
