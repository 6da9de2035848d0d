"""It learns: a tiny byte-level model, sampled naively, comes to write what is rewarded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from benchmarks.rl_bench import END, Question, Settings, Trial, Variant, decoder, sample, text_of
from tests.trainer import small
from trainer.models.llama.config import ModelConfig
from trainer.rl.config import RlConfig

MODEL = ModelConfig.from_mapping(small.MODEL)


class Letters:
    """As many of one letter as possible: the reward is its share of the output."""

    size = 1 << 20

    def problem(self, index: int) -> Question:
        return Question(f"{index % 10}:", "")

    def score(self, problem: Question, turns: Sequence[str]) -> float:
        return turns[-1].count("a") / max(1, len(turns[-1]))

    def example(self, index: int) -> tuple[str, str]:
        return self.problem(index).prompt, "a"


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("staleness", [0, 2])
def test_the_rewarded_letter_becomes_most_of_what_is_written(staleness: int) -> None:
    rl = RlConfig(
        prompts=8, group_size=16, max_tokens=12, row_tokens=64, micro_batch_tokens=1 << 12, optimizer_steps=2, lr=2e-2,
        warmup_steps=0, min_solve_rate=0.0,
    )  # fmt: skip
    settings = Settings(MODEL, rl, versions=25, warm_reward=0.0, pool=64, judged=32)
    trial = Trial(Letters(), settings, Variant(staleness=staleness), seed=1)
    trial.run(decoder(MODEL, 1).flat)
    assert trial.rewards[0] < 0.05 and trial.rewards[-1] > 0.9
    assert trial.learnt[-1].reward > trial.learnt[0].reward + 0.5
    assert trial.learnt[-1].entropy < trial.learnt[0].entropy - 1


def test_sampling_ends_with_the_end_token_or_at_the_limit() -> None:
    model = decoder(MODEL, 0)
    with torch.no_grad():
        model.tensors["model.embed_tokens.weight"][END] += 0.5  # output weights too: ends come often
    outputs = sample(model, [b"a", b"bcd", b"e"] * 40, 10, torch.Generator().manual_seed(0))
    assert {len(output) for output in outputs if output[-1] != END} == {10}
    assert len({len(output) for output in outputs}) > 3
    assert all(END not in output[:-1] for output in outputs)
    assert text_of((97, 98, END)) == text_of((97, 98)) == "ab"
