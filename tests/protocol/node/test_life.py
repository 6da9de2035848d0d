"""The two ends of a life: what a first round waits for, and when the last deliveries are over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from protocol.agreement.events import Forward
from protocol.chain.electorate import Roster
from protocol.events.status import WhyIdle
from protocol.membership.activity import Activity
from protocol.node.lifecycle import StartupBarrier
from protocol.node.round_parts import Deliveries
from protocol.run.invitation import Anchor
from protocol.run.settings import NodeSettings
from protocol.transport.handlers import Guard
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role
from tests.protocol.council import SETTINGS
from tests.protocol.peers import ANN

pytestmark = pytest.mark.usefixtures("virtual_time")


@pytest.mark.parametrize(
    ("length", "tip", "begins"), [(0, 0, False), (6, 0, False), (7, 0, True), (9, 0, True), (7, 1, False)]
)
async def test_a_round_begins_when_the_record_of_the_invitation_is_here(length: int, tip: int, begins: bool) -> None:
    settings = NodeSettings("me", Role.TRAINER, "0", 1, anchor=Anchor(rounds=7, tip=bytes(32)))
    replica: Any = SimpleNamespace(
        rounds=SimpleNamespace(min_members=1),
        history=SimpleNamespace(length=length, tip_at=lambda rounds: bytes([tip]) * 32, roster=Roster.start(SETTINGS)),
    )
    membership: Any = SimpleNamespace(live_peers=list, started=0.0)
    session: Any = SimpleNamespace(me="me", network=SimpleNamespace(connected=list))
    claims: Any = None
    files: Any = None
    activity = Activity(lambda event: None)
    gathering = StartupBarrier(session, replica, settings, membership, claims, activity, files)
    assert await gathering.may_begin() is begins
    assert begins or (activity.why is WhyIdle.CONNECTING and "ask for a new invitation" in activity.detail)


@pytest.mark.parametrize("durations", [[], [1.0], [1.0, 3.0, 2.0]])
@pytest.mark.parametrize("outlives_round", [False, True])
async def test_it_is_over_when_the_last_delivery_is(outlives_round: bool, durations: list[float]) -> None:
    """A leaver hands its last statements over and waits at once, before their tasks have taken a step."""

    async def request(peer: PeerId, kind: str, raw: bytes, *, timeout_s: float) -> None:
        await trio.sleep(float(raw))

    inbox: Any = None
    peers: Any = SimpleNamespace(session=SimpleNamespace(network=SimpleNamespace(request=request)))
    peers.guard = guard = Guard(peers.session)
    deliveries = Deliveries(peers)
    async with guard.open(), trio.open_nursery() as nursery:
        began = trio.current_time()
        for seconds in durations:
            statement = Forward(ANN.peer_id, "vote", str(seconds).encode())
            deliveries.send(statement, inbox, None if outlives_round else nursery)
        await deliveries.delivered()
        assert trio.current_time() - began == max(durations, default=0.0)
    deliveries.send(Forward(ANN.peer_id, "vote", b"1.0"), inbox, None)
    await deliveries.delivered()
    assert trio.current_time() - began == max(durations, default=0.0), "the guard is closed, so nothing is under way"
