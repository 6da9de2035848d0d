"""A text of solved problems, which is the same everywhere."""

from __future__ import annotations

import pytest

from trainer.environments.environment import Environment, Problem
from trainer.environments.registry import open_environment
from trainer.reading import MOST_EXAMPLES, corpus_of


class Unsolved(Environment):
    """Knows no solutions."""

    size = 3

    def problem(self, index: int) -> Problem:
        return Problem(index, "?", None)

    def score(self, problem: Problem, turns: object) -> float:
        return 0.0

    def solution(self, problem: Problem) -> tuple[str, ...]:
        raise ValueError("nobody knows")


def test_it_has_each_example_once_ended_by_a_zero_byte_in_one_of_two_splits() -> None:
    environment = open_environment("sort")
    corpus = corpus_of(environment, 5)
    train, held_out = (split.tobytes().split(b"\0") for split in (corpus.train, corpus.held_out))
    assert train.pop() == b"" == held_out.pop(), "the last example is ended, too"
    assert len(train) + len(held_out) == min(environment.size, MOST_EXAMPLES)
    assert 0.03 < len(held_out) / (len(train) + len(held_out)) < 0.07
    prompt, answer = environment.example(0)
    assert held_out[0].decode() == prompt + answer


def test_two_peers_have_the_same_text_and_another_environment_has_another() -> None:
    assert corpus_of(open_environment("sort"), 5).digest == corpus_of(open_environment("sort"), 5).digest
    assert corpus_of(open_environment("sort"), 5).digest != corpus_of(open_environment("reverse"), 5).digest


def test_an_environment_without_solutions_has_no_text() -> None:
    with pytest.raises(ValueError, match="nobody knows"):
        corpus_of(Unsolved(), 5)
