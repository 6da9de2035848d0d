"""A little of `python -m tests.e2e.night`: what no other test does, a router restarts and a disk has no room."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.home_troubles import Lengths
from tests.e2e.night import RUN, Reading, at_home, grown, meet, memory_trend, read
from tests.routers.homes import why_not

WHY_NOT = why_not()
SHORT_ROUNDS = RUN.replace("inner_steps = 200", "inner_steps = 100")
BRIEF = Lengths(sleep_s=5.0, router_s=5.0, full_s=1.0)


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
@pytest.mark.slow
def test_a_peer_comes_back_by_itself_from_a_full_disk_and_after_its_router(tmp_path: Path) -> None:
    with at_home(tmp_path, BRIEF, SHORT_ROUNDS) as (swarm, peer, troubles):
        began = time.monotonic()
        for what in ("disk full", "router off, new address outside"):
            met = meet(swarm, peer, what, troubles, began)
            assert met.what == what and peer.lives == 1
        assert all("/tcp/4001" in address for address in peer.status()["addresses"]), "it has its port again"
        now = read(peer, began)
        assert now.records == now.rounds > 0 and now.tasks > 0 and now.descriptors > 0


def test_what_grows_is_told_by_the_medians_of_the_first_and_the_last_third() -> None:
    first = Reading(0.0, 500, "volunteer", 150.0, 40, 9, 90, 30, 10**6, 500)
    early = [replace(first, at_s=at) for at in (0.0, 100.0, 200.0)]

    def told(last: Reading = first) -> list[str]:
        late = [replace(last, at_s=at) for at in (1100.0, 1200.0)]
        return grown([*early, replace(first, at_s=600.0, tasks=200), *late, replace(first, at_s=1000.0, tasks=300)])

    assert told() == told(replace(first, tasks=94, threads=11, memory_mb=155.0, records=900)) == []
    assert told(replace(first, tasks=95)) == ["volunteer: tasks grew from 90.0 to 95.0"]
    assert told(replace(first, memory_mb=155.2)) == ["volunteer: memory_mb grew from 150.0 to 155.2"]
    assert len(told(replace(first, descriptors=43, threads=12, files=35))) == 3


def test_the_trend_of_memory_is_by_the_hour() -> None:
    readings = [Reading(float(at), 1, "volunteer", 100 + at / 360, 1, 1, 1, 1, 1, 1) for at in range(0, 1200, 100)]
    assert memory_trend([*readings, replace(readings[0], peer="public")], "volunteer") == pytest.approx(10.0)
