"""What an exchange receives, where it waits, and how it is averaged."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from kernels.codecs.format import HEADER_BYTES
from kernels.codecs.ladder import LADDER
from kernels.layout import chunk_layouts
from protocol.allreduce.assignment import contribution_leaves, plan_hash
from protocol.allreduce.buffers import PART_BUFFERS, BufferPool, ExchangeBuffers, OwnParts, WaitingParts, share_of_buffers
from protocol.allreduce.lateness import ExchangeLimits
from protocol.allreduce.machine import Averaged, ContributionReady, ExchangeMachine, Moving, Reduce
from protocol.allreduce.runner import AVERAGES_AT_ONCE, Averager, PushHeader, Receiver, entry_of
from protocol.events.events import Dropped, Event
from protocol.transport.interface import Offence
from protocol.wire.hashes import ZERO_HASH, Hash, chunk_hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import ChunkResult, Plan, pack
from tests.protocol.members import a_plan_of

pytestmark = pytest.mark.usefixtures("virtual_time")

# -- buffers --------------------------------------------------------------------------------------------------------------

ONE, ANOTHER = PeerId("one"), PeerId("other")


async def test_a_sender_with_its_share_waits_until_a_chunk_is_dropped_or_a_push_breaks_off() -> None:
    pool = BufferPool()
    parts = WaitingParts([ONE, ANOTHER], pool)
    room: list[PeerId] = []

    async def reserve(peer: PeerId) -> None:
        await parts.reserve(peer)
        room.append(peer)

    for chunk in range(share_of_buffers(2)):
        await reserve(ONE)
        if chunk:
            parts.arrived(ONE)
            parts.put(chunk, ONE, pool.take(4))
    room.clear()
    async with trio.open_nursery() as nursery:
        for peer in (ONE, ONE, ANOTHER):
            nursery.start_soon(reserve, peer)
        await wait_all_tasks_blocked()
        assert room == [ANOTHER], "the other's share is its own"
        assert parts.held() == [ONE]
        parts.drop(1)
        await wait_all_tasks_blocked()
        assert sorted(room) == [ONE, ANOTHER] and (1, ONE) not in parts and (2, ONE) in parts
        parts.arrived(ONE)  # the first push broke off
        await wait_all_tasks_blocked()
        assert sorted(room) == [ONE, ONE, ANOTHER]
        assert parts.held() == []


# -- receiving ------------------------------------------------------------------------------------------------------------

IDENTITIES = [Identity.from_seed(bytes([number]) * 32) for number in range(3)]
ME, OTHER, STRANGER = (identity.peer_id for identity in IDENTITIES)
LAYOUTS = chunk_layouts(LADDER["int4"], 2500, 1024)
LAYOUT = LAYOUTS.contribution
PLAN = a_plan_of(sorted([ME, OTHER]), [0, 1, 0])


def receiver(told: list[Event] | None = None, plan: Plan = PLAN) -> Receiver:
    machine = ExchangeMachine(ME, plan, ExchangeLimits(10.0), now=0.0)
    own, result = (memoryview(bytearray(LAYOUT.payload_bytes)) for _ in range(2))
    buffers = ExchangeBuffers(OwnParts(own, contribution_leaves(ME, own, LAYOUT), LAYOUTS), result, machine.others)
    emit = (told if told is not None else []).append
    return Receiver(machine, Hash(ZERO_HASH), buffers, emit)


@pytest.mark.parametrize(
    ("changes", "peer", "size", "taken"),
    [
        ({}, OTHER, LAYOUT[0].size, True),
        ({"chunk": 2}, OTHER, LAYOUT[2].size, True),
        ({"fragment": 1}, OTHER, LAYOUT[0].size, False),
        ({"chunk": 3}, OTHER, LAYOUT[0].size, False),
        ({"chunk": 2}, OTHER, LAYOUT[0].size, False),
        ({}, STRANGER, LAYOUT[0].size, False),
    ],
    ids=["a part", "a short part", "another fragment", "no such chunk", "another size", "a stranger"],
)
async def test_a_part_is_taken_if_the_plan_has_it(changes: dict[str, Any], peer: Any, size: int, taken: bool) -> None:
    fields: dict[str, Any] = {"plan": ZERO_HASH, "fragment": 0, "chunk": 0, "proof": [], "statement": None}
    header = PushHeader(**{**fields, **changes}).encode()
    assert (await receiver().open(peer, header, size) is not None) is taken


@pytest.mark.parametrize(
    ("signer", "chunk", "taken", "reason"),
    [
        (OTHER, 1, True, None),
        (OTHER, 0, False, None),
        (STRANGER, 1, False, "a result that no member signed"),
    ],
    ids=["its owner's", "one made out of turn", "a stranger's"],
)
async def test_a_result_is_taken_if_it_was_its_signers_turn(
    signer: PeerId, chunk: int, taken: bool, reason: str | None
) -> None:
    """We own the first and the last chunk, and the other member the one between them."""
    identity = next(identity for identity in IDENTITIES if identity.peer_id == signer)
    place = [member.peer for member in PLAN.members].index(OTHER)
    plan = PLAN.model_copy(update={"owners": bytes([1 - place, place, 1 - place])})
    told: list[Event] = []
    taker = receiver(told, plan)
    result = ChunkResult(plan=plan_hash(plan), chunk=chunk, entry=entry_of(chunk_hash(b"average"), range(2), 2))
    statement = pack(identity, Hash(ZERO_HASH), result).raw
    header = PushHeader(plan=plan_hash(plan), fragment=0, chunk=chunk, proof=[], statement=statement).encode()
    assert (await taker.open(OTHER, header, LAYOUT[chunk].size) is not None) is taken
    assert [event.reason for event in told if isinstance(event, Dropped)] == ([reason] if reason is not None else [])


async def test_bytes_that_have_come_since_the_last_look_are_told_and_who_waits_for_room() -> None:
    header = PushHeader(plan=plan_hash(PLAN), fragment=0, chunk=0, proof=[], statement=None).encode()
    taker = receiver()
    assert taker.moving() == []
    landings = [await taker.open(OTHER, header, LAYOUT[0].size) for _ in range(PART_BUFFERS)]
    assert taker.moving() == [], "an announcement is no byte"
    landing = landings[-1]
    assert landing is not None
    landing.on_bytes()
    assert taker.moving() == [Moving(OTHER, held=False)] and taker.moving() == []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(taker.open, OTHER, header, LAYOUT[0].size)
        await wait_all_tasks_blocked()
        assert taker.moving() == [Moving(OTHER, held=True)]
        nursery.cancel_scope.cancel()
    assert taker.moving() == []


async def test_a_part_that_is_not_what_its_sender_committed_to_is_an_offence() -> None:
    told: list[Event] = []
    plan = PLAN.model_copy(update={"owners": bytes([[member.peer for member in PLAN.members].index(ME)] * 3)})
    header = PushHeader(plan=plan_hash(plan), fragment=0, chunk=0, proof=[], statement=None).encode()
    taker = receiver(told, plan)
    landing = await taker.open(OTHER, header, LAYOUT[0].size)
    assert landing is not None
    landing.complete()
    with pytest.raises(Offence):
        taker.finish(OTHER, header, landing)
    assert taker.finish(OTHER, header, None) is None, "what broke off is nobody's fault"
    assert [event.reason for event in told if isinstance(event, Dropped)] == [
        "a part that differs from the part to which its sender committed"
    ]


# -- averaging ------------------------------------------------------------------------------------------------------------

CHUNKS = 5 * AVERAGES_AT_ONCE
MANY_LAYOUTS = chunk_layouts(LADDER["int4"], 1024 * CHUNKS, 1024)
MANY = MANY_LAYOUTS.contribution


async def test_a_lone_member_averages_all_chunks_a_few_at_a_time() -> None:
    plan = a_plan_of([ME], bytes(CHUNKS))
    own, result = (memoryview(bytearray(MANY.payload_bytes)) for _ in range(2))
    for span in MANY:
        MANY.format.encode(np.linspace(-1, 1, span.count, dtype=np.float32), own[span.encoded])
    machine = ExchangeMachine(ME, plan, ExchangeLimits(10.0), now=0.0)
    buffers = ExchangeBuffers(OwnParts(own, contribution_leaves(ME, own, MANY), MANY_LAYOUTS), result, machine.others)
    running, counts, averaged = 0, list[int](), list[Averaged]()

    async def offload(function: Callable[..., Any], *arguments: object) -> Any:
        nonlocal running
        running += 1
        counts.append(running)
        await trio.testing.wait_all_tasks_blocked()
        running -= 1
        return function(*arguments)

    async def reduce(averager: Averager, effect: Reduce) -> None:
        done = await averager.reduce(effect)
        assert done is not None
        averaged.append(done)

    session: Any = SimpleNamespace(seal=lambda body: body)
    averager = Averager(machine, session, buffers, offload, "mean")
    async with trio.open_nursery() as nursery:
        for effect in machine.handle(ContributionReady(), 0.0):
            assert isinstance(effect, Reduce)
            nursery.start_soon(reduce, averager, effect)
    assert {each.chunk for each in averaged} == {*range(CHUNKS)} and max(counts) == AVERAGES_AT_ONCE
    bodies = [[data[span.encoded][HEADER_BYTES:] for span in MANY] for data in (own, result)]
    assert bodies[0] == bodies[1], "the mean of one"
