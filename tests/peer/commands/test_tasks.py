"""`peer tasks` for a person, and what the running peer refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import trio

from peer.cli import main
from peer.commands.tasks import describe
from peer.control.client import ControlError
from peer.daemon.requests import Controls
from peer.errors import ExitCode
from protocol.events.status import PeerStatus
from protocol.tasks.commands import TaskSetCommands
from tests.protocol.peers import ANN

SET: dict[str, Any] = {
    "id": "ab" * 32,
    "name": "sums",
    "publisher": ANN.peer_id,
    "tasks": 20,
    "size_bytes": 2000,
    "here": True,
    "state": "admitted",
    "attempts": 200,
    "solved": 50,
    "verdicts": 40,
    "agreeing": 40,
    "scored_twice": 0,
    "same": 0,
    "fault": "",
    "unusable": "",
}


def test_sets_are_told_with_their_counts_and_what_is_wrong_with_them() -> None:
    sets = [
        SET,
        {**SET, "state": "fell out", "fault": "9 of 10 tasks were never solved"},
        {**SET, "state": "offered", "here": False, "attempts": 0, "verdicts": 0},
        {**SET, "here": False},
    ]
    lines = describe({"run": "cd" * 32, "amendment": 3, "pending": 4, "percent": 30, "sets": sets})
    assert "30 % of the problems" in lines[1] and "amendment 4" in lines[2]
    assert "25% of 200" in lines[4] and "100% of 40" in lines[4] and lines[4].endswith("admitted: sums")
    assert "fell out: sums (9 of 10 tasks were never solved)" in lines[5]
    assert "offered: sums" in lines[6] and "admitted, not here yet" in lines[7]
    nothing = describe({"run": "cd" * 32, "amendment": 0, "pending": None, "percent": 0, "sets": []})
    assert nothing[1:] == ["tasks   no set was admitted yet"]


def test_without_a_peer_the_remedy_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "list", "--data-dir", str(tmp_path)]) == ExitCode.NOT_RUNNING
    assert "peer join" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["tasks", "admit", "abcdef", "--percent", "91", "--data-dir", str(tmp_path)])


class Nothing:
    """A peer in a run without rollouts."""

    tasks: TaskSetCommands | None = None

    def status(self) -> PeerStatus:
        raise AssertionError("not asked")


class Desk(Nothing):
    """One whose desk would fail: what is malformed does not come so far."""

    tasks = object()  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        ("publish-tasks", {"file": "../key", "name": "a", "count": 1}),
        ("fetch-tasks", {"id": "*"}),
        ("admit-tasks", {"id": "abcdef", "percent": 91, "count": 1}),
        ("admit-tasks", {"id": "abcdef", "percent": True, "count": 1}),
        ("admit-tasks", {"id": "abcdef", "percent": None}),
    ],
)
def test_what_is_malformed_is_refused(command: str, fields: dict[str, Any]) -> None:
    for peer in (Desk(), Nothing()):
        with pytest.raises(ControlError):
            trio.run(Controls(cast(Any, peer)).commands()[command], fields)
