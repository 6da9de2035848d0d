"""Conversations as tokens: the layout of an example, and the reading of a rollout's output back into turns.

The output of a rollout is: turn, end token, reply, turn, end token, reply, …, turn, end token.  If generation stopped at
its length limit, the output ends within a turn, or before a reply that had no room; never within a reply.  `made` marks the
tokens that the model chose (turns and end tokens); the others must be exactly the environment's replies, or the output is
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.data.tokens import Tokenizer
from trainer.environments.environment import Environment, Problem


@dataclass(frozen=True)
class ExampleTokens:
    """Example to train on.  made: for each output token, True if the model should learn to write it."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    made: tuple[bool, ...]


def example_tokens(environment: Environment, index: int, tokenizer: Tokenizer) -> ExampleTokens:
    """Return the example of a problem, laid out as a rollout.  Raises ValueError if the problem has no solution."""
    problem = environment.problem(index)
    turns = environment.solution(problem)
    output: list[int] = []
    made: list[bool] = []
    for count, turn in enumerate(turns, start=1):
        tokens = [*tokenizer.encode(turn), tokenizer.end]
        output += tokens
        made += [True] * len(tokens)
        if count < len(turns):
            tokens = tokenizer.reply(environment.reply(problem, turns[:count]) or "")
            output += tokens
            made += [False] * len(tokens)
    return ExampleTokens(tuple(tokenizer.prompt(problem.prompt)), tuple(output), tuple(made))


def read_turns(
    environment: Environment, problem: Problem, output: Sequence[int], made: Sequence[bool], tokenizer: Tokenizer
) -> tuple[str, ...]:
    """Return the model's turns in a rollout's output.

    Raises ValueError with one sentence if a reply in the output is not the environment's, or if the output goes on after the
    conversation is over.
    """
    if len(output) != len(made):
        raise ValueError("a rollout says of each output token whether the model chose it")
    turns: list[str] = []
    place = 0
    while place < len(output):
        length = _turn_length(output, made, place, tokenizer.ends)
        tokens = output[place : place + length]
        place += length
        ended = tokens[-1] in tokenizer.ends
        turns.append(tokenizer.decode(tokens[:-1] if ended else tokens))
        if place == len(output):
            break
        reply = environment.reply(problem, turns) if ended else None
        said = [] if reply is None else tokenizer.reply(reply)
        if list(output[place : place + len(said)]) != said or any(made[place : place + len(said)]):
            raise ValueError(f"after turn {len(turns)} the rollout has something else than the environment's reply")
        place += len(said)
        if reply is None and place < len(output):
            raise ValueError(f"the rollout goes on after turn {len(turns)}, where the conversation is over")
    return tuple(turns)


def _turn_length(output: Sequence[int], made: Sequence[bool], start: int, ends: Sequence[int]) -> int:
    """Return the number of tokens from `start` to the first end token, included, or to the end; the model chose all."""
    for place in range(start, len(output)):
        if not made[place]:
            raise ValueError(f"output token {place} is in a turn of the model, but not chosen by it")
        if output[place] in ends:
            return place + 1 - start
    return len(output) - start
