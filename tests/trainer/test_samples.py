"""Samples: completions of the run's prompts, written beside the held-out loss, the same from the same parameters."""

import math

import numpy as np
import pytest

from tests.trainer import small
from trainer.data.templates import TemplatedTokenizer
from trainer.data.tokens import ByteTokenizer
from trainer.samples import Samples

PROMPTS = ("Once upon a time", "ab", "a prompt of many more bytes than the sixteen tokens that this model reads at once")
TOKENS = 12
SECTION = {"prompts": list(PROMPTS), "tokens": TOKENS}


def written(**changes: object) -> tuple[str, ...]:
    evaluation = small.worker(samples=SECTION, **changes).evaluation(small.theta(), 64, samples=True)
    evaluation.advance(evaluation.total)
    return evaluation.texts


def test_the_same_parameters_write_the_same_texts_and_others_write_others() -> None:
    assert written() == written() and len(written()) == 3
    worker, theta = small.worker(samples=SECTION), small.theta() * np.float32(1.5)
    evaluation = worker.evaluation(theta, 64, samples=True)
    evaluation.advance(evaluation.total)
    assert evaluation.texts != written()
    for worker, asked in ((small.worker(samples=SECTION), False), (small.worker(), True)):
        evaluation = worker.evaluation(small.theta(), 64, samples=asked)
        evaluation.advance(evaluation.total)
        assert evaluation.texts == (), "only an evaluation of a run with prompts that is asked for samples writes them"


def test_texts_grow_after_the_loss_is_measured_a_token_at_a_time() -> None:
    worker = small.worker(samples=SECTION)
    evaluation = worker.evaluation(small.theta(), 64, samples=True)
    windows = evaluation.total - TOKENS
    evaluation.advance(windows)
    assert evaluation.texts == ("", "", "") and math.isfinite(evaluation.totals.losses[0].loss)
    interrupted: list[int] = []
    evaluation.advance(99, lambda: interrupted.append(evaluation.done) or True)  # type: ignore[func-returns-value]
    assert interrupted == [windows + 1], "a command is obeyed between two tokens"
    evaluation.advance(99)
    assert evaluation.done == evaluation.total and evaluation.texts == written()
    assert evaluation.loss == pytest.approx(small.worker().evaluate(small.theta(), 64), rel=1e-6)


def samples(prompts: tuple[str, ...], tokenizer: TemplatedTokenizer, **changes: object) -> Samples:
    section = {"prompts": list(prompts), "tokens": 3}
    return Samples(small.config(samples=section, **changes), tokenizer)


def test_an_end_token_ends_a_text_and_is_not_part_of_it() -> None:
    growing = samples(("a", "b"), TemplatedTokenizer(ByteTokenizer(), "raw"))
    asked: list[list[int]] = []

    def choose(texts: object, streams: list[int], length: int) -> list[int]:
        asked.append(streams)
        return [[104, 120], [0, 121], [122]][len(asked) - 1]

    for _ in range(3):
        growing.grow(choose)  # type: ignore[arg-type]
    assert asked == [[0, 1], [0, 1], [1]] and growing.texts == ("h", "xyz")
    growing.grow(choose)  # type: ignore[arg-type]
    assert len(asked) == 3, "all texts have ended"


def test_a_model_that_learns_conversations_reads_a_prompt_as_a_message() -> None:
    tokenizer = TemplatedTokenizer(ByteTokenizer(), "plain")
    read: list[bytes] = []

    def choose(texts: list[list[int]], streams: list[int], length: int) -> list[int]:
        read.append(bytes(texts[0]))
        return [33] * len(texts)

    data = small.SECTIONS["data"] | {"sequence_length": 64}
    samples(("hi",), tokenizer, data=data).grow(choose)  # type: ignore[arg-type]
    samples(("hi",), tokenizer, data=data | {"format": "chat"}).grow(choose)  # type: ignore[arg-type]
    assert read == [b"hi", b"user:\nhi\nassistant:\n"]
