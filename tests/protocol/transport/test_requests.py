"""Questions and answers between hosts: how much room they get and who gets it, and streams that carry several."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from math import inf

import pytest
import trio
import trio.testing
from libp2p.network.stream.exceptions import StreamError

from protocol.events.events import Dropped, Event
from protocol.transport import answer_budget, requests
from protocol.transport.interface import Refused, Unreachable
from protocol.transport.library import library_id
from protocol.transport.limits import SMALL_BYTES, Allowance, MemoryBudget, Reputation
from protocol.transport.network import Libp2pNetwork, open_network
from protocol.transport.requests import (
    BUDGET_BYTES,
    KEPT_S,
    WAITED_S,
    Requests,
    encode_question,
)
from protocol.transport.streams import ask_frame
from protocol.wire.identity import Identity, PeerId
from tests.protocol.peers import TheseMembers
from tests.protocol.transport.recorder import LOOPBACK, PATIENCE_S, RUN, Recorder, network, pair, stack, until

SIZE = 1 << 20
MEMBER, OTHER_MEMBER, STRANGER = PeerId("member"), PeerId("other member"), PeerId("stranger")
REASON = "too many large questions of all peers at once"


def a_budget(total_bytes: int = BUDGET_BYTES) -> MemoryBudget:
    return MemoryBudget(TheseMembers(MEMBER, OTHER_MEMBER), total_bytes, total_bytes // 2)


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


@pytest.mark.usefixtures("virtual_time")
async def test_strangers_get_half_and_a_peer_as_much_as_it_leaves_free() -> None:
    budget = a_budget()
    with ExitStack() as held:
        assert [granted(budget, held, PeerId(f"stranger {number}")) for number in range(6)] == [16, 8, 4, 2, 1, 1]
        assert granted(budget, held, MEMBER) == 16 and granted(budget, held, OTHER_MEMBER) == 8
        assert budget.held_bytes == 56 * SIZE
    assert budget.held_bytes == 0
    with ExitStack() as held:
        assert granted(budget, held, STRANGER) == 16, "all room is given back"


@pytest.mark.usefixtures("virtual_time")
async def test_small_questions_find_room_when_there_is_none() -> None:
    budget = a_budget(total_bytes=0)
    with ExitStack() as held:
        assert granted(budget, held, STRANGER, SMALL_BYTES) == 100
        assert granted(budget, held, MEMBER, SMALL_BYTES + 1) == 0


@pytest.mark.slow
async def test_questions_hold_their_room_until_they_are_answered_and_others_are_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whole questions of a stranger that nobody answers: half of the strangers' room, and no more; sums are told."""
    a, told, held, refused = Recorder(), list[Event](), list[bytes](), list[Unreachable]()
    monkeypatch.setattr(requests, "EVENT_EVERY_S", inf)

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
            assert len(held) == 8 and told.count(Dropped(two.peer_id, "question", REASON, 1)) == 1
            monkeypatch.setattr(requests, "EVENT_EVERY_S", 0.0)
            with pytest.raises(Unreachable):
                await two.request(one.peer_id, "echo", bytes(2 * SIZE), timeout_s=PATIENCE_S)
            first, then = [event.times for event in told if isinstance(event, Dropped)]
            assert first == 1 and then >= 5, "a question that is refused on a kept stream is asked twice"
            nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("virtual_time")
async def test_who_finds_no_room_may_wait_for_it() -> None:
    """Three that wait get it when it is released, all of them."""
    budget, waited = a_budget(total_bytes=16 * SIZE), list[float]()

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


@pytest.mark.slow
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


@asynccontextmanager
async def two_ends(b: Recorder) -> AsyncIterator[tuple[Libp2pNetwork, Requests, Requests, PeerId]]:
    """The end that asks, the questions of both ends, and whom to ask: `b` answers."""
    async with pair(Recorder(), b) as (one, two):
        yield one, stack(one).requests, stack(two).requests, two.peer_id


def streams(end: Libp2pNetwork, peer: PeerId) -> int:
    """How many were opened on the connections to this peer since they began."""
    connections = stack(end).host.get_network().connections[library_id(peer)]
    return sum(getattr(connection.muxed_conn, "next_stream_id", 0) for connection in connections)


async def test_questions_that_follow_each_other_share_a_stream_refusals_included() -> None:

    assert KEPT_S < WAITED_S
    async with two_ends(Recorder()) as (one, asking, answering, peer):
        await one.request(peer, "echo", b"first", timeout_s=PATIENCE_S)
        before = streams(one, peer)
        for number in range(10):
            data = b"%d" % number
            assert await one.request(peer, "echo", data, timeout_s=PATIENCE_S) == data
            with pytest.raises(Refused):
                await one.request(peer, "no", b"", timeout_s=PATIENCE_S)
        assert streams(one, peer) == before
        assert len(asking._kept._kept[peer]) == sum(answering._waiting.values()) and not answering._open


async def test_what_is_no_question_ends_a_stream_that_was_kept_and_has_its_price(monkeypatch: pytest.MonkeyPatch) -> None:
    penalised: list[PeerId] = []
    monkeypatch.setattr(Reputation, "penalise", lambda self, peer, penalty, why: penalised.append(peer))
    async with two_ends(Recorder()) as (one, asking, answering, peer):
        await one.request(peer, "echo", b"first", timeout_s=PATIENCE_S)
        kept = asking._kept._kept[peer]
        for each in kept:
            await each.stream.write(b"\xff\xff\xff\xff")
        await until(lambda: not answering._waiting)
        assert penalised == [one.peer_id] * len(kept)


async def test_a_question_goes_on_to_a_new_stream_when_the_other_end_has_closed_those_that_were_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "WAITED_S", 0.0)
    async with two_ends(Recorder()) as (one, asking, answering, peer):
        await one.request(peer, "echo", b"first", timeout_s=PATIENCE_S)
        await until(lambda: not answering._waiting)
        assert asking._kept._kept[peer]
        assert await one.request(peer, "echo", b"second", timeout_s=PATIENCE_S) == b"second"


async def test_what_is_no_name_of_a_protocol_ends_its_stream_alone() -> None:
    async with two_ends(Recorder()) as (one, asking, answering, peer):
        stream = await stack(one).host.get_network().new_stream(library_id(peer))
        await stream.write(b"\x13/multistream/1.0.0\n\x02\xff\n")
        with pytest.raises(StreamError), trio.fail_after(PATIENCE_S):
            while True:
                assert await stream.read(1)
        assert await one.request(peer, "echo", b"still here", timeout_s=PATIENCE_S) == b"still here"
