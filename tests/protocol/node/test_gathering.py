"""No round begins before the record that an invitation names is here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from protocol.chain.electorate import Roster
from protocol.events.status import WhyIdle
from protocol.membership.activity import Activity
from protocol.node.lifecycle import StartupBarrier
from protocol.run.invitation import Anchor
from protocol.run.settings import NodeSettings
from protocol.wire.presence import Role
from tests.protocol.council import SETTINGS


@pytest.mark.parametrize(
    ("length", "tip", "begins"), [(0, 0, False), (6, 0, False), (7, 0, True), (9, 0, True), (7, 1, False)]
)
def test_a_round_begins_when_the_record_of_the_invitation_is_here(length: int, tip: int, begins: bool) -> None:
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

    async def main() -> None:
        assert await gathering.may_begin() is begins

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert begins or (activity.why is WhyIdle.CONNECTING and "ask for a new invitation" in activity.detail)
