"""It learns: a tiny byte-level model, sampled naively, comes to write what is rewarded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest
import torch

from benchmarks import rl_ablation
from benchmarks.rl_bench import END, Question, Settings, Trial, Variant, decoder, sample, text_of
from protocol.formats.model import ModelConfig
from protocol.formats.rl import RlConfig
from tests.tiers import first_fast
from tests.trainer import small
from trainer.rl.learner import LearnTask

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


def test_sampling_ends_with_the_end_token_or_at_the_limit() -> None:
    model = decoder(MODEL, 0)
    with torch.no_grad():
        model.tensors["model.embed_tokens.weight"][END] += 0.5  # output weights too: ends come often
    outputs = sample(model, [b"a", b"bcd", b"e"] * 40, 10, torch.Generator().manual_seed(0))
    assert {len(output) for output in outputs if output[-1] != END} == {10}
    assert len({len(output) for output in outputs}) > 3
    assert all(END not in output[:-1] for output in outputs)
    assert text_of((97, 98, END)) == text_of((97, 98)) == "ab"


@pytest.mark.usefixtures("one_thread")
def test_the_ablation_compares_every_combination_and_ends_with_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(trial: Trial, warm: torch.Tensor) -> float:
        variant = trial.variant
        trial.rewards += [0.25, *[0.5 + 0.1 * variant.filters - 0.01 * variant.staleness] * rl_ablation.LAST]
        trial.learnt.append(trial.learner.learn(LearnTask(0, 0), []))
        return trial.rewards[-1]

    monkeypatch.setattr(Trial, "run", run)
    monkeypatch.setattr(rl_ablation, "warm_start", lambda task, settings, seed: torch.zeros(1))
    assert rl_ablation.main(["--seeds", "3", "4", "--json"]) == 0
    table = json.loads(capsys.readouterr().out.splitlines()[-1])
    found = {(row["two_sided"], row["filters"], row["staleness"]): row["final"] for row in table["rows"]}
    assert len(found) == len(table["rows"]) == 12 and table["seeds"] == [3, 4]
    assert found[True, False, 4] == pytest.approx([0.46, 0.46])


def test_a_task_can_be_any_class_by_its_name() -> None:
    assert isinstance(rl_ablation.task_named(f"{__name__}:Letters"), Letters)
    with pytest.raises(ValueError, match="unknown task 'sums'"):
        rl_ablation.task_named("sums")
