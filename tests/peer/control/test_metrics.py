"""Figures for Prometheus: what is told, where, and what happens when the port is taken."""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from urllib.request import urlopen

import pytest
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families

from peer.control.metrics import HOST, families, serve_metrics
from peer.errors import ExitCode, PeerError
from protocol.events.status import ComputerStatus, GpuStatus, RolloutStatus
from tests.protocol.example_status import COMPUTER, GIVEN, ME, TRAINING


def free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


def test_what_is_not_known_is_left_out() -> None:
    names = {family.name for family in families(TRAINING)}
    assert {"manyhands_loss", "manyhands_held_out_loss", "manyhands_up_bytes"} <= names
    unknown = {family.name for family in families(replace(TRAINING, loss=None, eval_loss=None))}
    assert names - unknown == {"manyhands_loss", "manyhands_held_out_loss"}


def test_the_computer_has_the_figures_that_it_tells() -> None:
    without = {family.name for family in families(TRAINING)}

    def added(computer: ComputerStatus) -> dict[str, float]:
        found = [family for family in families(replace(TRAINING, computer=computer)) if family.name not in without]
        return {sample.name: sample.value for family in found for sample in family.samples}

    assert added(COMPUTER) == {
        "manyhands_gpu_busy_share": 0.97,
        "manyhands_gpu_memory_used_bytes": 19.3e9,
        "manyhands_gpu_temperature_celsius": 71.0,
        "manyhands_gpu_power_watts": 298.0,
        "manyhands_energy_joules_total": 2.7e6,
    }
    assert added(ComputerStatus(gpus=[GpuStatus(watts=5.0), GpuStatus()])) == {"manyhands_gpu_power_watts": 5.0}
    given = [family for family in families(replace(TRAINING, contribution=GIVEN)) if family.name not in without]
    assert [(family.name, family.samples[0].value) for family in given] == [("manyhands_credited_tokens", 22_400_000)]


def test_a_run_with_rollouts_has_their_figures_too() -> None:
    told = RolloutStatus(version=7, reward=0.5, generated=3, accepted=2, rejected=1, waiting=4, verified_per_s=1.5)
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families(replace(TRAINING, rollouts=told))
        for sample in family.samples
    }
    assert found["manyhands_reward",] == 0.5 and found["manyhands_rollout_batches_waiting",] == 4
    assert (
        found["manyhands_rollout_batches_total", "accepted"] == 2
        and found["manyhands_rollout_batches_total", "rejected"] == 1
    )
    assert found["manyhands_verified_rollouts_per_second",] == 1.5
    names = {family.name for family in families(replace(TRAINING, rollouts=replace(told, reward=None)))}
    assert "manyhands_reward" not in names and not any("rollout" in family.name for family in families(TRAINING))


def test_figures_are_told_on_loopback_and_no_more_after_the_end() -> None:
    port, told = free_port(), list[str]()

    def read() -> str:
        with urlopen(f"http://{HOST}:{port}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_metrics, port, lambda: TRAINING)
            await trio.testing.wait_all_tasks_blocked()
            told.append(await trio.to_thread.run_sync(read))
            nursery.cancel_scope.cancel()

    trio.run(main)
    found = {
        sample.name: (sample.labels, sample.value)
        for family in text_string_to_metric_families(told[0])
        for sample in family.samples
        if family.name != "manyhands_phase"
    }
    assert found["manyhands_rounds"] == ({}, 12.0) and found["manyhands_up_bytes_total"] == ({}, 3_100_000.0)
    assert found["manyhands_info"][0]["peer"] == ME
    assert 'manyhands_phase{phase="computing",why_idle=""} 1.0' in told[0]
    assert found["manyhands_tasks"][1] > 3, "the root task, the main one, this one, and the metrics'"
    assert (found.get("process_open_fds", ({}, 0))[1] > 3) == sys.platform.startswith("linux")
    with pytest.raises(OSError):
        read()


def test_a_port_that_is_taken_is_said_with_the_remedy() -> None:
    with (
        socket.create_server((HOST, 0)) as server,
        pytest.raises(PeerError, match="choose another --metrics-port") as caught,
    ):
        trio.run(serve_metrics, server.getsockname()[1], lambda: TRAINING)
    assert caught.value.exit_code is ExitCode.RESOURCES
