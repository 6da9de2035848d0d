"""Rounds whose times are known by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from peer.planning.cost import (
    EXCHANGE_RTTS,
    WIRE,
    RoundLoad,
    RoundRules,
    RoundSetting,
    agreement_cost,
    gossip_cost,
)
from peer.planning.model import NeverTogether, forecast_rounds
from peer.planning.report import drawing
from peer.planning.swarm import PlannedPeers
from protocol.run.manifest import RunManifest, demo_manifest

RTT = 0.001
FREE = RoundLoad(steps=10, delay=0, step_tokens=1000, parameters=0, contribution_bytes=0, result_bytes=0, chunks=8)
"""Ten steps of a second at 1000 tokens a second, and nothing to exchange."""
TEN_SECONDS = replace(FREE, contribution_bytes=10_000_000, result_bytes=10_000_000)
"""An exchange of two members with lines of `LINE` takes ten seconds."""
LINE = 1e6 * WIRE + gossip_cost(2).bytes_per_s
FAST = 1e15
"""A line on which bytes take no time."""
RULES = RoundRules(grace_s=10.0, min_members=2, max_members=64, state_bytes=80_000_000)


def latency_s(members: int, load: RoundLoad = FREE, line: float = FAST) -> float:
    """Return the seconds of a round's latencies and of its agreement."""
    lines = np.full(members, line - gossip_cost(members).bytes_per_s)
    return EXCHANGE_RTTS * RTT + agreement_cost(lines, lines, RTT, load, np.ones(members, np.bool_)).seconds


def peers(*speeds: float, up: float = FAST, online_s: float = 1e9, offline_s: float = 0.0) -> PlannedPeers:
    """Peers with these speeds in tokens a second."""

    def each(value: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.full(len(speeds), value)

    return PlannedPeers(np.array(speeds), each(up), each(up), each(RTT), each(online_s), each(offline_s))


def test_without_bytes_only_the_agreement_is_added() -> None:
    forecast = forecast_rounds(FREE, RULES, peers(1000, 1000, 1000))
    assert forecast.round_s == pytest.approx(10 + latency_s(3))
    assert forecast.utilisation == pytest.approx(10 / (10 + latency_s(3)))
    assert forecast.exchange_share == pytest.approx(latency_s(3) / (10 + latency_s(3)))
    assert forecast.tokens_a_day == pytest.approx(30_000 * 86_400 / forecast.round_s)
    assert (forecast.members, forecast.lost, forecast.waits_peers) == (3, 0, 0)


def test_an_exchange_longer_than_the_delay_costs_the_rest() -> None:
    slow_s = latency_s(2, TEN_SECONDS, LINE)
    forecast = forecast_rounds(replace(TEN_SECONDS, delay=4), RULES, peers(1000, 1000, up=LINE))
    assert forecast.round_s == pytest.approx(10 + 10 + slow_s - 4)
    assert forecast.utilisation == pytest.approx(10 / (16 + slow_s))


def test_a_slow_member_contributes_the_steps_that_it_has_done() -> None:
    """The quorum is ready after 10 s, the fair time is 2.5 s, and after half of it the slow one is in its sixth step."""
    forecast = forecast_rounds(FREE, RULES, peers(1000, 1000, 1000, 500))
    assert forecast.round_s == pytest.approx(12 + latency_s(4))
    assert forecast.members == 4
    assert forecast.tokens_a_day == pytest.approx(36_000 * 86_400 / forecast.round_s)
    assert forecast.waits_peers == pytest.approx(3 * 2 / (4 * (12 + latency_s(4))))


def test_a_member_whose_step_takes_longer_than_the_others_wait_is_left_out() -> None:
    forecast = forecast_rounds(FREE, RULES, peers(1000, 1000, 1000, 200))
    assert forecast.round_s == pytest.approx(10 + latency_s(3))
    assert forecast.members == 3
    assert forecast.lost == pytest.approx(1 / 4 * 10 / forecast.round_s)


# ------------------------------------------------------------------------------------------------------------------------
# Peers that come and go.


def test_too_few_peers_for_a_round_are_refused() -> None:
    with pytest.raises(NeverTogether, match="2 members, and 1"):
        forecast_rounds(FREE, RULES, peers(1000))


def test_a_drawing_shows_three_rounds_of_the_trainers_and_of_their_lines() -> None:
    """Of 21 s, the slow member trains for 10 s and the fast one for 5 s, and an exchange takes nearly 11 s."""
    trace = forecast_rounds(TEN_SECONDS, RULES, peers(2000, 1000, up=LINE)).trace
    fast, its_line, slow, *_ = drawing(trace, 18 + 3 * 20, unicode=False)
    waits, line = "-" * 11, f"{'':18}" + "=" * 9
    assert fast == "faster, 2.0 k/s   " + 3 * f"{waits}####....."
    assert slow == "slower, 1.0 k/s   " + 3 * f"{waits}#########" and its_line.startswith(line)


# ------------------------------------------------------------------------------------------------------------------------


def test_a_run_without_other_settings_has_its_own_load() -> None:
    fields = demo_manifest().manifest.model_dump()
    fields |= {"fragments": 4, "codec": "int2"}
    fields["rounds"] |= {"inner_steps": 40, "delay": 7}
    manifest = RunManifest.model_validate(fields)
    load = RoundLoad.of(manifest, RoundSetting.of(manifest))
    assert (load.steps, load.delay, load.parameters) == (manifest.round_steps, 7, manifest.fragment_parameters)
    assert load.contribution_bytes == manifest.layouts.contribution.payload_bytes
    assert load.result_bytes == manifest.layouts.result.payload_bytes
    assert load.step_tokens * load.steps == manifest.tokens_per_round
