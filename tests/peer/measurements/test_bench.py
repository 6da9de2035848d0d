"""`peer bench` as a person types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from peer.cli import main
from peer.commands.diagnosis import PARTS
from peer.control.event_log import EventLog
from peer.control.server import ControlServer
from peer.errors import ExitCode, PeerError
from peer.measurements.speeds import measure_lines
from peer.resources.pace import kept_line
from tests.protocol.example_status import status

ONE = {
    "peer": "12D3KooWabcdef",
    "name": "bob",
    "down_bytes": 1000,
    "seconds": 0.5,
    "down_bytes_per_s": 2000.0,
    "problem": "",
}


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PEER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.slow
def test_everything_is_measured_and_told_in_one_object() -> None:
    done = subprocess.run([sys.executable, "-m", "peer", "bench", "--json"], capture_output=True, text=True)
    assert done.returncode == ExitCode.OK, done.stderr
    found = json.loads(done.stdout)
    assert found["run"]["name"] == "demo"
    for part in ("codec", "exchange", "training", "disk"):
        assert all(value for value in found[part].values() if not isinstance(value, bool)), found
    assert found["lines"] is None and "`peer join`" in found["missing"]["lines"]
    assert done.stderr.count("measuring") == done.stderr.count("\n") == len(PARTS)
    assert os.listdir(os.environ["PEER_DATA_DIR"]) == ["pace.json"], "for later estimates of times"


def test_lines_that_were_asked_for_need_a_peer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--only", "lines"]) == ExitCode.NOT_RUNNING
    assert "start one with `peer join`" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("--run", "nothing"), ("--only", "speed")])
def test_mistakes_are_one_sentence(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["bench", *words])
    except SystemExit as left:
        code = int(left.code or 0)
    assert code in (ExitCode.INPUT, ExitCode.USAGE) and "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
def test_an_interruption_ends_it_at_once_and_tells_nothing() -> None:
    command = [sys.executable, "-m", "peer", "bench", "--only", "training"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("measuring training")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (ExitCode.INTERRUPTED, "", "")


def ask_the_peer(data: Path, lines: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]], ask: Callable[[], None]) -> None:
    """Call `ask` while a peer answers that its lines are so."""

    async def run() -> None:
        server = ControlServer(data, EventLog(), {"lines": lines, "status": _status}, status)
        async with trio.open_nursery() as nursery:
            await server.open()
            nursery.start_soon(server.run)
            await trio.to_thread.run_sync(ask)
            nursery.cancel_scope.cancel()

    data.mkdir()
    trio.run(run)


async def _status(fields: dict[str, Any]) -> dict[str, Any]:
    return status().to_fields()


def test_the_peer_that_runs_here_is_asked_for_its_lines(tmp_path: Path) -> None:
    async def lines(fields: dict[str, Any]) -> dict[str, Any]:
        return {"run": status().run, "peers": [ONE], "up_bytes_per_s": 3000.0}

    def ask() -> None:
        found = measure_lines(tmp_path / "data")
        assert (found.up_bytes_per_s, found.down_bytes_per_s) == (3000.0, 2000.0)
        assert found.peers[0].name == "bob" and measure_lines(tmp_path / "data", status().run) == found
        with pytest.raises(PeerError, match="takes part in another run"):
            measure_lines(tmp_path / "data", "0f" * 32)
        kept = kept_line(tmp_path / "data")
        assert kept is not None and (kept.up, kept.down) == (3000.0, 2000.0), "the next run is compared with it"

    ask_the_peer(tmp_path / "data", lines, ask)
