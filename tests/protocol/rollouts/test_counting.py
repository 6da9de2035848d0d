"""A peer's figures about rollouts, counted from what it tells."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from protocol.events.events import (
    BatchDecided,
    BatchJudged,
    Event,
    RolloutPeerSetAside,
    RolloutsCounted,
    RolloutsGenerated,
)
from protocol.events.status import RolloutStatus
from protocol.rollouts.rollouts import RATE_S, RolloutCounter
from protocol.wire.identity import PeerId

pytestmark = pytest.mark.usefixtures("virtual_time")

ME, ANN = PeerId("me"), PeerId("ann")


async def told(*events: Event, wait_s: float = 0.0) -> tuple[RolloutStatus, list[Event]]:
    """The status `wait_s` seconds after these events, and what was handed on."""
    emitted: list[Event] = []
    counting = RolloutCounter(ME, emitted.append)
    await trio.sleep(RATE_S)
    for event in events:
        counting(event)
    await trio.sleep(wait_s)
    return counting.status(7, 2), emitted


async def test_a_rollout_peer_is_told_what_it_makes_and_what_becomes_of_it() -> None:
    events = [
        *(RolloutsGenerated(3, number, f"{number}", 8, 100, 900, 2.0) for number in range(3)),
        BatchJudged(ME, 3, 0, "0", ANN, 8, 0, 0, []),
        BatchJudged(ME, 3, 1, "1", ANN, 0, 8, 0, ["copied"]),
        RolloutsCounted(6, 0.5, 1, 100, {ME: 100}, 0, ["0"]),
        RolloutPeerSetAside(ANN, "x"),
    ]
    status, emitted = await told(*events)
    assert emitted == events
    assert (status.version, status.waiting, status.reward) == (7, 2, 0.5)
    assert (status.generated, status.accepted, status.rejected, status.accepted_tokens) == (3, 1, 1, 100)
    assert status.generated_tokens_per_s == 50 and status.set_aside == 1


async def test_a_validators_rate_is_that_of_the_last_minute() -> None:
    judged = [BatchJudged(ANN, 3, number, f"{number}", ME, 30, 0, 0, []) for number in range(2)]
    by_another = [BatchJudged(ANN, 3, 0, "0", ANN, 30, 0, 0, [])]
    for events, wait_s, rate in ((judged, 0.0, 60 / RATE_S), (judged, RATE_S + 1, 0), (by_another, 0.0, 0)):
        status, _ = await told(*events, wait_s=wait_s)
        assert status.verified_per_s == rate


async def test_a_trainers_verdicts_are_counted() -> None:
    decided = [BatchDecided(ANN, 3, at, f"{at}", verdict, "", 8, True) for at, verdict in enumerate(("accepted", "stale"))]
    status, _ = await told(*decided)
    assert (status.accepted, status.stale, status.rejected, status.reward) == (1, 1, 0, None)
