"""It learns: a tiny byte-level model, sampled naively, comes to write what is rewarded."""

from __future__ import annotations

import pytest

from benchmarks.rl_bench import Letters, Settings, Trial, Variant, decoder
from protocol.formats.model import ModelConfig
from protocol.formats.rl import RlConfig
from tests.tiers import first_fast
from tests.trainer import small

MODEL = ModelConfig.from_mapping(small.MODEL)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("staleness", first_fast([2, 0]))
def test_the_rewarded_letter_becomes_most_of_what_is_written(staleness: int) -> None:
    rl = RlConfig(
        group_size=16, max_tokens=12, row_tokens=64, micro_batch_tokens=1 << 12, optimizer_steps=2, lr=2e-2,
        warmup_steps=0, min_solve_rate=0.0,
    )  # fmt: skip
    settings = Settings(MODEL, rl, versions=25, warm_reward=0.0, pool=64, judged=32, prompts=8)
    trial = Trial(Letters(), settings, Variant(staleness=staleness), seed=1)
    trial.run(decoder(MODEL, 1).flat)
    assert trial.rewards[0] < 0.05 and trial.rewards[-1] > 0.9
    assert trial.learnt[-1].reward > trial.learnt[0].reward + 0.5
    assert trial.learnt[-1].entropy < trial.learnt[0].entropy - 1
