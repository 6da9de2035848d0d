"""The outer state goes back to zeros from wherever it is."""

from __future__ import annotations

from protocol.chain.outer_state import OuterState
from tests.simulation.world import simulated_run


def test_a_new_state_and_one_that_was_written_are_zeros_after_a_reset() -> None:
    state = OuterState(simulated_run().manifest)
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


def test_a_state_that_was_loaded_first_is_zeros_after_a_reset() -> None:
    state = OuterState(simulated_run().manifest)
    state.load(memoryview(bytes([7]) * state.size_bytes), 3)
    state.reset()
    assert state.view == bytes(state.size_bytes)
    state.close()
