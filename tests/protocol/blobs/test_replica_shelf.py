"""Checkpoints on disk as blobs: their hashes are read once, and what became shorter or is gone is not served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from protocol.blobs.store import Holding
from protocol.chain.records import encoded_record_hash, record_hash
from protocol.chain.replica import Replica, ReplicaShelf, Serving
from protocol.chain.results import CheckpointName, ResultName
from protocol.wire.envelope import decode_body
from protocol.wire.hashes import Hash, tree_root
from protocol.wire.messages import Commit
from protocol.wire.questions import CommitsReply, CommitsRequest
from tests.protocol.answering import ask
from tests.protocol.chains import FIVE, a_replica, a_run, grow
from tests.protocol.peers import ANN
from tests.simulation.determinism import inline


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    replica = a_replica(a_run(ANN), tmp_path)
    state, tip = replica.state, replica.history.tip
    replica.store.checkpoints.write(CheckpointName(state.rounds, tip), state.leaves(), state.view)
    yield replica
    replica.state.close()


def test_a_checkpoint_that_became_shorter_or_is_gone_is_not_served(replica: Replica) -> None:
    shelf, digest = ReplicaShelf(replica), tree_root(replica.state.leaves())
    assert shelf.find(digest) is not None
    mark = CheckpointName(replica.state.rounds, replica.history.tip)
    path = replica.store.checkpoints.path(mark)
    path.write_bytes(path.read_bytes()[:-1])
    assert shelf.find(digest) is None
    replica.store.checkpoints.remove(mark)
    assert shelf.find(digest) is None


def test_a_checkpoint_that_was_written_anew_is_served(replica: Replica) -> None:
    shelf, leaves = ReplicaShelf(replica), replica.state.leaves()
    mark, digest = CheckpointName(replica.state.rounds, replica.history.tip), tree_root(leaves)
    replica.store.checkpoints.write(mark, leaves[::-1], replica.state.view)
    assert shelf.find(digest) is None
    replica.store.checkpoints.write(mark, leaves, replica.state.view)
    assert shelf.find(digest) is not None


def test_what_is_here_is_listed(replica: Replica) -> None:
    whole = replica.layouts.result.payload_bytes
    for round, size in ((3, whole), (4, whole - 1)):
        file = replica.store.results.make(size)
        file.commit(ResultName(round, 0, Hash(bytes([round]) * 32)))
    digest, size = tree_root(replica.state.leaves()), replica.state.size_bytes
    assert ReplicaShelf(replica).holdings() == [
        Holding("checkpoint", 0, digest.hex(), size),
        Holding("result", 3, "03" * 32, whole),
    ]


def test_a_question_for_a_checkpoint_is_noted(replica: Replica) -> None:
    shelf, mark = ReplicaShelf(replica), CheckpointName(replica.state.rounds, replica.history.tip)
    shelf.find(Hash(bytes(32)))
    assert not replica.store.checkpoints.was_read(mark, since=0)
    shelf.find(tree_root(replica.state.leaves()))
    assert replica.store.checkpoints.was_read(mark, since=0) and not replica.store.checkpoints.was_read(mark, since=1)


@pytest.fixture
def of_five(tmp_path: Path) -> Iterator[Replica]:
    """One that five peers founded."""
    replica = a_replica(a_run(*FIVE), tmp_path)
    yield replica
    replica.state.close()


def test_questions_that_come_while_branches_are_exchanged_are_answered_with_what_is_there(of_five: Replica) -> None:
    """Records leave the disk before the chain forgets them, in another thread than the one that answers."""
    grow(of_five, 4, FIVE)
    roots = [Hash(of_five.history.commit_at(round).record.result_root) for round in range(4)]
    of_five.store.records.set_aside_from(2)
    found = [ReplicaShelf(of_five).find(root) for root in roots]
    assert [held is not None and held.leaves() is not None for held in found] == [True, True, False, False]

    async def told(start: int) -> CommitsReply:
        question = CommitsRequest(start=start, count=9).encode()
        return decode_body(CommitsReply, await ask(Serving(of_five, inline), ANN.peer_id, "commits", question))

    assert len(trio.run(told, 1).commits) == 1 and not trio.run(told, 3).commits and not trio.run(told, 7).commits


def test_records_are_sent_as_they_are_on_disk(of_five: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding and encoding a record takes milliseconds, and a question asks for 64."""
    grow(of_five, 4, FIVE)
    commits = [of_five.history.commit_at(round) for round in range(4)]
    for commit in commits:
        assert encoded_record_hash(commit.encode()) == record_hash(commit.record)
    assert encoded_record_hash(b"odd") is None and encoded_record_hash(commits[0].encode()[:-40]) is None

    def forbidden(*anything: object) -> object:
        raise AssertionError("a record was decoded or encoded for an answer")

    question = CommitsRequest(start=0, count=64)
    monkeypatch.setattr("protocol.chain.store.decode_body", forbidden)
    expected = CommitsReply(commits=[commit.encode() for commit in commits]).encode()
    monkeypatch.setattr(Commit, "encode", forbidden)
    assert trio.run(Serving(of_five, inline).answer_commits, ANN.peer_id, question) == expected


def test_nobody_is_told_records_of_two_chains_as_one(tmp_path: Path) -> None:
    """Branches are exchanged in another thread, so that files of the other one are there before the chain is."""
    ours, others = (a_replica(a_run(*FIVE), tmp_path / name) for name in ("ours", "theirs"))
    try:
        for replica, salt in (ours, 1), (others, 2):
            grow(replica, 2, FIVE)
            grow(replica, 2, FIVE, salt=salt)
        assert ours.history.tip_at(2) == others.history.tip_at(2) and ours.history.tip != others.history.tip

        async def told(start: int) -> list[bytes]:
            question = CommitsRequest(start=start, count=9).encode()
            return decode_body(CommitsReply, await ask(Serving(ours, inline), ANN.peer_id, "commits", question)).commits

        whole = trio.run(told, 0)
        ours.store.records.write(others.history.commit_at(3))
        assert trio.run(told, 0) == whole[:3] and not trio.run(told, 3)
        ours.store.records.write(others.history.commit_at(2))
        assert trio.run(told, 0) == whole[:2] and not trio.run(told, 2)
    finally:
        ours.state.close()
        others.state.close()
