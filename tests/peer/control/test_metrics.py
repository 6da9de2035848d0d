"""Figures for Prometheus: what is told, where, and what happens when the port is taken."""

from __future__ import annotations

import socket
import sys
from urllib.request import urlopen

import pytest
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families

from peer.control.metrics import HOST, serve_metrics
from peer.errors import ExitCode, PeerError
from tests.protocol.example_status import ME, TRAINING


def free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


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
