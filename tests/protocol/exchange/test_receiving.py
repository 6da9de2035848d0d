"""Pushes that an exchange has no place for are refused before any of their bytes are read."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kernels.layout import chunk_layout, payload_bytes
from protocol.exchange.buffers import BufferPool, WaitingParts
from protocol.exchange.chunks import Results
from protocol.exchange.machine import ExchangeMachine
from protocol.exchange.messages import PushHeader
from protocol.exchange.receiving import Receiver
from protocol.wire.hashes import ZERO_HASH, Hash
from protocol.wire.identity import Identity
from protocol.wire.messages import Plan
from tests.protocol.members import a_member

ME, OTHER, STRANGER = (Identity.from_seed(bytes([number]) * 32).peer_id for number in range(3))
LAYOUT = chunk_layout(2500, 1024)
PLAN = Plan(
    round=0,
    fragment=0,
    base=ZERO_HASH,
    owners=bytes([0, 1, 0]),
    state_digest=ZERO_HASH,
    members=[a_member(peer) for peer in sorted([ME, OTHER])],
)


def receiver() -> Receiver:
    machine, pool = ExchangeMachine(ME, PLAN, 10.0, now=0.0), BufferPool()
    results = Results(memoryview(bytearray(payload_bytes(LAYOUT))), LAYOUT)
    return Receiver(machine, LAYOUT, Hash(ZERO_HASH), WaitingParts(machine.others, pool), results, pool, lambda event: None)


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
def test_a_part_is_taken_if_the_plan_has_it(changes: dict[str, Any], peer: Any, size: int, taken: bool) -> None:
    fields: dict[str, Any] = {"plan": ZERO_HASH, "fragment": 0, "chunk": 0, "proof": [], "statement": None}
    header = PushHeader(**{**fields, **changes}).encode()

    async def main() -> None:
        assert (await receiver().open(peer, header, size) is not None) is taken

    trio.run(main)
