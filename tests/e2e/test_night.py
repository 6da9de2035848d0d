"""A little of `python -m tests.e2e.night`: what no other test does, a router restarts and a disk has no room."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.home_troubles import Lengths
from tests.e2e.night import A_MOMENT, RUN, Reading, at_home, grown, meet, memory_trend, read
from tests.routers.homes import why_not

WHY_NOT = why_not()
SHORT_ROUNDS = RUN.replace("inner_steps = 1000", "inner_steps = 200")
BRIEF = Lengths(sleep_s=5.0, router_s=5.0, full_s=1.0)


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_a_peer_comes_back_by_itself_from_a_full_disk_and_after_its_router(tmp_path: Path) -> None:
    with at_home(tmp_path, BRIEF, SHORT_ROUNDS) as (swarm, peer, troubles):
        began = time.monotonic()
        for what in ("disk full", "router off, new address outside"):
            met = meet(swarm, peer, what, troubles, began)
            assert met.what == what and peer.lives == 1
        assert all("/tcp/4001" in address for address in peer.status()["addresses"]), "it has its port again"
        now = read(peer, began)
        assert now.records == now.rounds > 0 and now.tasks > 0 and now.descriptors > 0


def test_what_grows_is_told_by_the_first_and_the_last_third_after_the_warm_up() -> None:
    first = Reading(100.0, 10, "volunteer", 150.0, 40, 9, 90, 30, 10**6, 10)
    others = [replace(first, at_s=at) for at in (300.0, 500.0, 700.0, 900.0)]

    def told(last: Reading = first) -> list[str]:
        late = [replace(last, at_s=at) for at in (1100.0, 1190.0)]
        return grown([replace(first, tasks=10), *others, *late], 1200.0)

    assert told() == told(replace(first, tasks=90 + A_MOMENT, memory_mb=164.0, records=900)) == []
    assert told(replace(first, tasks=91 + A_MOMENT)) == ["volunteer: tasks grew from 90 to 99"]
    assert told(replace(first, memory_mb=170.0)) == ["volunteer: memory grew from 150 to 170 MB"]
    assert len(told(replace(first, descriptors=60, threads=20, files=50))) == 3


def test_the_trend_of_memory_is_that_after_the_warm_up() -> None:
    at = [Reading(float(at), 1, "volunteer", 100 + at / 360, 1, 1, 1, 1, 1, 1) for at in range(200, 1200, 100)]
    early = replace(at[0], at_s=0.0, memory_mb=20.0)
    assert memory_trend([early, *at], "volunteer", 1200.0) == pytest.approx(10.0)
