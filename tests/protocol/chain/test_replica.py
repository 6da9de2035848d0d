"""A result on disk is what its record says, or it is not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.chain.outer_state import OuterState
from protocol.chain.records import index_root
from protocol.chain.replica import Replica
from protocol.chain.results import ResultName
from protocol.chain.store import Store
from protocol.wire.hashes import Hash, chunk_hash
from protocol.wire.messages import ChunkEntry
from tests.simulation.world import simulated_run


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    signed = simulated_run()
    found = Replica.open(signed, Store(tmp_path), OuterState(signed.manifest))
    yield found
    found.state.close()


def record_of(root: Hash) -> Any:
    return SimpleNamespace(round=3, fragment=0, result_root=root)


@pytest.mark.parametrize("altered", [None, 0, -1])
def test_a_result_with_other_bytes_than_its_index_is_none(replica: Replica, altered: int | None) -> None:
    data = bytearray(replica.layouts.result.payload_bytes)
    index = [ChunkEntry(hash=chunk_hash(memoryview(data)[span.encoded]), mask=b"\1") for span in replica.layouts.result]
    root = index_root(index)
    if altered is not None:
        data[altered] ^= 1
    file = replica.store.results.make(len(data))
    file.view[:] = data
    file.commit(ResultName(3, 0, root))
    found = replica.result(record_of(root), index)
    assert (found is not None) == (altered is None)
    assert (replica.store.results.view(ResultName(3, 0, root)) is not None) == (altered is None)


def test_a_result_of_another_length_is_none(replica: Replica) -> None:
    index = [ChunkEntry(hash=chunk_hash(b""), mask=b"\1") for _ in replica.layouts.result]
    file, root = replica.store.results.make(1), index_root(index)
    file.commit(ResultName(3, 0, root))
    assert replica.result(record_of(root), index) is None
