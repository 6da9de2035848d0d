"""The averages that one member computes at a time are few, however many chunks it owns."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import trio
import trio.testing

from kernels.codecs.format import HEADER_BYTES
from kernels.codecs.ladder import LADDER
from kernels.layout import chunk_layouts
from protocol.allreduce.assignment import contribution_leaves
from protocol.allreduce.buffers import ExchangeBuffers, OwnParts
from protocol.allreduce.lateness import ExchangeLimits
from protocol.allreduce.machine import Averaged, ContributionReady, ExchangeMachine, Reduce
from protocol.allreduce.runner import AVERAGES_AT_ONCE, Averager
from protocol.wire.hashes import ZERO_HASH
from protocol.wire.identity import Identity
from protocol.wire.messages import Plan
from tests.protocol.members import a_member

ME = Identity.from_seed(bytes(32)).peer_id
CHUNKS = 5 * AVERAGES_AT_ONCE
LAYOUTS = chunk_layouts(LADDER["int4"], 1024 * CHUNKS, 1024)
LAYOUT = LAYOUTS.contribution


async def test_a_lone_member_averages_all_chunks_a_few_at_a_time() -> None:
    plan = Plan(round=0, fragment=0, base=ZERO_HASH, owners=bytes(CHUNKS), state_digest=ZERO_HASH, members=[a_member(ME)])
    own, result = (memoryview(bytearray(LAYOUT.payload_bytes)) for _ in range(2))
    for span in LAYOUT:
        LAYOUT.format.encode(np.linspace(-1, 1, span.count, dtype=np.float32), own[span.encoded])
    machine = ExchangeMachine(ME, plan, ExchangeLimits(10.0), now=0.0)
    buffers = ExchangeBuffers(OwnParts(own, contribution_leaves(ME, own, LAYOUT), LAYOUTS), result, machine.others)
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
    bodies = [[data[span.encoded][HEADER_BYTES:] for span in LAYOUT] for data in (own, result)]
    assert bodies[0] == bodies[1], "the mean of one"
