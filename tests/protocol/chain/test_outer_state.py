"""The outer state: in memory or in a file, with its digest and the root of its weights."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from protocol.chain import outer_state
from protocol.chain.outer_state import OuterState, bf16
from protocol.chain.replica import Replica
from protocol.disk import Disk, ScratchFolder, StoreFull
from protocol.wire.hashes import Hash, chunk_hash, tree_root
from tests.protocol.chains import FIVE, a_replica, a_run, grow
from tests.simulation.rollouts import rl_run
from tests.simulation.world import simulated_run


@pytest.fixture(params=["memory", "file"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> OuterState:
    return OuterState(
        simulated_run().manifest, ScratchFolder(Disk(), tmp_path / "scratch") if request.param == "file" else None
    )


def test_a_new_state_and_one_that_was_written_are_zeros_after_a_reset(state: OuterState) -> None:
    zeros = bytes(state.size_bytes)
    state.reset()
    assert state.view == zeros
    state.view[5] = 1  # as a trainer writes the initial parameters
    state.reset()
    assert state.view == zeros
    state.load(memoryview(bytes([7]) * state.size_bytes), 3)
    state.reset()
    assert (state.view == zeros, state.rounds) == (True, 0)
    state.close()


def test_a_digest_is_right_while_another_thread_hashes_all_pieces_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As a checkpoint is written at the beginning of a round."""
    state = a_replica(a_run(*FIVE), tmp_path).state
    right = state.leaves()
    state.load(memoryview(bytes(state.view)), 3)
    pieces, began, done = list[bool](), threading.Event(), threading.Event()

    def hashed_in_turn(piece: memoryview) -> Hash:
        """The other thread begins before our third piece, and goes on with its second piece after our last one."""
        ours = threading.current_thread() is not other
        pieces.append(ours)
        if pieces == [True] * 3:
            other.start()
            began.wait()
        elif not ours and pieces.count(False) == 2:
            began.set()
            done.wait()
        return chunk_hash(piece)

    other = threading.Thread(target=state.leaves)
    monkeypatch.setattr(outer_state, "chunk_hash", hashed_in_turn)
    found = state.digest()
    done.set()
    other.join()
    assert len(right) > 3 and found == state.digest() == tree_root(right)
    assert pieces.count(True) == pieces.count(False) == len(right)
    state.close()


def replicas(folder: Path) -> tuple[Replica, Replica]:
    """One with its state in memory, and one with its state in a file."""
    signed = a_run(*FIVE)
    scratch = ScratchFolder(Disk(), folder / "scratch")
    return a_replica(signed, folder / "one"), a_replica(signed, folder / "other", scratch)


def test_a_state_in_a_file_has_the_bytes_and_the_digest_of_one_in_memory_round_after_round(tmp_path: Path) -> None:
    one, other = replicas(tmp_path)
    for rounds in range(1, 6):
        for replica in (one, other):
            grow(replica, 1, FIVE)
        assert (one.state.rounds, one.state.digest()) == (rounds, other.state.digest())
        assert one.state.leaves() == other.state.leaves() and one.state.weights_root() == other.state.weights_root()
    assert one.state.view == other.state.view
    assert np.frombuffer(other.state.theta, np.float32).any()


def test_the_file_of_a_killed_process_is_gone_when_the_folder_is_opened_and_that_of_a_closed_state_at_once(
    tmp_path: Path,
) -> None:
    manifest, folder = simulated_run().manifest, tmp_path / "scratch"
    left = OuterState(manifest, ScratchFolder(Disk(), folder))
    left.view[0] = 1
    assert [path.name for path in folder.iterdir()] == ["state"]
    scratch = ScratchFolder(Disk(), folder)
    assert not [*folder.iterdir()]
    state = OuterState(manifest, scratch)
    assert state.view == bytes(state.size_bytes)
    state.close()
    assert not [*folder.iterdir()]


def test_a_full_disk_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    scratch = ScratchFolder(disk, tmp_path / "scratch")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(disk, "reserve", full)
    with pytest.raises(StoreFull, match="make room there"):
        OuterState(simulated_run().manifest, scratch)
    assert not [*(tmp_path / "scratch").iterdir()]


# -- weights --------------------------------------------------------------------------------------------------------------


def test_values_are_rounded_as_torch_rounds_them() -> None:
    bits = np.random.Generator(np.random.Philox(1)).integers(0, 1 << 32, 200_000, dtype=np.uint32)
    values = bits.view(np.float32)
    wanted = torch.from_numpy(values.copy()).to(torch.bfloat16).view(torch.uint16).numpy()
    usual = ~np.isnan(values)
    assert (bf16(bits)[usual] == wanted[usual]).all()
    assert np.isnan((bf16(bits)[~usual].astype(np.uint32) << 16).view(np.float32)).all()


def test_the_root_is_over_pieces_of_the_bytes_that_a_weight_file_has() -> None:
    manifest = rl_run().manifest
    state = OuterState(manifest)
    theta = np.frombuffer(state.theta, np.float32)
    theta[:] = np.random.Generator(np.random.Philox(2)).standard_normal(theta.size, dtype=np.float32)
    whole = torch.from_numpy(theta.copy()).to(torch.bfloat16).view(torch.uint16).numpy().tobytes()
    piece = manifest.checkpoint_chunk_bytes
    assert len(whole) > piece
    leaves = [chunk_hash(whole[at : at + piece]) for at in range(0, len(whole), piece)]
    assert state.weights_root() == tree_root(leaves)
    before = state.weights_root()
    theta[-1] += 1
    assert state.weights_root() != before
    del theta
    state.close()
