"""The chain on disk: what a restart finds of it, what is pruned, and how it changes to another branch."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from protocol.blobs.blob import EvenSpans
from protocol.chain import history as history_module
from protocol.chain.base import round_settings
from protocol.chain.history import Branch, History
from protocol.chain.results import CheckpointName, ResultName
from protocol.chain.store import Store
from protocol.disk import Disk, StoreFailed, StoreFull, read_guarded
from protocol.wire.hashes import ZERO_HASH, Hash, chunk_hash
from protocol.wire.messages import Commit, Step
from tests.protocol.chains import FIVE, a_replica, a_run, grow
from tests.protocol.council import INDEX, PEERS, a_record, members, votes_for
from tests.simulation.world import simulated_run

ANN, BOB = FIVE[:2]
RUN = a_run(ANN)
SETTINGS = round_settings(RUN.run, RUN.manifest)
ROOTS = [Hash(bytes([number]) * 32) for number in range(8)]
STATE = b"ab" * 5
HASHES, SPANS = [chunk_hash(STATE[:8]), chunk_hash(STATE[8:])], EvenSpans(10, 8)


@pytest.fixture(scope="module")
def commits(tmp_path_factory: pytest.TempPathFactory) -> list[Commit]:
    """Of a chain of six rounds."""
    return made(tmp_path_factory.mktemp("made"), 6, 0)


def made(folder: Path, length: int, salt: int) -> list[Commit]:
    """A chain of so many rounds; another one for another `salt`."""
    replica = a_replica(RUN, folder)
    grow(replica, length, [ANN], salt=salt)
    replica.state.close()
    return [replica.history.commit_at(round) for round in range(length)]


def write_result(store: Store, round: int, root: Hash, data: bytes = b"result") -> None:
    file = store.results.make(len(data))
    file.view[:] = data
    file.commit(ResultName(round, 0, root))


def a_history_of(folder: Path, commits: list[Commit], checkpoints: Sequence[int] = ()) -> tuple[Store, History]:
    """With the result of each, checkpoints after so many rounds, and what binds our votes at all tips."""
    store = Store(folder)
    history = History(SETTINGS, store)
    for commit in commits:
        history.append(commit)
        write_result(store, commit.record.round, Hash(commit.record.result_root))
    for rounds in checkpoints:
        store.checkpoints.write(CheckpointName(rounds, history.tip_at(rounds)), ROOTS[:1], memoryview(b"state"))
    for rounds in range(history.length + 1):
        store.votes.save(rounds, history.tip_at(rounds), b"kept")
    return store, history


def bound(store: Store, history: History) -> list[int]:
    """The tips at which our votes are bound."""
    tips = range(history.length + 1)
    return [rounds for rounds in tips if store.votes.load(rounds, history.tip_at(rounds)) is not None]


@pytest.mark.parametrize("damage", [b"", b"torn", bytes(100), None], ids=["empty", "torn", "zeros", "folder"])
def test_a_damaged_record_counts_as_absent_and_is_set_aside(
    tmp_path: Path, damage: bytes | None, commits: list[Commit]
) -> None:
    store = Store(tmp_path)
    for commit in commits[:3]:
        store.records.write(commit)
    path = tmp_path / "records" / "00000001"
    path.unlink()
    path.mkdir() if damage is None else path.write_bytes(damage)
    assert History(SETTINGS, Store(tmp_path)).length == 1, "what stands on it leads nowhere"
    names = ["00000000", "00000001.corrupt", "00000002.corrupt"]
    assert sorted(path.name for path in (tmp_path / "records").iterdir()) == names
    again = Store(tmp_path)
    assert "2 records after round 1 cannot be read" in History(SETTINGS, again).damage(), "also after another start"
    for commit in commits[1:3]:
        again.records.write(commit)
    assert History(SETTINGS, again).damage() == "", "they have come again"


def test_a_damaged_file_that_cannot_be_moved_away_is_a_failure_of_the_store(tmp_path: Path) -> None:
    class Broken(Disk):
        def move(self, source: Path, target: Path) -> None:
            raise OSError(errno.EIO, "input/output error")

    (tmp_path / "vote").write_bytes(b"torn")
    with pytest.raises(StoreFailed, match="check it, or choose"):
        read_guarded(Broken(), tmp_path / "vote")


def test_a_result_is_there_once_it_is_committed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    file, other = store.results.make(6), store.results.make(6)
    file.view[:] = b"result"
    assert store.results.view(ResultName(5, 0, ROOTS[1])) is None
    file.commit(ResultName(5, 0, ROOTS[1]))
    other.discard()
    opened = store.results.view(ResultName(5, 0, ROOTS[1]))
    assert opened is not None and bytes(opened) == b"result"
    file.discard()
    assert store.results.view(ResultName(5, 0, ROOTS[1])) is not None, "it is no draft any more"
    assert (store.results.view(ResultName(5, 0, ROOTS[2])), store.results.oldest()) == (None, 5)
    store.results.remove(ResultName(5, 0, ROOTS[1]))
    assert (store.results.view(ResultName(5, 0, ROOTS[1])), store.results.oldest()) == (None, 0)


def test_results_whose_roots_begin_alike_are_two_files(tmp_path: Path) -> None:
    """64 bits of a hash can be met by whoever looks for them."""
    store, alike = Store(tmp_path), Hash(ROOTS[1][:31] + b"\xff")
    write_result(store, 5, ROOTS[1])
    assert store.results.view(ResultName(5, 0, alike)) is None
    write_result(store, 5, alike)
    store.results.remove(ResultName(5, 0, alike))
    assert store.results.view(ResultName(5, 0, ROOTS[1])) is not None


def test_a_restart_removes_what_was_half_written(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.results.make(10)
    (tmp_path / ".promise.new").write_bytes(b"half")
    (tmp_path / "records" / ".00000000.new").write_bytes(b"half")
    Store(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


def test_downloads_that_begin_in_several_threads_leave_each_other_alone(tmp_path: Path) -> None:
    """`posix_fallocate` lets other threads run."""
    results = Store(tmp_path).results

    def begin(round: int) -> bool:
        name = ResultName(round, 0, ROOTS[round])
        results.publish(results.begin(name, 1 << 20))
        return results.view(name) is not None

    for _ in range(20):
        with ThreadPoolExecutor(2) as threads:
            assert all(threads.map(begin, (1, 2)))
        for round in (1, 2):
            results.remove(ResultName(round, 0, ROOTS[round]))


def test_a_checkpoint_that_was_written_meanwhile_stays_when_its_abandoned_part_is_removed(tmp_path: Path) -> None:
    checkpoints, mine = Store(tmp_path).checkpoints, CheckpointName(4, ROOTS[4])
    checkpoints.end(checkpoints.begin(mine, len(STATE)))  # a download that was given up
    checkpoints.write(mine, HASHES, memoryview(STATE))
    checkpoints.begin(CheckpointName(8, ROOTS[5]), 10)
    found = checkpoints.view(mine)
    assert found is not None and bytes(found) == STATE and checkpoints.leaves(mine) == HASHES
    assert not [*tmp_path.glob(f"checkpoints/part-{4:08}-*")]


def test_a_download_ends_well_though_its_result_came_another_way_and_was_pruned(tmp_path: Path) -> None:
    results, name = Store(tmp_path).results, ResultName(4, 0, ROOTS[4])
    part = results.begin(name, len(STATE))
    made = results.make(len(STATE))
    made.view[:] = STATE
    made.commit(name)
    results.drop_before(5)
    part.view[:] = STATE
    results.publish(part)
    found = results.view(name)
    assert found is not None and bytes(found) == STATE


def test_a_download_for_which_there_was_no_room_can_be_begun_again(tmp_path: Path) -> None:
    class Full(Disk):
        is_full = True

        def reserve(self, file: BinaryIO, size: int) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, "no space left")
            super().reserve(file, size)

    disk = Full()
    checkpoints = Store(tmp_path, disk).checkpoints
    with pytest.raises(StoreFull):
        checkpoints.begin(CheckpointName(4, ROOTS[4]), 10)
    disk.is_full = False
    assert checkpoints.begin(CheckpointName(4, ROOTS[4]), 10).missing(HASHES, SPANS) == [0, 1]


@pytest.mark.parametrize("read_at, kept", [(0, [4, 6]), (2, [4, 6]), (4, [2, 4, 6]), (6, [2, 4, 6])])
def test_a_checkpoint_that_others_fetch_stays_for_one_more(
    tmp_path: Path, commits: list[Commit], read_at: int, kept: list[int]
) -> None:
    """read_at: how many rounds our chain had when somebody asked for the checkpoint after two."""
    store, history = a_history_of(tmp_path, commits, [0, 2, 4, 6])
    for asked in (0, 2):
        store.checkpoints.note_read(CheckpointName(asked, history.tip_at(asked)), read_at)
    store.prune(history, history.final)
    assert (store.checkpoints.of(history), store.results.oldest()) == (kept, kept[0])
    store.make_room(history)
    assert store.checkpoints.of(history) == [4, 6], "there are never more than three, the one that is written among them"


@pytest.mark.parametrize(
    "checkpoints, kept, oldest_result", [([], [], 1), ([2], [2], 1), ([2, 4], [2, 4], 2), ([2, 4, 6], [4, 6], 4)]
)
def test_pruning_leaves_two_checkpoints_and_the_results_since(
    tmp_path: Path, commits: list[Commit], checkpoints: list[int], kept: list[int], oldest_result: int
) -> None:
    store, history = a_history_of(tmp_path, commits, checkpoints)
    store.results.remove(ResultName.of(commits[0].record))
    store.prune(history, final=5)
    assert (store.checkpoints.of(history), store.results.oldest()) == (kept, oldest_result)
    assert bound(store, history)[0] == (kept[0] if len(kept) == 2 else 0), "a tip that we may come back to binds us"


def test_the_state_before_the_first_round_stays_where_members_compare_with_it(tmp_path: Path, commits: list[Commit]) -> None:
    store, history = a_history_of(tmp_path, commits, [0, 2, 4, 6])
    store.prune(history, history.final, keeps_first=True)
    assert (store.checkpoints.of(history), store.results.oldest()) == ([0, 4, 6], 4)
    store.make_room(history, keeps_first=True)
    assert store.checkpoints.of(history) == [0, 4, 6]
    store.make_room(history)
    assert store.checkpoints.of(history) == [4, 6]


def test_pruning_leaves_what_binds_our_votes_at_tips_that_are_not_final(tmp_path: Path, commits: list[Commit]) -> None:
    store, history = a_history_of(tmp_path, commits, [4, 6])
    store.prune(history, final=2)
    assert bound(store, history) == [2, 3, 4, 5, 6]


# -- switching ----------------------------------------------------------------------------------------------------------


class Dead(Exception):
    """The power is gone."""


class DyingDisk(Disk):
    """Dies before the operation of this number; `done` counts those before."""

    def __init__(self, dies_at: int | None = None) -> None:
        super().__init__(durable=False)
        self.dies_at, self.done = dies_at, 0

    def _pass(self) -> None:
        if self.done == self.dies_at:
            raise Dead
        self.done += 1

    def move(self, source: Path, target: Path) -> None:
        self._pass()
        super().move(source, target)

    def remove(self, path: Path) -> None:
        self._pass()
        super().remove(path)


def two_chains(folder: Path, disk: Disk | None = None) -> tuple[History, Store, Branch, list[bytes]]:
    """Ours of four rounds, and a branch of three of its own that leaves it after the first; our tips."""
    store = Store(folder / "store", disk)
    history, ours = History(SETTINGS, store), a_replica(RUN, folder / "ours")
    grow(ours, 1, [ANN])
    theirs = a_replica(RUN, folder / "theirs")
    grow(theirs, 1, [ANN])
    grow(ours, 3, [ANN])
    grow(theirs, 3, [ANN], salt=1)
    for round in range(4):
        history.append(ours.history.commit_at(round))
    branch = Branch(history, store.branches, "theirs", 1)
    for round in range(1, 4):
        branch.append(theirs.history.commit_at(round))
    return history, store, branch, [history.tip_at(rounds) for rounds in range(5)]


def test_a_switch_makes_the_branch_our_chain_and_keeps_ours_as_a_branch(tmp_path: Path) -> None:
    history, store, branch, ours = two_chains(tmp_path)
    theirs = [branch.tip_at(rounds) for rounds in range(5)]
    assert (branch.common, branch.length, branch.is_rooted) == (1, 4, True)
    kept = history.switch(1, "theirs", 3)
    assert history.tips(0, 9) == theirs[:4] and tips_on_disk(store) == theirs[:4]
    held = Branch.open(history, store.branches, kept)
    assert held is not None and [held.tip_at(rounds) for rounds in range(5)] == ours
    assert history.switch(1, kept, 4) == theirs[3].hex()
    assert history.tips(0, 9) == ours


def tips_on_disk(store: Store) -> list[Hash]:
    """The tips of the chain that is on disk."""
    return History(SETTINGS, Store(store.root)).tips(0, 9)


@pytest.mark.slow
def test_whenever_a_switch_dies_one_chain_is_whole(tmp_path: Path) -> None:
    counting = DyingDisk()
    history, _, branch, ours = two_chains(tmp_path / "counted", counting)
    theirs, before = [branch.tip_at(rounds) for rounds in range(5)], counting.done
    history.switch(1, "theirs", 4)
    operations = counting.done - before
    found = []
    for number in range(operations):
        disk = DyingDisk()
        history, store, _, _ = two_chains(tmp_path / f"{number}", disk)
        disk.dies_at = disk.done + number
        with pytest.raises(Dead):
            history.switch(1, "theirs", 4)
        again = History(SETTINGS, Store(store.root))
        assert again.tips(0, 9) in (ours, theirs)
        found.append(again.tips(0, 9) == theirs)
        if found[-1]:
            held = Branch.open(again, Store(store.root).branches, ours[-1].hex())
            assert held is not None and held.length == 4 and held.tip == ours[4]
    assert found == sorted(found) and {True, False} == set(found), "from one moment on it is theirs"


def test_a_branch_that_is_not_rooted_in_our_chain_is_none(tmp_path: Path) -> None:
    history, store, branch, _ = two_chains(tmp_path)
    history.switch(0, "", 0)
    assert not branch.is_rooted
    assert Branch.open(history, store.branches, "theirs") is None


def test_evidence_is_there_after_a_restart_unless_it_was_altered(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.evidence.save(ROOTS[1], b"proof")
    again = Store(tmp_path)
    assert (again.evidence.load(ROOTS[1]), again.evidence.names()) == (b"proof", ROOTS[1:2])
    assert again.evidence.size_bytes() == 32 + len(b"proof")
    path = tmp_path / "evidence" / ROOTS[1].hex()
    path.write_bytes(path.read_bytes()[:-1])
    assert (again.evidence.load(ROOTS[1]), again.evidence.names()) == (None, [])


def test_what_binds_votes_is_there_after_a_restart_unless_it_was_altered(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.votes.load(3, ROOTS[1]) is None and not store.votes.any()
    store.votes.save(3, ROOTS[1], b"first")
    store.votes.save(3, ROOTS[1], b"second")
    again = Store(tmp_path)
    assert again.votes.load(3, ROOTS[1]) == b"second" and again.votes.any()
    assert again.votes.load(3, ROOTS[2]) is None and again.votes.load(2, ROOTS[1]) is None
    path = tmp_path / "votes" / f"00000003-{ROOTS[1].hex()}"
    path.write_bytes(path.read_bytes()[:-1])
    assert again.votes.load(3, ROOTS[1]) is None


# -- reading it meanwhile -------------------------------------------------------------------------------------------------

SIMULATED = round_settings(simulated_run().run, simulated_run().manifest)


def grow_history(history: History) -> None:
    """One more record, of the first three peers in even rounds, and of the last three in odd ones."""
    peers = PEERS[:3] if history.length % 2 == 0 else PEERS[2:]
    record = a_record(round=history.length, previous=history.tip, members=members(*peers))
    history.append(Commit(record=record, index=INDEX, certificate=votes_for(record, peers, 0, step=Step.SECOND)))


def test_the_electors_of_every_tip_are_known(tmp_path: Path) -> None:
    history = History(SIMULATED, Store(tmp_path))
    for _ in range(3):
        grow_history(history)
    for chain in (history, History(SIMULATED, Store(tmp_path))):
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
    history = History(SIMULATED, Store(tmp_path))
    for _ in range(6):
        grow_history(history)
    base = history.base_at(2, history.tip_at(2))
    assert base is not None and base.electors == history.roster_at(2).electorate.electors


def seen(history: History) -> tuple[object, ...]:
    """What a reader combines."""
    rosters = [history.roster_at(rounds) for rounds in range(history.length + 1)]
    return history.tips(0, 9), history.base, history.last, history.provisional, history.roster, rosters


def test_nobody_sees_half_of_a_change(tmp_path: Path) -> None:
    history = History(SIMULATED, Store(tmp_path))
    grow_history(history)
    before = seen(history)
    record = a_record(round=1, previous=history.tip, members=members(*PEERS[2:]))
    commit = Commit(record=record, index=INDEX, certificate=votes_for(record, PEERS[:3], 0, step=Step.SECOND))
    change = history.written(commit)
    assert seen(history) == before, "another thread writes it, and this one reads meanwhile"
    assert len(History(SIMULATED, Store(tmp_path)).tips(0, 9)) == 3, "on disk already"
    change()
    assert seen(history) == seen(History(SIMULATED, Store(tmp_path)))
    longer = seen(history)
    kept, change = history.switched(1, "", 1)
    assert seen(history) == longer
    change()
    assert seen(history) == before
    _, change = history.switched(1, kept, 2)
    assert seen(history) == before
    change()
    assert seen(history) == longer
