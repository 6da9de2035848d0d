"""Environments by name, and several as one."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.environments.registry import BUILT_IN, ENVIRONMENTS, Mixture, open_environment


def test_built_in_environments_open_without_options() -> None:
    assert all(open_environment(name).size == 1 << 20 for name in BUILT_IN)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("revers", {}, "there is no environment 'revers': did you mean 'reverse'?"),
        ("zzz", {}, "there is no environment 'zzz': there are reverse, sort"),
        ("add", {"letters": 3}, "the environment 'add' has other options .* it takes: digits"),
        ("jsonl", {}, "the environment 'jsonl' has other options .* it takes: path, digest"),
        ("lookup", {"most": 3}, "it takes: none"),
        ("mixture", {"of": []}, "a mixture needs at least one environment"),
        ("mixture", {"of": ["add"]}, "a mixture is of a list of environments"),
        ("mixture", {"of": [{"name": "ad"}]}, "did you mean 'add'?"),
        ("reasoning-gym", {"task": "chain_sum"}, r"not installed: .* install .*'verifiers>="),
        ("verifiers", {"taskset": "toy"}, r"not installed: .* install .*'verifiers>="),
    ],
)
def test_what_does_not_open_is_said_in_one_sentence(
    name: str, options: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    with pytest.raises(ValueError, match=sentence):
        open_environment(name, **options)


def test_mixture_deals_its_environments_in_turn() -> None:
    mixture = open_environment("mixture", of=[{"name": "add", "digits": 1}, {"name": "guess"}])
    assert isinstance(mixture, Mixture)
    assert mixture.max_turns == 4
    assert mixture.size == 2 << 20
    prompts = [mixture.problem(index).prompt.split()[0] for index in range(4)]
    assert prompts == ["add", "guess", "add", "guess"]
    assert mixture.problem(6).prompt == open_environment("add", digits=1).problem(3).prompt
    for index in range(20):
        problem = mixture.problem(index)
        turns = mixture.solution(problem)
        assert mixture.score(problem, turns) == 1.0
        assert mixture.reply(problem, turns) is None
        assert mixture.score(problem, ["no"]) == 0.0
    assert mixture.example(5) == open_environment("guess").example(2)


def test_every_environment_says_what_it_is() -> None:
    assert set(BUILT_IN) < set(ENVIRONMENTS)
    assert all(ENVIRONMENTS[name].__doc__ for name in BUILT_IN)
