"""`peer chat` beside a peer that trains, on its run and on an exported folder, through a pipe and in a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from protocol.events import events as ev
from tests.e2e.swarm import PATIENCE_S, TINY_MODEL, Swarm
from tests.e2e.terminal import Terminal, why_not

WHY_NOT = why_not()

RUN = (
    TINY_MODEL
    + """
[rounds]
inner_steps = 20
"""
)


def piped(swarm: Swarm, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "peer", "chat", *words, "--json", "--max-tokens", "16", "--temp", "0"],
        env=swarm.environment,
        input="import os\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_a_run_answers_while_its_peer_trains_and_so_does_its_export(tmp_path: Path) -> None:
    with Swarm.created(tmp_path, RUN) as swarm:
        peer = swarm.peer("organiser").start()
        swarm.until("a round", lambda: peer.committed)
        beside = piped(swarm, "--data-dir", str(peer.folder))
        assert beside["rounds"] >= 1 and beside["tokens"] == 16 and beside["folder"] is None
        swarm.command(peer.folder, "export", str(tmp_path / "model"), "--dtype", "fp32")
        of_folder = piped(swarm, str(tmp_path / "model"))
        assert of_folder["run"] == beside["run"] and of_folder["rounds"] >= beside["rounds"]
        rounds = peer.committed
        shell = ("sh", "-c", f"trap : INT; {sys.executable} -m peer chat --data-dir {peer.folder}; echo exit code $?; cat")
        with Terminal(swarm.place("terminal"), shell, swarm.environment, (100, 30)) as terminal:
            terminal.until("it completes texts")
            terminal.type("import", "Enter")
            terminal.until("the answer ends after 32 tokens")
            swarm.until("a further round", lambda: peer.committed > rounds)
            terminal.type("/newest", "Enter")
            terminal.until("[run tiny")
            terminal.type("C-c")
            terminal.until("exit code 0")
        assert not peer.heard(ev.TrainerStopped), "the trainer was not disturbed"
        assert not list(peer.folder.glob(".chat-*"))
        assert peer.leave() == 0
