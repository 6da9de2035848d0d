"""A little of `make churn`, and faster, for every day."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.churn import TRAINERS, churn

pytestmark = pytest.mark.slow


def test_peers_that_are_killed_and_come_back_go_on_together_and_leave_nothing_behind(tmp_path: Path) -> None:
    outcome = churn(tmp_path, TRAINERS[:3], seed=1, kills=3, kill_s=(1.0, 6.0))
    assert outcome.clean, outcome
    assert outcome.kills == 3
