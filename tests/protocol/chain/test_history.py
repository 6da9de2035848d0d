"""What the chain remembers about its tips."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.chain import history as history_module
from protocol.chain.base import round_settings
from protocol.chain.history import History
from protocol.chain.store import Store
from protocol.wire.hashes import ZERO_HASH
from protocol.wire.messages import Commit, Step
from tests.protocol.council import INDEX, PEERS, a_record, members, votes_for
from tests.simulation.world import simulated_run

SETTINGS = round_settings(simulated_run().run, simulated_run().manifest)


def grow(history: History) -> None:
    """One more record, of the first three peers in even rounds, and of the last three in odd ones."""
    peers = PEERS[:3] if history.length % 2 == 0 else PEERS[2:]
    record = a_record(round=history.length, previous=history.tip, members=members(*peers))
    history.append(Commit(record=record, index=INDEX, certificate=votes_for(record, peers, 0, step=Step.SECOND)))


def test_the_electors_of_every_tip_are_known(tmp_path: Path) -> None:
    history = History(SETTINGS, Store(tmp_path))
    for _ in range(3):
        grow(history)
    for chain in (history, History(SETTINGS, Store(tmp_path))):
        assert [base.electors for base in (chain.base_at(n, chain.tip_at(n)) for n in range(4)) if base is not None] == [
            (),
            tuple(PEERS[:3]),
            tuple(PEERS[2:]),
            tuple(PEERS[:3]),
        ]
        assert chain.base_at(1, ZERO_HASH) is None and chain.base_at(2, chain.tip_at(1)) is None
        assert chain.base_at(4, chain.tip) is None and chain.base_at(10**9, chain.tip) is None


def test_they_are_known_longer_than_what_else_the_chain_says_about_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "ROSTERS_KEPT", 2)
    history = History(SETTINGS, Store(tmp_path))
    for _ in range(6):
        grow(history)
    base = history.base_at(2, history.tip_at(2))
    assert base is not None and base.electors == history.roster_at(2).electorate.electors


def seen(history: History) -> tuple[object, ...]:
    """What a reader combines."""
    rosters = [history.roster_at(rounds) for rounds in range(history.length + 1)]
    return history.tips(0, 9), history.base, history.last, history.provisional, history.roster, rosters


def test_nobody_sees_half_of_a_change(tmp_path: Path) -> None:
    history = History(SETTINGS, Store(tmp_path))
    grow(history)
    before = seen(history)
    record = a_record(round=1, previous=history.tip, members=members(*PEERS[2:]))
    commit = Commit(record=record, index=INDEX, certificate=votes_for(record, PEERS[:3], 0, step=Step.SECOND))
    change = history.written(commit)
    assert seen(history) == before, "another thread writes it, and this one reads meanwhile"
    assert len(History(SETTINGS, Store(tmp_path)).tips(0, 9)) == 3, "on disk already"
    change()
    assert seen(history) == seen(History(SETTINGS, Store(tmp_path)))
    longer = seen(history)
    kept, change = history.switched(1, "", 1)
    assert seen(history) == longer
    change()
    assert seen(history) == before
    _, change = history.switched(1, kept, 2)
    assert seen(history) == before
    change()
    assert seen(history) == longer
