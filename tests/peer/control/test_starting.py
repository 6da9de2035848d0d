"""A peer that is starting: asked again until it answers, and told with one remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from peer.commands.watch import _check_that_a_peer_runs
from peer.control.client import ControlClient, NotRunning, StillStarting
from peer.errors import PeerError
from protocol.events.status import PeerStatus
from tests.protocol.example_status import status


class Starting(ControlClient):
    """Client of a peer that answers this question and the later ones."""

    def __init__(self, data_dir: Path, answers_at: int) -> None:
        super().__init__(data_dir)
        self.asked, self.answers_at, self.waited = 0, answers_at, list[float]()

    def status(self) -> PeerStatus:
        self.asked += 1
        if self.asked < self.answers_at:
            raise StillStarting("the peer is starting")
        return status()


def test_a_peer_that_starts_is_waited_for_and_no_longer_than_said(tmp_path: Path) -> None:
    soon, never = Starting(tmp_path, 3), Starting(tmp_path, 1000)
    assert soon.status_once_started(30.0, soon.waited.append) == status()
    assert (soon.asked, soon.waited) == (3, [0.5, 0.5])
    with pytest.raises(StillStarting):
        never.status_once_started(30.0, never.waited.append)
    assert sum(never.waited) == 30.0
    with pytest.raises(NotRunning, match="no peer is running"):
        ControlClient(tmp_path).status_once_started(30.0, lambda seconds: pytest.fail("nothing starts there"))


def test_one_remedy_is_told_where_no_peer_runs_and_the_view_waits_for_one_that_starts(tmp_path: Path) -> None:
    with pytest.raises(
        PeerError, match="start one with `peer join`, or name the directory of a running peer with --data-dir$"
    ):
        _check_that_a_peer_runs(tmp_path)
    (tmp_path / "identity.lock").write_text(str(os.getpid()))
    _check_that_a_peer_runs(tmp_path)
