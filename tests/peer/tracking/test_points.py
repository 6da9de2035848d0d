"""Points of curves: which are due, what they hold, and that strangers' numbers and names do no harm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from peer.control.client import Stamped
from peer.control.event_log import to_line
from peer.page.history import Round
from peer.tracking.points import LATE_ROUNDS, Points
from protocol.events.events import EvalLoss


class Rounds:
    """A chain that grows by hand."""

    def __init__(self, count: int = 0) -> None:
        self.rounds = [made(number) for number in range(1, count + 1)]

    def read(self) -> None:
        """Nothing is new."""


def made(number: int, losses: Mapping[str, float] = {}, loss: float = 2.0, reward: float | None = None) -> Round:
    return Round(number, 1000 * number, 3, loss, losses, reward)


def measured(folder: Path, *events: EvalLoss) -> None:
    with (folder / "events.jsonl").open("a") as file:
        file.writelines(to_line(Stamped(1.0, 1.0, event)) + "\n" for event in events)


def test_a_point_waits_for_its_held_out_loss_for_some_rounds_and_not_at_the_end(tmp_path: Path) -> None:
    chain = Rounds(4)
    points = Points(chain, tmp_path)
    assert LATE_ROUNDS == 2
    assert [point.rounds for point in points.due(0, is_end=False)] == [1, 2]
    assert [point.rounds for point in points.due(2, is_end=True)] == [3, 4]
    measured(tmp_path, EvalLoss(3, 1.5, "me"))
    found = points.due(2, is_end=False)
    assert [point.rounds for point in found] == [3] and found[0].values["loss/held_out"] == 1.5
    assert found[0].values == {"tokens": 3000.0, "members": 3.0, "loss/training": 2.0, "loss/held_out": 1.5}


def test_losses_by_source_and_rewards_are_curves_of_their_own(tmp_path: Path) -> None:
    chain = Rounds()
    chain.rounds = [made(1, {"web": 2.5, "code": 1.5}, reward=0.25)]
    measured(tmp_path, EvalLoss(1, 1.5, "me", {"web": 3.0}))
    (point,) = Points(chain, tmp_path).due(0, is_end=False)
    assert point.values["loss/training/web"] == 2.5 and point.values["loss/training/code"] == 1.5
    assert point.values["loss/held_out/web"] == 3.0 and point.values["reward"] == 0.25


def test_values_that_are_no_numbers_and_names_that_are_no_names_do_no_harm(tmp_path: Path) -> None:
    chain = Rounds()
    names = {"\x1b[31mred\u202e": 1.0, "a" * 100_000: 2.0, "": 3.0}
    chain.rounds = [made(1, names, loss=float("inf"), reward=float("nan"))]
    (tmp_path / "events.jsonl").write_text(
        '{"event":"EvalLoss"}\nnothing\n' + json.dumps({"event": "EvalLoss", "rounds": "x"})
    )
    (point,) = Points(chain, tmp_path).due(0, is_end=True)
    assert "loss/training" not in point.values and "reward" not in point.values
    assert len(point.values) == 2 + len(names)
    assert all(name.isprintable() and name.isascii() and len(name) < 80 for name in point.values), point.values
