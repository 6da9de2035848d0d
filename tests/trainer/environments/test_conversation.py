"""Outputs of rollouts are read back into turns, and refused where the environment's part is not the environment's."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.tokens import ByteTokenizer
from trainer.environments.environment import example_tokens, read_turns
from trainer.environments.registry import BUILT_IN, open_environment

BYTES = ByteTokenizer()
LOOKUP = open_environment("lookup")


@pytest.mark.parametrize("name", BUILT_IN)
def test_example_is_laid_out_as_a_rollout_is(name: str) -> None:
    environment = open_environment(name)
    for index in range(30):
        problem = environment.problem(index)
        example = example_tokens(environment, index, BYTES)
        turns = read_turns(environment, problem, example.output, example.made, BYTES)
        assert turns == environment.solution(problem)
        assert environment.score(problem, turns) == 1.0
        assert list(example.prompt) == BYTES.encode(problem.prompt)


def test_reply_of_somebody_else_is_refused() -> None:
    example = example_tokens(LOOKUP, 0, BYTES)
    problem = LOOKUP.problem(0)
    forged = [*example.output[:3], ord("7"), *example.output[4:]]
    with pytest.raises(ValueError, match="after turn 1 the rollout lacks the environment's reply"):
        read_turns(LOOKUP, problem, forged, example.made, BYTES)
    claimed = [*example.made[:3], True, True, *example.made[5:]]
    with pytest.raises(ValueError, match="after turn 1"):
        read_turns(LOOKUP, problem, example.output, claimed, BYTES)
    with pytest.raises(ValueError, match="after turn 1"):
        read_turns(LOOKUP, problem, example.output[:4], example.made[:4], BYTES)


def test_tokens_that_nobody_chose_are_refused_in_a_turn() -> None:
    example = example_tokens(LOOKUP, 0, BYTES)
    with pytest.raises(ValueError, match="output token 1 is in a turn of the model, but not chosen by it"):
        read_turns(LOOKUP, LOOKUP.problem(0), example.output, [True, False, *example.made[2:]], BYTES)
    with pytest.raises(ValueError, match="says of each output token"):
        read_turns(LOOKUP, LOOKUP.problem(0), example.output, example.made[1:], BYTES)


def test_nothing_follows_the_end_of_a_conversation() -> None:
    add = open_environment("add")
    tokens = [*BYTES.encode("95"), BYTES.end, *BYTES.encode("96")]
    with pytest.raises(ValueError, match="continues after turn 1, the end of the conversation"):
        read_turns(add, add.problem(0), tokens, [True] * len(tokens), BYTES)


@given(st.lists(st.tuples(st.integers(-1, 257), st.booleans()), max_size=12))
def test_any_output_is_read_or_refused(output: list[tuple[int, bool]]) -> None:
    tokens, made = [token for token, _ in output], [chosen for _, chosen in output]
    with contextlib.suppress(ValueError):
        read_turns(LOOKUP, LOOKUP.problem(0), tokens, made, BYTES)
