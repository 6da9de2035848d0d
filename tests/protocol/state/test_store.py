"""What the store gives back after it was written, restarted, damaged, truncated or pruned."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.state.base import Base
from protocol.state.chain import genesis_tip
from protocol.state.history import History
from protocol.state.store import Store
from protocol.wire.hashes import Hash, chunk_hash
from protocol.wire.messages import Commit
from tests.protocol.peers import ANN, extended
from tests.simulation.world import simulated_run

ROOTS = [Hash(bytes([number]) * 32) for number in range(8)]


def chain(length: int) -> list[Commit]:
    """A chain of so many rounds."""
    base, commits = Base(0, 0, genesis_tip(simulated_run().run), None), []
    for _ in range(length):
        commit, base = extended(simulated_run(), base, ANN)
        commits.append(commit)
    return commits


def write_result(store: Store, round: int, root: Hash, data: bytes = b"result") -> None:
    file = store.results.begin(round, 0, len(data))
    file.view[:] = data
    file.commit(root)


def test_records_are_counted_up_to_the_first_gap(tmp_path: Path) -> None:
    store, commits = Store(tmp_path), chain(4)
    for round in (0, 1, 3):
        store.records.append(commits[round])
    again = Store(tmp_path).records
    assert (again.length(), again.at(1), again.at(2), again.at(3)) == (2, commits[1], None, commits[3])


@pytest.mark.parametrize("damage", [b"", b"torn", bytes(100)])
def test_a_damaged_record_counts_as_absent_and_is_set_aside(tmp_path: Path, damage: bytes) -> None:
    store = Store(tmp_path)
    for commit in chain(3):
        store.records.append(commit)
    (tmp_path / "records" / "00000001").write_bytes(damage)
    assert History(simulated_run().run, Store(tmp_path)).length == 1, "what stands on it leads nowhere"
    assert sorted(path.name for path in (tmp_path / "records").iterdir()) == ["00000000", "00000001.corrupt"]


def test_a_result_is_there_once_it_is_committed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    file, other = store.results.begin(5, 0, 6), store.results.begin(5, 0, 6)
    file.view[:] = b"result"
    assert store.results.open(5, 0, ROOTS[1]) is None
    file.commit(ROOTS[1])
    other.discard()
    opened = store.results.open(5, 0, ROOTS[1])
    assert opened is not None and bytes(opened) == b"result"
    file.discard()
    assert store.results.open(5, 0, ROOTS[1]) is not None, "it is no draft any more"
    assert (store.results.open(5, 0, ROOTS[2]), store.results.oldest()) == (None, 5)
    store.results.drop(5, 0, ROOTS[1])
    assert (store.results.open(5, 0, ROOTS[1]), store.results.oldest()) == (None, 0)


def test_results_whose_roots_begin_alike_are_two_files(tmp_path: Path) -> None:
    """64 bits of a hash can be met by whoever looks for them."""
    store, alike = Store(tmp_path), Hash(ROOTS[1][:31] + b"\xff")
    write_result(store, 5, ROOTS[1])
    assert store.results.open(5, 0, alike) is None
    write_result(store, 5, alike)
    store.results.drop(5, 0, alike)
    assert store.results.open(5, 0, ROOTS[1]) is not None


def test_a_restart_removes_what_was_half_written(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.results.begin(1, 0, 10)
    (tmp_path / ".promise.new").write_bytes(b"half")
    (tmp_path / "records" / ".00000000.new").write_bytes(b"half")
    Store(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_checkpoint_needs_its_hashes_and_its_bytes(tmp_path: Path) -> None:
    checkpoints, state = Store(tmp_path).checkpoints, b"ab" * 5
    leaves = [chunk_hash(state[:8]), chunk_hash(state[8:])]
    checkpoints.write(4, leaves, memoryview(state))
    opened = checkpoints.open(4)
    assert opened is not None and (opened[0], bytes(opened[1])) == (leaves, state)
    (tmp_path / "checkpoints" / "00000004.leaves").write_bytes(b"torn")
    assert checkpoints.open(4) is None and checkpoints.open(3) is None


def test_a_download_goes_on_where_it_stopped(tmp_path: Path) -> None:
    state = b"ab" * 5
    leaves = [chunk_hash(state[:8]), chunk_hash(state[8:])]
    begun = Store(tmp_path).checkpoints.download(4, leaves, len(state), 8)
    begun.view[:8] = state[:8]
    resumed = Store(tmp_path).checkpoints.download(4, leaves, len(state), 8)
    assert resumed.missing() == [1]
    resumed.view[8:] = state[8:]
    assert resumed.missing() == []
    resumed.commit()
    opened = Store(tmp_path).checkpoints.open(4)
    assert opened is not None and bytes(opened[1]) == state


def test_another_download_takes_the_place_of_an_abandoned_one(tmp_path: Path) -> None:
    checkpoints = Store(tmp_path).checkpoints
    checkpoints.download(4, ROOTS[:2], 10, 8)
    checkpoints.download(8, ROOTS[2:4], 10, 8)
    assert len(list((tmp_path / "checkpoints").glob("part-*"))) == 1


def test_truncating_drops_records_and_the_checkpoints_on_them(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for commit in chain(6):
        store.records.append(commit)
    for rounds in (2, 4, 6):
        store.checkpoints.write(rounds, ROOTS[:1], memoryview(b"state"))
    store.truncate(4)
    assert (store.records.length(), store.checkpoints.rounds()) == (4, [2, 4])


@pytest.mark.parametrize(
    "checkpoints, kept, oldest_result", [([], [], 1), ([2], [2], 1), ([2, 4], [2, 4], 2), ([2, 4, 6], [4, 6], 4)]
)
def test_pruning_leaves_two_checkpoints_and_the_results_since(
    tmp_path: Path, checkpoints: list[int], kept: list[int], oldest_result: int
) -> None:
    store = Store(tmp_path)
    for round in range(1, 7):
        write_result(store, round, ROOTS[round])
    for rounds in checkpoints:
        store.checkpoints.write(rounds, ROOTS[:1], memoryview(b"state"))
    store.prune()
    assert (store.checkpoints.rounds(), store.results.oldest()) == (kept, oldest_result)


def test_promise_and_evidence_are_there_after_a_restart_unless_they_were_altered(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.promise.load() is None
    store.promise.save(b"first")
    store.promise.save(b"second")
    store.evidence.save(ROOTS[1], b"proof")
    again = Store(tmp_path)
    assert (again.promise.load(), again.evidence.load(ROOTS[1]), again.evidence.names()) == (b"second", b"proof", ROOTS[1:2])
    assert again.evidence.size_bytes() == 32 + len(b"proof")
    for path in (tmp_path / "promise", tmp_path / "evidence" / ROOTS[1].hex()):
        path.write_bytes(path.read_bytes()[:-1])
    assert (again.promise.load(), again.evidence.load(ROOTS[1]), again.evidence.names()) == (None, None, [])
