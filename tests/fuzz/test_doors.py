"""Nothing that arrives can do more than be refused: no other exception, no memory beyond the limit, nothing misheard."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.wire.canonical import MAX_VALUES
from protocol.wire.messages import _unpack_again
from tests.fuzz.doors import DOORS, Door, check
from tests.fuzz.mutations import BOMBS, mutated

MUTATIONS = 150
FRONT_DOORS = ("canonical", "envelope", "question", "answer", "manifest", "control frame", "bulk frames", "push header")
"""What others pass through before they come to the rest: tried with inputs of full size."""
BYTES_PER_BYTE = 4
"""Memory that decoding may take for each byte of input."""
BYTES_AT_LEAST = 24 << 20
"""And beside that: `MAX_VALUES` empty maps and the copy that is compared, or one bulk frame."""

every_door = pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)


@every_door
def test_what_is_valid_is_let_in(door: Door) -> None:
    assert check(door, door.seeds[0])


@every_door
@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_or_said_again(door: Door, data: bytes) -> None:
    check(door, data)


@every_door
@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32))
def test_changed_messages_are_refused_or_said_again(door: Door, seed: int) -> None:
    random = Random(seed)
    for _ in range(MUTATIONS // 5):
        check(door, mutated(random.choice(door.seeds), random))


@pytest.mark.slow
@every_door
def test_no_input_takes_more_memory_than_declared(door: Door) -> None:
    full = door.max_bytes
    inputs = list(BOMBS)
    if door.name in FRONT_DOORS:
        announced = b"\xdd" + (MAX_VALUES - 1).to_bytes(4, "big")
        inputs += [bytes(full), announced + b"\x80" * MAX_VALUES, announced + b"\xcc\xff" * MAX_VALUES, b"\x80" * full]
    tracemalloc.start()
    try:
        for data in inputs:
            _unpack_again.cache_clear()
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            check(door, data)
            used = tracemalloc.get_traced_memory()[1] - before
            assert used <= BYTES_AT_LEAST + BYTES_PER_BYTE * len(data), f"{used >> 20} MiB for {len(data)} bytes"
    finally:
        tracemalloc.stop()
