"""What a rollout peer or a validator shows: its work, or one reason, and neither over a pause nor over a round's phases."""

from __future__ import annotations

from protocol.events.events import Event, PhaseChanged
from protocol.events.status import WhyIdle
from protocol.membership.activity import Activity
from protocol.rollouts.trainer import LASTS_S, WorkStatus
from protocol.wire.presence import Phase, Role


class Shown:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.activity = Activity(self.events.append)
        self.occupation = WorkStatus(self.activity, Role.VALIDATOR)

    @property
    def now(self) -> tuple[Phase, WhyIdle]:
        return self.activity.phase, self.activity.why


def test_before_its_turn_nothing_is_shown_and_then_what_is_so() -> None:
    shown = Shown()
    shown.occupation.idles(WhyIdle.NOTHING_TO_CHECK, "nothing", 0)
    assert shown.now == (Phase.STARTING, WhyIdle.STARTING)
    shown.occupation.show()
    assert shown.now == (Phase.VERIFYING, WhyIdle.NOTHING_TO_CHECK)
    shown.occupation.works()
    assert shown.now == (Phase.VERIFYING, WhyIdle.BUSY)


def test_a_short_gap_is_no_idleness_and_another_reason_is_shown_at_once() -> None:
    shown = Shown()
    shown.occupation.show()
    for now in range(100):
        shown.occupation.works()
        shown.occupation.idles(WhyIdle.NOTHING_TO_CHECK, "nothing", now)
    assert shown.now == (Phase.VERIFYING, WhyIdle.BUSY)
    assert sum(isinstance(event, PhaseChanged) for event in shown.events) == 2
    shown.occupation.idles(WhyIdle.NOTHING_TO_CHECK, "nothing", 99 + LASTS_S)
    assert shown.now == (Phase.VERIFYING, WhyIdle.NOTHING_TO_CHECK)
    shown.occupation.idles(WhyIdle.TRAINER_RESTARTING, "the trainer stopped", 99 + LASTS_S)
    assert shown.now == (Phase.VERIFYING, WhyIdle.TRAINER_RESTARTING)


def test_a_pause_and_a_rounds_phases_are_not_painted_over() -> None:
    shown = Shown()
    shown.occupation.show()
    shown.occupation.works()
    shown.activity.show(Phase.APPLYING, WhyIdle.COMMITTING, "")
    shown.occupation.idles(WhyIdle.TRAINER_RESTARTING, "", LASTS_S)
    shown.occupation.idles(WhyIdle.TRAINER_RESTARTING, "", 2 * LASTS_S)
    assert shown.now == (Phase.APPLYING, WhyIdle.COMMITTING)
    shown.occupation.show()
    assert shown.now == (Phase.VERIFYING, WhyIdle.TRAINER_RESTARTING)
    shown.activity.show(Phase.PAUSED, WhyIdle.PAUSED, "paused")
    shown.occupation.works()
    assert shown.now == (Phase.PAUSED, WhyIdle.PAUSED)
    shown.activity.resume()
    assert shown.now == (Phase.VERIFYING, WhyIdle.BUSY)
