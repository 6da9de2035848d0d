"""When a demo calls its peers stalled: getting on is measured in steps, not in rounds."""

from __future__ import annotations

import math
from pathlib import Path

from peer.control.client import Stamped
from peer.demo.cast import DemoMember, DemoPart
from protocol.events import events as ev
from protocol.wire.presence import Role


def test_steps_evaluations_and_rounds_get_a_peer_on_and_repetitions_do_not() -> None:
    member = DemoMember(DemoPart("peer-1", Role.TRAINER), Path(), None)  # type: ignore[arg-type]

    def gets_on(event: ev.Event) -> bool:
        before = member.furthest
        member.apply(Stamped(0.0, 0.0, event))
        return member.furthest > before

    def step(round: int, steps: int) -> ev.Event:
        return ev.ComputeProgress(round, steps, 20, 2.0, 1000.0, 9.0)

    started = ev.TrainerStarted(17)
    assert gets_on(started) and not gets_on(started)
    assert gets_on(step(0, 1)) and gets_on(step(0, 2)) and not gets_on(step(0, 1))
    assert gets_on(ev.EvalProgress(0, 4, 10)) and not gets_on(ev.EvalProgress(0, 4, 10))
    assert gets_on(step(0, 3)) and not gets_on(step(0, 3))
    assert gets_on(ev.RoundCommitted(0, "", [], 0, math.nan, True)) and not gets_on(step(0, 20))
    assert gets_on(ev.EvalProgress(1, 4, 10)), "the last state, with nobody training any more"
    assert not gets_on(ev.PhaseChanged("seeding", "", ""))
