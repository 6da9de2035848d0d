"""The checks can fail: each build that is broken on purpose is found by some seed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.simulation.ambushes import AMBUSHES, ambush
from tests.simulation.mutations import MUTATIONS
from tests.simulation.runs import holds, rough_job
from tests.tiers import first_fast

INVARIANTS = {"agreement", "parity", "mass", "no loss", "progress", "heal", "crash", "order", "once"}
SEEDS = 60
"""Every mutation is found within so many seeds, most within twelve; `--mutations` looks for the first one."""


def test_every_invariant_has_a_mutation() -> None:
    assert {mutation.broken for mutation in MUTATIONS.values()} == INVARIANTS


@pytest.mark.parametrize("name", first_fast(MUTATIONS))
def test_the_simulator_finds(name: str) -> None:
    if name in AMBUSHES:
        failure = ambush(name, name).failure
        assert failure is not None and MUTATIONS[name].shows in failure, (
            f"nobody noticed that {MUTATIONS[name].how}: {failure}"
        )
        return
    failures = []
    for seed in dict.fromkeys([*FINDERS.get(name, ()), *range(1, SEEDS + 1)]):
        failure = rough_job((seed, None, None, name)).failure
        if failure is not None and MUTATIONS[name].shows in failure:
            return
        failures.append(failure)
    pytest.fail(f"nobody noticed that {MUTATIONS[name].how}: {failures}")


@pytest.mark.slow
@pytest.mark.parametrize("name", AMBUSHES)
def test_the_protocol_holds_in_each_ambush(name: str) -> None:
    holds(ambush(name, None))


FINDERS: dict[str, Sequence[int]] = {
    "fork-choice-keeps-ours": range(7, 13),
    "shared-slots-accepted": (9,),
}
"""Where to begin to look, when it is not at the first seed: whatever changes the order of events may change these."""
