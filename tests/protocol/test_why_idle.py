"""Sentences about waiting that hold wherever they are shown: at the start, to a founder, alone, and from disk."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from protocol.chain.electorate import Roster
from protocol.events.events import PhaseChanged
from protocol.events.status import REMEDIES, WhyIdle
from protocol.membership.activity import Activity
from protocol.node.lifecycle import StartupBarrier
from protocol.node.round_parts import RoundReport
from protocol.run.invitation import Anchor
from protocol.run.settings import NodeSettings
from protocol.wire.presence import Phase, Role
from tests.protocol.council import SETTINGS

pytestmark = pytest.mark.usefixtures("virtual_time")

ROSTER = Roster.start(SETTINGS)
ONLY_FOR_GUESTS = "INVITATION"
"""In remedies that nobody without an invitation can follow."""


class Stage:
    """A peer that gathers; what it shows is in `told`."""

    def __init__(self, *, invited: bool = False, anchored: bool = False, connected: int = 0, least: int = 1) -> None:
        self.told: list[tuple[WhyIdle, str]] = []
        anchor = Anchor(rounds=7, tip=bytes(32)) if anchored else None
        settings = NodeSettings("me", Role.TRAINER, "0", 1, wait_for_contact=invited, anchor=anchor)
        replica: Any = SimpleNamespace(
            rounds=SimpleNamespace(min_members=least), history=SimpleNamespace(length=0, roster=ROSTER)
        )
        membership: Any = SimpleNamespace(live_peers=list, started=0.0, get=lambda peer: None)
        session: Any = SimpleNamespace(
            me="me", network=SimpleNamespace(connected=lambda: [str(n) for n in range(connected)])
        )
        claims: Any = SimpleNamespace(who_has_begun=list)
        files: Any = None
        activity = Activity(self.note)
        self.gathering = StartupBarrier(session, replica, settings, membership, claims, activity, files)

    def note(self, event: object) -> None:
        assert isinstance(event, PhaseChanged)
        self.told.append((WhyIdle(event.why_idle), event.detail))

    def run(self) -> list[tuple[WhyIdle, str]]:
        async def main() -> None:
            await self.gathering.listen()
            membership: Any = self.gathering._membership
            membership.started = trio.current_time()
            await self.gathering.may_begin()

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
        return self.told


@pytest.mark.parametrize(
    ("stage", "last"),
    [
        ({}, WhyIdle.STARTING),
        ({"connected": 1}, WhyIdle.STARTING),
        ({"connected": 3}, WhyIdle.STARTING),
        ({"least": 2}, WhyIdle.WAITING_FOR_PEERS),
        ({"least": 2, "connected": 1}, WhyIdle.STARTING),
    ],
)
def test_a_founder_is_not_sent_to_the_invitation_that_it_has_not(stage: dict[str, int], last: WhyIdle) -> None:
    told = Stage(**stage).run()  # type: ignore[arg-type]
    assert told[-1][0] is last
    for why, detail in told:
        assert ONLY_FOR_GUESTS not in REMEDIES[why] and "invitation" not in detail, (why, detail)


@pytest.mark.parametrize("stage", [{"invited": True}, {"anchored": True}, {"invited": True, "least": 3}])
def test_a_guest_that_nobody_answers_is_sent_to_the_doctor(stage: dict[str, Any]) -> None:
    why, detail = Stage(**stage).run()[-1]
    assert why is WhyIdle.CONNECTING and "invitation" in detail and ONLY_FOR_GUESTS in REMEDIES[why]


@pytest.mark.parametrize("why", [each for each in REMEDIES if each is not WhyIdle.CONNECTING])
def test_only_who_connects_by_an_invitation_is_told_of_one(why: WhyIdle) -> None:
    assert ONLY_FOR_GUESTS not in REMEDIES[why]


async def test_a_long_exchange_says_for_whom_and_then_for_what_it_waits() -> None:
    activity = Activity(lambda event: None)
    membership: Any = SimpleNamespace(name=lambda peer: {"x": "kitchen", "y": "attic"}[peer])
    report = RoundReport(SimpleNamespace(), membership, activity, abstains=False)  # type: ignore[arg-type]
    awaited = ["x", "y"]
    exchange: Any = SimpleNamespace(done=trio.Event(), machine=SimpleNamespace(waiting_for=lambda: awaited))
    plan: Any = SimpleNamespace(members=[None] * 3, round=41)
    told: list[tuple[float, str]] = []
    begun = trio.current_time()
    report.exchanging(plan)
    for tick in range(80):
        report.exchange_waits(exchange)
        if not told or told[-1][1] != activity.detail:
            told.append((trio.current_time() - begun, activity.detail))
        if tick == 30:
            awaited.remove("x")
        if tick == 50:
            exchange.done.set()
        await trio.sleep(0.25)
    activity.show(Phase.VOTING, WhyIdle.COMMITTING, "voted, waiting for the quorum")
    await trio.sleep(10)
    report.exchange_waits(exchange)
    assert told == [
        (0, "with 2 others"),
        (5, "with 2 others, waiting for kitchen, attic"),
        (10, "with 2 others, waiting for attic"),
        (15, "all parts are averaged here; waiting for the others, and for the record proposal"),
    ]
    assert activity.detail == "voted, waiting for the quorum"


@pytest.mark.parametrize(
    ("awaited", "settles", "phase", "detail"),
    [
        (["x"], False, Phase.READY, "1 ready, waiting for kitchen"),
        ([], False, Phase.READY, "1 ready, waiting for the proposal"),
        (["me", "x"], False, Phase.SYNCING, "no peer sent us 5 parts of the result of round 0 in 3 tries"),
        ([], True, Phase.SYNCING, "no peer sent us 5 parts of the result of round 0 in 3 tries"),
    ],
    ids=["somebody", "nobody", "for us: what we do is shown", "it votes or fetches a result"],
)
def test_a_peer_says_whom_a_round_waits_for(awaited: list[str], settles: bool, phase: Phase, detail: str) -> None:
    activity = Activity(lambda event: None)
    membership: Any = SimpleNamespace(name=lambda peer: "kitchen")
    report = RoundReport(SimpleNamespace(me="me"), membership, activity, abstains=False)  # type: ignore[arg-type]
    machine: Any = SimpleNamespace(waiting_for=lambda view: awaited, ready_count=1, is_settling=settles)
    activity.show(Phase.SYNCING, WhyIdle.FETCHING_STATE, "no peer sent us 5 parts of the result of round 0 in 3 tries")
    report.waiting(machine, None, 1)  # type: ignore[arg-type]
    assert (activity.phase, activity.detail) == (phase, detail)
