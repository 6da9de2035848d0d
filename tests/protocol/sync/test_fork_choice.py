"""What is judged of another branch while our own chain goes on, and who tells of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.chain.history import Branch
from protocol.events.events import SecondHistory
from tests.protocol.chains import a_run, grow
from tests.protocol.peers import ANN
from tests.protocol.sync.table import FOUR, Table, fork, on_table


def test_a_record_that_we_made_meanwhile_is_no_second_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch is judged in a thread: when that has seen how much is common, our round may end with the branch's record."""

    async def check(table: Table) -> None:
        grow(table.theirs, 1, [ANN], voters=FOUR)
        branch = table.branch(0, table.theirs)
        grow(table.ours, 1, [ANN], voters=FOUR)
        assert table.ours.history.tip == table.theirs.history.tip
        monkeypatch.setattr(Branch, "common", 0)
        choice = table.choice.judge(branch, ANN.peer_id)
        assert (choice.rounds, choice.lost, choice.news) == (0, False, ())

    on_table(tmp_path, check, a_run(*FOUR))


def test_what_a_judgement_finds_is_told_by_whoever_asked_for_it(tmp_path: Path) -> None:
    """It is made in a thread, from which no listener may be woken."""

    async def check(table: Table) -> None:
        fork(table, 1, {}, {})
        choice = table.choice.judge(table.branch(1, table.theirs), ANN.peer_id)
        assert [type(event) for event in choice.news] == [SecondHistory] and not table.of(SecondHistory)

    on_table(tmp_path, check, a_run(*FOUR))
