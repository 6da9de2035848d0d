"""`peer join` where a person types it: the interface opens, and the peer stays or goes as the person says."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from peer.control.client import ControlClient
from protocol.events import events as ev
from tests.e2e.swarm import Swarm
from tests.e2e.terminal import Terminal, unwrapped, why_not

WHY_NOT = why_not()

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


WAITS = "waiting for more peers"
"""Shown by a peer that runs and is alone; a seed needs no trainer for it."""


class Volunteer:
    """A person at a shell who joins the swarm's run."""

    def __init__(self, swarm: Swarm, name: str = "volunteer", what: str = "", role: str = "seed") -> None:
        self.swarm, self.folder = swarm, swarm.place(name)
        join = f"{sys.executable} -m peer join {what or swarm.manifest} --local --threads 1 --data-dir {self.folder}"
        join += f" --role {role}"
        shell = ("sh", "-c", f"{join}; echo exit code $?; cat")
        self.terminal = Terminal(swarm.place(f"{name}'s terminal"), shell, swarm.environment, (100, 30))

    def peer(self) -> psutil.Process:
        """The peer itself, not the interface."""
        found = []
        for each in self.swarm.processes():
            with suppress(psutil.Error):  # it may end meanwhile
                found += [each] if each.cmdline()[2:4] == ["peer", "--attached"] else []
        (peer,) = found
        return peer

    def until_gone(self) -> None:
        """Nothing of a peer or an interface is left: no process, no socket."""
        self.swarm.until("every process has ended", lambda: not self.swarm.processes())
        assert not list((self.swarm.folder / "runtime").rglob("*.sock"))

    def said(self, kind: type[ev.Event]) -> bool:
        """Whether the peer's log on disk has such an event."""
        return any(f'"{kind.__name__}"' in path.read_text() for path in self.folder.rglob("events.jsonl"))


@pytest.mark.slow
def test_q_detaches_and_the_peer_trains_on(tmp_path: Path) -> None:
    with Swarm.created(tmp_path) as swarm:
        ann = Volunteer(swarm, role="trainer")
        with ann.terminal as terminal:
            terminal.until(WAITS)
            terminal.type("q")
            shell = unwrapped(terminal.until("exit code 0"))
            assert unwrapped("keeps running in the background") in shell
            assert unwrapped(f"peer watch --data-dir {ann.folder}") in shell
        other = swarm.peer("other").start()
        swarm.until(
            "a round with the detached peer", lambda: other.commits and len(other.members_of(max(other.commits))) == 2
        )
        assert ControlClient(ann.folder).status().peer in other.members_of(max(other.commits))
        swarm.command(ann.folder, "leave")
        assert other.leave() == 0
        ann.until_gone()


@pytest.mark.slow
def test_ctrl_c_leaves_says_how_it_ended_and_ends_a_peer_that_does_not_answer_at_the_third(tmp_path: Path) -> None:
    with Swarm.created(tmp_path) as swarm:
        ann = Volunteer(swarm, role="trainer")
        with ann.terminal as terminal:
            terminal.until(WAITS)
            terminal.type("C-c")
            assert unwrapped("continues from there") in unwrapped(terminal.until("exit code 0"))
            assert ann.said(ev.Left)
        ann.until_gone()
        bob = Volunteer(swarm, "bob")
        with bob.terminal as terminal:
            terminal.until(WAITS)
            bob.peer().suspend()
            terminal.type("C-c")
            terminal.until("saying goodbye to the swarm")
            terminal.type("C-c", "C-c")
            terminal.until("exit code 137")
        bob.until_gone()


@pytest.mark.slow
def test_the_peer_goes_with_its_interface_and_with_its_terminal(tmp_path: Path) -> None:
    with Swarm.created(tmp_path) as swarm:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, None):
            ann = Volunteer(swarm, f"volunteer {number}".replace(" ", "-"))
            with ann.terminal as terminal:
                terminal.until(WAITS)
                if number is not None:
                    interface = ann.peer().parent()
                    assert interface is not None
                    interface.send_signal(number)
                    swarm.until("the peer has ended", lambda ann=ann: ann.said(ev.Left))  # type: ignore[misc]
                    terminal.until("exit code")
            ann.until_gone()
            assert ann.said(ev.Left), "it has said goodbye"


@pytest.mark.slow
def test_what_hinders_the_start_is_told_in_the_shell(tmp_path: Path) -> None:
    with Swarm.created(tmp_path) as swarm:
        wrong = Volunteer(swarm, "wrong", str(tmp_path / "no such file.toml").replace(" ", "\\ "))
        with wrong.terminal as terminal:
            assert "peer: " in terminal.until("exit code 3")
        first = Volunteer(swarm, "first")
        with first.terminal as terminal:
            terminal.until(WAITS)
            again = Volunteer(swarm, "first")
            again.terminal = Terminal(swarm.place("again"), again.terminal._command, swarm.environment, (100, 30))
            with again.terminal as second:
                assert unwrapped("is in use by") in unwrapped(second.until("exit code 6"))
            assert ControlClient(first.folder).status().pid == first.peer().pid, "the first is not disturbed"
