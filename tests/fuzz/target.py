"""What the fuzzer runs: the first byte chooses a door, the rest enters.  Started by `python -m tests.fuzz`."""

from __future__ import annotations

import sys
from random import Random

import atheris

with atheris.instrument_imports(include=["protocol", "peer"]):
    from tests.fuzz.doors import DOORS, check

from tests.fuzz.mutations import mutated


def enter(data: bytes) -> None:
    if data:
        check(DOORS[data[0] % len(DOORS)], data[1:])


def change(data: bytes, max_bytes: int, seed: int) -> bytes:
    """Our own changes know what a message says; libFuzzer's know what has led somewhere."""
    random = Random(seed)
    if not data or random.random() < 0.5:
        changed: bytes = atheris.Mutate(data, max_bytes)
        return changed
    return (data[:1] + mutated(data[1:], random))[:max_bytes]


if __name__ == "__main__":
    atheris.Setup(sys.argv, enter, custom_mutator=change)
    atheris.Fuzz()
