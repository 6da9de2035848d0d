"""The table of hostile members in small: a real model, rounds with the real codec, rule and outer step."""

from __future__ import annotations

import pytest

from benchmarks.byzantine import HONEST, Bench, Case, Settings


@pytest.fixture(scope="module")
def bench(one_thread: None) -> Bench:
    return Bench(Settings(rounds=4, inner_steps=5, warm_steps=40, sequences=4))


@pytest.mark.slow
def test_one_sign_flip_times_1000_ruins_the_mean_and_costs_the_other_rules_little(bench: Bench) -> None:
    started, honest = bench.loss(bench.start), bench.run(HONEST)
    assert honest < started - 0.05
    assert bench.run(Case("mean", "sign flip x -1000", 1)) > started + 1
    for case in (
        Case("clip", "sign flip x -1000", 1),
        Case("trimmed", "sign flip x -1000", 2),
        Case("centered_clip", "sign flip x -1000", 2),
    ):
        assert bench.run(case) < (started + honest) / 2
