"""`peer watch` in a real terminal, beside real peers that train."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from protocol.events import events as ev
from tests.e2e.swarm import Peer, Swarm
from tests.e2e.terminal import Terminal, unwrapped, why_not

WHY_NOT = why_not()

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]


def watch(swarm: Swarm, peer: Peer, name: str, size: tuple[int, int]) -> Terminal:
    command = (sys.executable, "-m", "peer", "watch", "--data-dir", str(peer.folder))
    return Terminal(swarm.place(name), command, swarm.environment, size)


def answer_yes(terminal: Terminal, key: str) -> None:
    """Press a key, and type the answer once the question is there."""
    terminal.type(key)
    terminal.until("type yes")
    terminal.type(*"yes")


def test_a_person_watches_pauses_and_resumes_a_peer(tmp_path: Path) -> None:
    with Swarm.created(tmp_path) as swarm:
        first = swarm.peer("attic").start()
        swarm.until("it waits for others", lambda: first.heard(ev.PhaseChanged))
        with watch(swarm, first, "t1", (80, 24)) as terminal, watch(swarm, first, "t2", (120, 40)) as large:
            terminal.until("waiting for more peers")
            terminal.type("2")
            second = swarm.peer("kitchen").start()
            swarm.whole(first, second)
            assert "kitchen" in terminal.until("COMPUTING")
            large.until("kitchen")
            assert "6 Me" in large.until("4 Transfers"), "all panels, once the terminal told its size"
            answer_yes(terminal, "p")
            swarm.until("the pause", lambda: first.heard(ev.PhaseChanged)[-1].phase == "paused")
            terminal.until("PAUSED paused by you")
            large.until("PAUSED paused by you")
            terminal.type("p")
            swarm.until("the end of the pause", lambda: first.heard(ev.PhaseChanged)[-1].phase != "paused")
            terminal.type("q")
            terminal.until_ended()
            assert first.up, "closing a view never stops the peer"
            answer_yes(large, "x")
            large.until("the peer stopped: ")
            assert first.wait() == 0
            large.type("C-c")
            large.until_ended()


def test_watching_needs_a_peer_and_a_terminal(tmp_path: Path) -> None:
    with Swarm(tmp_path) as swarm:
        assert "use `peer status`" in swarm.command(swarm.place("nobody"), "watch", code=2)
        nobody = swarm.peer("nobody")
        command = f"{sys.executable} -m peer watch --data-dir {nobody.folder}; echo exit code $?; cat"
        with Terminal(swarm.place("t1"), ("sh", "-c", command), swarm.environment, (100, 10)) as terminal:
            assert unwrapped("start one with `peer join`") in unwrapped(terminal.until("exit code 5"))


def test_an_owner_watches_and_pauses_a_peer_elsewhere(tmp_path: Path) -> None:
    with Swarm.created(tmp_path) as swarm:
        home = swarm.place("home")
        owner = swarm.command(home, "id").split()[-1]
        far = swarm.peer("far").start("--owner", owner)
        swarm.until("it waits for others", lambda: far.heard(ev.PhaseChanged))
        (address, *_) = far.status()["addresses"]
        command = (sys.executable, "-m", "peer", "watch", address, "--data-dir", str(home))
        with Terminal(swarm.place("t1"), command, swarm.environment, (100, 30)) as terminal:
            terminal.until("waiting for more peers")
            answer_yes(terminal, "p")
            swarm.until("the pause", lambda: far.heard(ev.PhaseChanged)[-1].phase == "paused")
            terminal.until("PAUSED paused by you")
            far.kill()
            terminal.until("peer stopped")
            far.start("--owner", owner, "--port", address.split("/")[4])
            swarm.until("it waits for others again", lambda: far.heard(ev.PhaseChanged))
            swarm.until("the view has found it again", lambda: "peer stopped" not in terminal.screen())
            terminal.until("PAUSED paused by you")
            terminal.type("p")
            terminal.until("waiting for more peers")
            answer_yes(terminal, "p")
            swarm.until("the second pause", lambda: far.heard(ev.PhaseChanged)[-1].phase == "paused")
            terminal.type("q")
            terminal.until_ended()
        stranger = ("watch", address, "--data-dir", str(swarm.place("stranger")))
        shell = f"{sys.executable} -m peer {' '.join(stranger)}; echo exit code $?; cat"
        with Terminal(swarm.place("t2"), ("sh", "-c", shell), swarm.environment, (100, 10)) as terminal:
            assert unwrapped("does not accept you as its owner") in unwrapped(terminal.until("exit code 5"))
        assert far.leave() == 0
