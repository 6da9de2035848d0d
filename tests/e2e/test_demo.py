"""`peer demo` as a person types it: real processes, real sockets, a tiny model."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e.swarm import PATIENCE_S, TINY_MODEL

TINY_RUN = (
    TINY_MODEL
    + """
[rounds]
inner_steps = 3
"""
)


@pytest.fixture
def demo_environment(tmp_path: Path) -> dict[str, str]:
    """Places of its own for temporary files and sockets, so that what is left behind can be seen."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tiny.toml").write_text(TINY_RUN)
    return {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PEER_RUNTIME_DIR": str(tmp_path / "runtime")}


def start_demo(tmp_path: Path, environment: dict[str, str], *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "peer", "demo", "--run", str(tmp_path / "tiny.toml"), *options]
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell's background job ignores it
    )


def processes_of(environment: dict[str, str]) -> list[psutil.Process]:
    """Processes whose command line or environment names this demo's folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == environment["TMPDIR"] and process.pid != os.getpid():
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def test_two_peers_train_two_rounds_and_end_equal(tmp_path: Path, demo_environment: dict[str, str]) -> None:
    demo = start_demo(tmp_path, demo_environment, "--peers", "2", "--rounds", "2", "--json")
    try:
        output, errors = demo.communicate(timeout=PATIENCE_S)
    finally:
        demo.kill()
    assert demo.returncode == 0, errors
    summary = json.loads(output)
    assert set(summary) == {
        "peers",
        "rounds",
        "seconds",
        "eval_loss_start",
        "eval_loss_end",
        "state_digests",
        "wire_bytes_per_param_round",
    }
    assert (summary["peers"], summary["rounds"]) == (2, 2)
    digests = list(summary["state_digests"].values())
    assert len(digests) == 2 and len(set(digests)) == 1 and len(digests[0]) == 64
    assert summary["eval_loss_start"] is None or summary["eval_loss_end"] < summary["eval_loss_start"]
    assert summary["wire_bytes_per_param_round"] > 0
    assert os.listdir(demo_environment["TMPDIR"]) == [] and processes_of(demo_environment) == []


@pytest.mark.slow
def test_peers_of_one_computer_share_its_cores(tmp_path: Path, demo_environment: dict[str, str]) -> None:
    environment = {
        name: value for name, value in demo_environment.items() if name not in ("OMP_NUM_THREADS", "PEER_TRAINER_THREADS")
    }
    demo = start_demo(tmp_path, environment, "--peers", "2", "--rounds", "1", "--json", "--keep")
    try:
        _, errors = demo.communicate(timeout=180)
    finally:
        demo.kill()
    assert demo.returncode == 0, errors
    logs = [path.read_text() for path in (tmp_path / "tmp").glob("manyhands-demo-*/peer-*/output.log")]
    assert len(logs) == 2
    assert any("1 other peer or chat computes on this computer now" in log for log in logs), (
        "who came second counted the first"
    )
    assert not (tmp_path / "runtime/cores").exists()


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_and_no_directory(tmp_path: Path, demo_environment: dict[str, str]) -> None:
    demo = start_demo(tmp_path, demo_environment, "--peers", "2", "--rounds", "1000")
    try:
        assert demo.stderr is not None
        while not re.match(r"round [1-9]", line := demo.stderr.readline()):
            assert line, "the demo ended early"
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=PATIENCE_S)
    finally:
        demo.kill()
    assert demo.returncode == 130
    assert os.listdir(demo_environment["TMPDIR"]) == [] and processes_of(demo_environment) == []


@pytest.mark.slow
def test_a_wrong_run_file_is_a_sentence(tmp_path: Path, demo_environment: dict[str, str]) -> None:
    (tmp_path / "tiny.toml").write_text("name = 3")
    demo = start_demo(tmp_path, demo_environment, "--peers", "2", "--rounds", "1")
    _, errors = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 3 and errors.startswith("peer: ") and "Traceback" not in errors
    assert os.listdir(demo_environment["TMPDIR"]) == []


@pytest.mark.slow
def test_a_demo_that_is_killed_leaves_no_peer_running(tmp_path: Path, demo_environment: dict[str, str]) -> None:
    demo = start_demo(tmp_path, demo_environment, "--peers", "2", "--rounds", "100000")
    try:
        assert demo.stderr is not None
        while not re.match(r"round [1-9]", line := demo.stderr.readline()):
            assert line, "the demo ended early"
    finally:
        demo.kill()
        demo.communicate(timeout=PATIENCE_S)
    gone, alive = psutil.wait_procs(processes_of(demo_environment), timeout=PATIENCE_S)
    assert alive == []
