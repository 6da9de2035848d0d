"""Peers that train on one computer divide its cores, however they come and go."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.testing

from peer.errors import PeerError
from peer.resources.core_share import RECOUNT_S, CoreShare, chosen_threads, share_cores, share_of
from protocol.events.events import Event, Notice

SETTLED_S = 2.5 * RECOUNT_S
"""Virtual time after which everybody has seen what changed: one look to show oneself, one to see the others."""


@dataclass
class Trainer:
    """Remembers what it was told."""

    paused: bool = False
    threads: int = 0

    def use_threads(self, threads: int) -> None:
        self.threads = threads


@dataclass
class Terminal:
    """A peer on this computer, as its user sees it."""

    folder: Path
    cores: int
    chosen: int = 0
    trainer: Trainer = field(default_factory=Trainer)
    said: list[Event] = field(default_factory=list)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    async def run(self) -> None:
        with self.scope:
            await share_cores(CoreShare(self.folder, self.cores), self.trainer, self.said.append, lambda: self.chosen)


def with_terminals(scenario: Callable[[trio.Nursery], Awaitable[None]]) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await scenario(nursery)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def threads(*terminals: Terminal) -> list[int]:
    return sorted(terminal.trainer.threads for terminal in terminals)


@pytest.mark.parametrize(("cores", "shares"), [(2, [1, 1, 1]), (3, [1, 1, 1]), (8, [3, 3, 2]), (9, [3, 3, 3]), (1, [1, 1])])
def test_all_cores_are_given_out_and_nobody_has_none(cores: int, shares: list[int]) -> None:
    assert [share_of(cores, place, len(shares)) for place in range(len(shares))] == shares


def test_shares_follow_who_comes_and_who_goes(tmp_path: Path) -> None:
    async def scenario(nursery: trio.Nursery) -> None:
        one, two, three = (Terminal(tmp_path / "cores", 8) for _ in range(3))
        nursery.start_soon(one.run)
        await trio.sleep(SETTLED_S)
        assert threads(one) == [8] and one.said == []
        nursery.start_soon(two.run)
        nursery.start_soon(three.run)
        await trio.sleep(SETTLED_S)
        assert threads(one, two, three) == [2, 3, 3]
        two.scope.cancel()
        await trio.sleep(SETTLED_S)
        assert threads(one, three) == [4, 4]
        three.scope.cancel()
        await trio.sleep(SETTLED_S)
        assert threads(one) == [8]
        assert one.said[-1] == Notice(
            "info", "no other peer or chat computes on this computer now: the trainer uses 8 of 8 cores"
        )
        one.scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert not (tmp_path / "cores").exists(), "the last one leaves nothing behind"

    with_terminals(scenario)


def test_a_paused_peer_leaves_its_cores_to_the_others(tmp_path: Path) -> None:
    async def scenario(nursery: trio.Nursery) -> None:
        one, two = (Terminal(tmp_path, 2) for _ in range(2))
        nursery.start_soon(one.run)
        nursery.start_soon(two.run)
        await trio.sleep(SETTLED_S)
        assert threads(one, two) == [1, 1]
        two.trainer.paused = True
        await trio.sleep(SETTLED_S)
        assert one.trainer.threads == 2
        two.trainer.paused = False
        await trio.sleep(SETTLED_S)
        assert threads(one, two) == [1, 1]

    with_terminals(scenario)


@pytest.mark.slow
def test_a_killed_peer_is_not_counted(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from peer.resources.core_share import CoreShare\n"
        "CoreShare(Path(sys.argv[1]), 2).take(); print('up', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    share = CoreShare(tmp_path, 2)
    try:
        assert child.stdout is not None and child.stdout.readline() == "up\n"
        assert share.take()[1] == 2
    finally:
        child.kill()
        child.communicate()
    assert share.take() == (0, 1)
    assert len(list(tmp_path.iterdir())) == 1, "and its file is gone"


def test_a_folder_that_cannot_be_used_is_said_once_and_stops_nobody(tmp_path: Path) -> None:
    async def scenario(nursery: trio.Nursery) -> None:
        (tmp_path / "cores").write_text("not a folder")
        alone = Terminal(tmp_path / "cores", 2)
        nursery.start_soon(alone.run)
        await trio.sleep(SETTLED_S)
        assert alone.trainer.threads == 2
        assert [event.level for event in alone.said if isinstance(event, Notice)] == ["warning"]

    with_terminals(scenario)


def test_threads_that_a_person_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PEER_TRAINER_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert chosen_threads(0) == 0
    monkeypatch.setenv("OMP_NUM_THREADS", "6,2")
    assert chosen_threads(0) == 6
    monkeypatch.setenv("PEER_TRAINER_THREADS", "3")
    assert chosen_threads(0) == 3
    assert chosen_threads(5) == 5
    for nonsense in ("many", "0", "-1", "²", "1" * 40):
        monkeypatch.setenv("PEER_TRAINER_THREADS", nonsense)
        with pytest.raises(PeerError, match="PEER_TRAINER_THREADS"):
            chosen_threads(0)
