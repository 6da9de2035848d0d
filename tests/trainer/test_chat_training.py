"""Learning from chats: what the assistant says is learnt, and nothing else moves the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernels.losses import language_model_loss
from peer.corpora.build import build
from peer.corpora.inputs import BuildInput
from peer.corpora.options import BuildOptions, TokenFormat
from protocol.corpora.manifest import CorpusKind
from protocol.formats.model import ModelConfig
from tests.trainer import small
from tests.trainer.made_tokenizer import ENDS, VOCAB, make_tokenizer
from trainer.config import TrainingConfig
from trainer.data.rows import Rows
from trainer.models.llama.initial import initial_parameters
from trainer.models.llama.model import Decoder, Documents, hidden_states
from trainer.objective import LanguageModelObjective
from trainer.optim import InnerLoop
from trainer.parameters import WholeParameters
from trainer.worker import Task, Worker

LENGTH = 64
COUNT = 4
"""Rows of a step."""


BYTES = TokenFormat(CorpusKind.CHAT, template="plain", row_tokens=LENGTH + 1)


def chats(path: Path, tokens: TokenFormat = BYTES) -> Path:
    """A corpus of chats."""
    records = [
        {
            "messages": [
                {"role": "user", "content": f"{n} {n * n % 97}?"},
                {"role": "assistant", "content": "ab" * (1 + n % 3)},
            ]
        }
        for n in range(60)
    ]
    talk = path.with_suffix(".jsonl")
    talk.write_text("".join(json.dumps(record) + "\n" for record in records))
    if not path.exists():
        build([BuildInput("talk", talk)], BuildOptions(tokens, held_out_percent=20, workers=1), path)
    return path


def sections_on(corpus: Path) -> dict[str, Any]:
    return small.run_sections(corpus, {"talk": 1}, format="chat", sequence_length=LENGTH, sequences_per_step=COUNT)


def config(folder: Path, **changes: Any) -> TrainingConfig:
    return TrainingConfig.from_sections(sections_on(chats(folder / "talk")) | changes)


def with_tokenizer(folder: Path) -> TrainingConfig:
    tokenizer = make_tokenizer(folder / "tokens")
    sections = sections_on(chats(folder / "talk", TokenFormat(CorpusKind.CHAT, tokenizer, ENDS, "chatml", LENGTH + 1)))
    sections["files"]["tokenizer.json"] = str(tokenizer)
    model, facts = small.MODEL | {"vocab": VOCAB}, {"template": "chatml", "ends": list(ENDS)}
    return TrainingConfig.from_sections(sections | {"model": model, "tokenizer": facts})


def begun(worker: Worker) -> np.ndarray:
    theta = np.empty(worker.config.model.parameters, dtype=np.float32)
    initial_parameters(worker.config.model, 7, theta)
    return theta


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bytes", "tokenizer"])
def test_a_round_lowers_the_loss_of_what_the_assistant_says(kind: str, tmp_path: Path) -> None:
    worker = Worker(with_tokenizer(tmp_path) if kind == "tokenizer" else config(tmp_path), small.CPU)
    theta = begun(worker)
    before = worker.evaluate(theta)
    out = bytearray(worker.layout[-1].encoded.stop)
    counted = []

    def after_step(steps: int, loss: float, tokens: int, tokens_per_s: float) -> bool:
        counted.append(tokens)
        return False

    done = worker.compute(Task(0, [[0, 30 * COUNT]], 30, 0), theta, memoryview(out), after_step)
    after = worker.evaluate(worker.model.flat.numpy().copy())
    assert after < before / 2
    expected = sum(worker.batch(range(step * COUNT, (step + 1) * COUNT)).counted for step in range(30))
    assert done.tokens == counted[-1] == expected < 30 * 4 * 64, "only tokens that count are counted"


def loss_of(model: Decoder, rows: Rows) -> float:
    return float(LanguageModelObjective().loss(model, rows, 0.0).mean)


def test_what_does_not_count_has_no_gradient_and_no_loss(tmp_path: Path) -> None:
    worker = Worker(config(tmp_path), small.CPU)
    worker.work.load(begun(worker))
    rows = worker.batch(range(COUNT))
    assert rows.counts_bt is not None and rows.documents_bt is not None
    tokens, counts = torch.from_numpy(rows.tokens_bt.astype(np.int64)), torch.from_numpy(rows.counts_bt)
    hidden = hidden_states(worker.model, tokens[:, :-1], Documents.of(rows.documents_bt, small.CPU))
    hidden.retain_grad()
    language_model_loss(hidden, worker.model.output_weight, tokens[:, 1:], 2e-4, counts).backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    moved = hidden.grad.abs().sum(dim=-1) > 0
    assert torch.equal(moved, counts), "exactly the places that predict what counts have a gradient"

    other = rows.tokens_bt.copy()
    chats = rows.documents_bt[:, None, :] == np.arange(1, rows.documents_bt.max() + 1)[:, None]
    filled = (chats & ~(chats & rows.counts_bt[:, None]).any(axis=2, keepdims=True)).any(axis=1)
    other[:, :-1][filled] = 17
    changed = Rows(other, rows.counts_bt, rows.documents_bt)
    with torch.no_grad():
        assert filled.any() and loss_of(worker.model, changed) == loss_of(worker.model, rows)


def test_micro_batches_of_unequal_counts_give_the_gradient_of_the_whole(tmp_path: Path) -> None:
    rows = Worker(config(tmp_path), small.CPU).batch(range(COUNT))
    assert rows.counts_bt is not None
    rows.counts_bt[0, 1:] &= np.arange(63) < 20  # fewer in one row than in the others
    whole, parts = (InnerLoop(WholeParameters(small.model()), small.config().inner) for _ in range(2))
    assert whole._accumulate(rows, 4).read().mean == pytest.approx(parts._accumulate(rows, 1).read().mean, rel=1e-5)
    torch.testing.assert_close(whole.model.gradient, parts.model.gradient, rtol=1e-4, atol=1e-7)


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    run = with_tokenizer(tmp_path)
    smaller = ModelConfig.from_mapping(small.MODEL)
    with pytest.raises(ValueError, match="has 260 tokens, more than its model .256."):
        Worker(TrainingConfig(**{**vars(run), "model": smaller}), small.CPU)


def test_a_file_of_the_run_that_is_not_here_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the run's file corpus.msgpack is not here"):
        Worker(config(tmp_path, files={}), small.CPU)
