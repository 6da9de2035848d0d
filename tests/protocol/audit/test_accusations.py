"""Accusations cost their authors nothing: what they cost us is bounded, and members come before strangers."""

from __future__ import annotations

import trio
import trio.testing

from protocol.audit.ejection import (
    MAX_PENDING,
    STRANGER_BYTES,
    STRANGER_PLACES,
    STRANGERS_BYTES_PER_S,
    AccusationOutcome,
    Accusations,
)
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Accusation
from tests.protocol.peers import ANN, BOB

MEMBER = Identity.from_seed(b"\x0a" * 32).peer_id


def accusation(number: int, size: int = 100) -> Accusation:
    return Accusation(accused=BOB.peer_id, evidence=number.to_bytes(32, "big"), size=size)


def stranger(number: int) -> PeerId:
    return PeerId(f"stranger {number}")


def in_virtual_time(check: object) -> None:
    trio.run(check, clock=trio.testing.MockClock(autojump_threshold=0))  # type: ignore[arg-type]


async def test_one_accuser_has_one_accusation_pending() -> None:
    await trio.lowlevel.checkpoint()
    accusations = Accusations()
    assert accusations.hear(ANN.peer_id, accusation(1), is_member=False) is AccusationOutcome.NEW
    assert accusations.hear(ANN.peer_id, accusation(2), is_member=False) is AccusationOutcome.UNWANTED
    assert accusations.hear(ANN.peer_id, accusation(1), is_member=False) is AccusationOutcome.UNWANTED
    with accusations.open(accusation(1)):
        pass
    assert accusations.hear(ANN.peer_id, accusation(2), is_member=False) is AccusationOutcome.NEW


async def test_strangers_that_fill_their_places_keep_no_member_out() -> None:
    accusations = Accusations()
    for number in range(MAX_PENDING):
        assert accusations.hear(stranger(number), accusation(number), is_member=False) is AccusationOutcome.NEW
    assert accusations.hear(ANN.peer_id, accusation(200), is_member=False) is AccusationOutcome.UNWANTED
    assert accusations.hear(MEMBER, accusation(200), is_member=True) is AccusationOutcome.NEW
    async with trio.open_nursery() as nursery:
        for _ in range(STRANGER_PLACES + 3):
            nursery.start_soon(_hold, accusations)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(0.1):
            async with accusations.room(64 << 20, is_member=True):
                pass
        nursery.cancel_scope.cancel()


async def _hold(accusations: Accusations) -> None:
    async with accusations.room(1, is_member=False):
        await trio.sleep_forever()


async def test_all_strangers_together_have_a_budget_of_bytes() -> None:
    accusations, size = Accusations(), STRANGER_BYTES // 4
    assert accusations.hear(stranger(0), accusation(0, STRANGER_BYTES + 1), is_member=False) is AccusationOutcome.UNWANTED
    heard = [accusations.hear(stranger(number), accusation(number, size), is_member=False) for number in range(8)]
    assert heard == [AccusationOutcome.NEW] * 4 + [AccusationOutcome.UNWANTED] * 4
    assert accusations.hear(stranger(9), accusation(0, size), is_member=False) is AccusationOutcome.JOINED, (
        "it is fetched once"
    )
    assert accusations.hear(MEMBER, accusation(10, 64 << 20), is_member=True) is AccusationOutcome.NEW
    await trio.sleep(size / STRANGERS_BYTES_PER_S)
    assert accusations.hear(stranger(11), accusation(11, size), is_member=False) is AccusationOutcome.NEW


async def test_places_and_bytes_are_given_back() -> None:
    accusations = Accusations()
    for _ in range(5):
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(_pass, accusations)


async def _pass(accusations: Accusations) -> None:
    async with accusations.room(STRANGER_BYTES // 2, is_member=False):
        await trio.sleep(1)


async def test_who_fails_again_waits_twice_as_long() -> None:
    accusations, waits = Accusations(), []
    for _ in range(3):
        assert accusations.hear(ANN.peer_id, accusation(1), is_member=False) is AccusationOutcome.NEW
        with accusations.open(accusation(1)) as case, case.turn() as turn:
            assert turn == (ANN.peer_id, False)
            accusations.failed(case, ANN.peer_id)
        began = trio.current_time()
        while accusations.hear(ANN.peer_id, accusation(1), is_member=False) is not AccusationOutcome.NEW:
            await trio.sleep(1)
        with accusations.open(accusation(1)):
            pass
        waits.append(round(trio.current_time() - began))
    assert waits == [30, 60, 120]
