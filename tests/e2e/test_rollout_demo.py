"""`peer demo --rl --cheat`: a peer that really cheats is found out, named and not learned from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.swarm import PATIENCE_S, ROLLOUT_RUN

pytestmark = pytest.mark.slow


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Places of its own for temporary files and sockets."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tiny.toml").write_text(ROLLOUT_RUN)
    return {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PEER_RUNTIME_DIR": str(tmp_path / "runtime")}


def demo(tmp_path: Path, environment: dict[str, str], cheat: str, versions: int) -> dict[str, Any]:
    """What a demo with rollouts and this cheat says at its end."""
    words = ["demo", "--rl", "--cheat", cheat, "--run", str(tmp_path / "tiny.toml"), "--rounds", str(versions)]
    command = [sys.executable, "-m", "peer", *words, "--json", "--keep"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    assert set(summary) == {
        *("versions", "seconds", "start", "end", "gain", "gain_error", "by_version", "accepted", "rejected", "ejected")
    }
    assert summary["versions"] == len(summary["by_version"]) >= versions and summary["accepted"] > 0
    start, end = summary["start"], summary["end"]
    assert start["version"] < end["version"] and start["problems"] == end["problems"] == 256
    assert 0 <= start["reward"] <= 1 and summary["gain"] == end["reward"] - start["reward"]
    assert start["sample"]["prompt"] == end["sample"]["prompt"] != ""
    return summary


def said(tmp_path: Path, name: str, kind: str) -> list[dict[str, Any]]:
    """Events of a kind in the log of a peer of the demo that is over."""
    (log,) = (tmp_path / "tmp").glob(f"manyhands-demo-*/{name}/output.log")
    events = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [event for event in events if event.get("event") == kind]


def test_a_rollout_peer_that_ends_its_answers_early_is_set_aside_for_it(tmp_path: Path, environment: dict[str, str]) -> None:
    summary = demo(tmp_path, environment, "rollout", 3)
    (ejected,) = summary["ejected"]
    assert (ejected["name"], ejected["role"]) == ("rollout-2", "rollout") and "bad termination" in ejected["reason"]
    assert summary["rejected"] > 0
    used = {root for event in said(tmp_path, "trainer", "RolloutsUsed") for root in event["batches"]}
    made = {
        name: {event["root"] for event in said(tmp_path, name, "RolloutsGenerated")} for name in ("rollout-1", "rollout-2")
    }
    assert used and made["rollout-2"] and used <= made["rollout-1"], "nothing of the cheat's is learned from"


def test_a_validator_that_turns_verdicts_around_is_set_aside_and_the_honest_are_not(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    summary = demo(tmp_path, environment, "validator", 2)
    (ejected,) = summary["ejected"]
    assert (ejected["name"], ejected["role"]) == ("validator-2", "validator") and "contradicts" in ejected["reason"]
    assert summary["rejected"] == 0
