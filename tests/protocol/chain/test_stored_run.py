"""Runs on disk: what a replica keeps of results, and what is read of a run that nobody runs."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from protocol.chain.records import index_root
from protocol.chain.replica import Replica
from protocol.chain.results import CheckpointName, ResultName
from protocol.chain.stored_run import NotStored, StoredRun, StoredState
from protocol.wire.hashes import Hash, chunk_hash
from protocol.wire.messages import ChunkEntry
from tests.protocol.chains import a_replica, a_run, grow
from tests.protocol.peers import ANN


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    replica = a_replica(a_run(ANN), tmp_path)
    yield replica
    replica.state.close()


def grown(replica: Replica, rounds: int) -> None:
    grow(replica, rounds, [ANN], voters=[ANN])


def checkpoint(replica: Replica) -> None:
    state, history = replica.state, replica.history
    replica.store.checkpoints.write(CheckpointName(state.rounds, history.tip_at(state.rounds)), state.leaves(), state.view)


def opened(replica: Replica) -> StoredRun:
    return StoredRun(replica.signed, replica.store.root)


def theta(state: StoredState) -> np.ndarray:
    return np.concatenate(list(state.parameters(np.full(state.manifest.parameters, 0.5, np.float32))))


def now(replica: Replica) -> np.ndarray:
    return np.frombuffer(replica.state.theta, np.float32).copy()


def files(replica: Replica) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_ino, path.read_bytes()) for path in replica.store.root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 3), (2, 0), (2, 3)])
def test_the_newest_state_is_that_of_the_running_peer_to_the_bit(replica: Replica, before: int, after: int) -> None:
    grown(replica, before)
    if before:
        checkpoint(replica)
    grown(replica, after)
    state = opened(replica).newest()
    assert state.rounds == before + after and (state.start is not None) == (before > 0)
    assert np.array_equal(theta(state), now(replica))


def test_a_checkpoint_is_found_by_its_rounds(replica: Replica) -> None:
    kept = {}
    for _ in range(2):
        grown(replica, 2)
        checkpoint(replica)
        kept[replica.state.rounds] = now(replica)
    grown(replica, 1)
    for rounds, values in kept.items():
        assert np.array_equal(theta(opened(replica).checkpoint(rounds)), values)
    with pytest.raises(NotStored, match="there are some after 2, 4 rounds"):
        opened(replica).checkpoint(3)


def test_a_result_that_is_missing_is_told_with_what_there_is(replica: Replica) -> None:
    grown(replica, 2)
    checkpoint(replica)
    grown(replica, 3)
    record = replica.history.commit_at(3).record
    replica.store.results.remove(ResultName.of(record))
    with pytest.raises(NotStored, match=r"after 5 rounds .* result of round 3 is missing.* --checkpoint 2"):
        opened(replica).newest()


def test_a_damaged_checkpoint_is_passed_over_and_damaged_files_stay_where_they_are(replica: Replica) -> None:
    grown(replica, 2)
    checkpoint(replica)
    damaged = replica.store.checkpoints.path(CheckpointName(2, replica.history.tip_at(2)))
    grown(replica, 1)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x01")
    (replica.store.root / "records" / "00000002").write_bytes(b"torn")
    before = files(replica)
    state = opened(replica).newest()
    assert (state.rounds, state.start) == (2, None), "the torn record ends the chain; the beginning leads to its end"
    with pytest.raises(NotStored, match="damaged"):
        opened(replica).checkpoint(2)
    assert files(replica) == before


@pytest.mark.parametrize(
    ("place", "altered"),
    [(0, b"\0"), *((8, struct.pack("<ff", 1, value)) for value in (nan, inf, -1))],
)
def test_an_altered_result_is_told_before_any_of_it_is_used(tmp_path: Path, place: int, altered: bytes) -> None:
    """Also if the outer step cannot follow from it."""
    replica = a_replica(a_run(ANN, outer="auto"), tmp_path)
    grown(replica, 1)
    record = replica.history.commit_at(0).record
    path = replica.store.results.path(ResultName.of(record))
    content = bytearray(path.read_bytes())
    content[place : place + len(altered)] = altered
    path.write_bytes(content)
    with pytest.raises(NotStored, match="result of round 0 on disk is damaged"):
        theta(opened(replica).newest())
    replica.state.close()


# -- results --------------------------------------------------------------------------------------------------------------


def record_of(root: Hash) -> Any:
    return SimpleNamespace(round=3, fragment=0, result_root=root)


@pytest.mark.parametrize("altered", [None, 0, -1, "short"])
def test_a_result_with_other_bytes_than_its_index_is_none(replica: Replica, altered: int | str | None) -> None:
    data = bytearray(replica.layouts.result.payload_bytes)
    index = [ChunkEntry(hash=chunk_hash(memoryview(data)[span.encoded]), mask=b"\1") for span in replica.layouts.result]
    root = index_root(index)
    if altered == "short":
        del data[-1]
    elif isinstance(altered, int):
        data[altered] ^= 1
    file = replica.store.results.make(len(data))
    file.view[:] = data
    file.commit(ResultName(3, 0, root))
    found = replica.result(record_of(root), index)
    assert (found is not None) == (altered is None)
    assert (replica.store.results.view(ResultName(3, 0, root)) is not None) == (altered is None)
