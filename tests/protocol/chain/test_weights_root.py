"""The root of the parameters in bf16, which the records of runs with rollouts name."""

from __future__ import annotations

import numpy as np
import torch

from protocol.chain.outer_state import OuterState, bf16
from protocol.wire.hashes import chunk_hash, tree_root
from tests.simulation.rollouts import rl_run


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
