"""What a peer shows: pauses and the end are not painted over, and what others wait for is told at once."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from protocol.events.events import Event, PhaseChanged
from protocol.events.status import WhyIdle
from protocol.membership.activity import Activity, WorkPermit
from protocol.wire.presence import Phase


def show(activity: Activity, phase: Phase) -> Phase:
    """What it is after it was told to show this."""
    activity.show(phase, WhyIdle.BUSY, "")
    return activity.phase


def paused(activity: Activity) -> Phase:
    """What it is after its permit was suspended."""
    activity.permit.suspend(WhyIdle.PAUSED, "paused")
    return activity.phase


def resumed(activity: Activity) -> Phase:
    """What it is after the pause is over."""
    activity.permit.restore(WhyIdle.PAUSED)
    return activity.phase


def test_while_paused_only_the_end_is_shown() -> None:
    activity = Activity(lambda event: None)
    assert paused(activity) is Phase.PAUSED
    assert show(activity, Phase.COMPUTING) is Phase.PAUSED
    resumed(activity)
    assert show(activity, Phase.READY) is Phase.READY
    assert resumed(activity) is Phase.READY, "there was no pause to end"
    paused(activity)
    assert show(activity, Phase.STOPPING) is Phase.STOPPING
    assert show(activity, Phase.COMPUTING) is paused(activity) is Phase.STOPPING
    assert resumed(activity) is Phase.STOPPING


def test_a_peer_that_was_paused_before_it_began_begins_paused() -> None:
    permit, events, turns = WorkPermit(), list[Event](), list[bool]()
    permit.suspend(WhyIdle.PAUSED, "paused by you")
    permit.watch(lambda: turns.append(permit.is_granted))
    Activity(events.append, permit)
    permit.suspend(WhyIdle.TOO_HOT, "90 degrees")
    permit.restore(WhyIdle.PAUSED)
    permit.restore(WhyIdle.TOO_HOT)
    shown = [("paused", "paused by you"), ("too hot", "90 degrees"), ("starting", "")]
    told = [(event.why_idle, event.detail) for event in events if isinstance(event, PhaseChanged)]
    assert told == shown and turns == [False, True]


@pytest.mark.usefixtures("virtual_time")
async def test_phases_within_a_round_are_not_urgent_and_others_are() -> None:
    async def waited_s(phase: Phase) -> float:
        activity = Activity(lambda event: None)
        paused(activity) if phase is Phase.PAUSED else show(activity, phase)
        begun = trio.current_time()
        await activity.until_urgent(2.0)
        return trio.current_time() - begun

    phases = Phase.READY, Phase.VOTING, Phase.COMPUTING, Phase.PAUSED
    assert [await waited_s(phase) for phase in phases] == [2, 2, 0, 0]


def test_a_stage_of_a_round_is_no_reason_to_be_idle_while_it_trains_ahead() -> None:
    events: list[Event] = []
    activity = Activity(events.append)
    activity.train_on(True)
    activity.show(Phase.EXCHANGING, WhyIdle.EXCHANGING, "with 2 others")
    activity.stall(WhyIdle.FETCHING_DATA, "waiting for block 7")
    activity.end_stall()
    activity.train_on(False)
    activity.show(Phase.COMPUTING, WhyIdle.BUSY, "")
    activity.stall(WhyIdle.FETCHING_DATA, "waiting for block 8")
    activity.end_stall()
    assert events == [
        PhaseChanged("exchanging", "", "with 2 others"),
        PhaseChanged("exchanging", "fetching data", "waiting for block 7"),
        PhaseChanged("exchanging", "", "with 2 others"),
        PhaseChanged("exchanging", "exchanging", "with 2 others"),
        PhaseChanged("computing", "", ""),
        PhaseChanged("computing", "fetching data", "waiting for block 8"),
        PhaseChanged("computing", "", ""),
    ]


def test_a_peer_that_nobody_admits_says_why_until_somebody_does() -> None:
    activity = Activity(lambda event: None)
    activity.show(Phase.SYNCING, WhyIdle.FETCHING_STATE, "catching up with the swarm")
    activity.note_greeted("the token has expired,\x1b[2J by a clock that shows 2026-11-30")
    refused = "no peer has admitted this one: the token has expired,[2J by a clock that shows 2026-11-30"
    assert (activity.why, activity.detail) == (WhyIdle.CONNECTING, refused)
    activity.show(Phase.STARTING, WhyIdle.STARTING, "listening")
    assert activity.detail == refused
    activity.show(Phase.READY, WhyIdle.WAITING_FOR_MEMBERS, "1 ready, waiting for the proposal")
    assert (activity.why, activity.detail) == (WhyIdle.CONNECTING, refused), "nobody will propose anything to it"
    activity.show(Phase.COMPUTING, WhyIdle.BUSY, "")
    assert activity.detail == ""
    activity.show(Phase.STARTING, WhyIdle.STARTING, "listening")
    paused(activity)
    assert activity.detail == "paused"
    resumed(activity)
    activity.note_greeted(None)
    assert (activity.why, activity.detail) == (WhyIdle.STARTING, "listening")
    activity.note_greeted("go away")
    assert activity.detail == "listening", "others have admitted it"
