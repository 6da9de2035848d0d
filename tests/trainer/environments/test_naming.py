"""A manifest names an environment and its options in a line, and what it says is checked before any trainer reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.environments.registry import (
    BUILT_IN,
    MAX_NAME,
    check_named,
    files_of,
    open_environment,
    open_named,
    read_name,
    with_digests,
    write_name,
)
from trainer.environments.task_file import digest_of

TASK = b'{"problem_id": "one", "task_type": "exact_answer", "prompt": "1+1", "verification_info": {"ground_truth": "2"}}\n'
DIGEST = digest_of(TASK)


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("add", "add", {}),
        ('verifiers(a="b, c)", d={"x": [1, 2.5]})', "verifiers", {"a": "b, c)", "d": {"x": [1, 2.5]}}),
        ("mixture(add(digits=3), sort)", "mixture", {"of": [{"name": "add", "digits": 3}, {"name": "sort"}]}),
    ],
)  # fmt: skip
def test_a_name_has_options_and_parts(text: str, name: str, options: dict[str, Any]) -> None:
    assert read_name(text) == (name, options)


VALUES = st.booleans() | st.integers() | st.text(max_size=8) | st.lists(st.integers(), max_size=3)
OPTIONS = st.dictionaries(st.sampled_from(["digits", "path", "settings"]), VALUES)
NAMES = st.sampled_from(["add", "jsonl", "reasoning-gym"])


@given(NAMES, OPTIONS, st.lists(st.tuples(NAMES, OPTIONS), max_size=3))
def test_what_is_written_is_read_again(name: str, options: dict[str, Any], parts: list[tuple[str, dict[str, Any]]]) -> None:
    assert read_name(write_name(name, options)) == (name, options)
    of = {"of": [{"name": part, **its_options} for part, its_options in parts]} if parts else {}
    assert read_name(write_name("mixture", of)) == ("mixture", of)
    assert write_name(name, options).isascii()


def test_digests_are_added_where_they_are_missing() -> None:
    asked: list[str] = []

    def noted(name: str) -> str:
        asked.append(name)
        return DIGEST

    jsonl = 'jsonl(path="a.jsonl")'
    complete = f'jsonl(path="a.jsonl", digest="{DIGEST}")'
    assert with_digests(jsonl, noted) == complete and asked == ["a.jsonl"]
    assert with_digests(f"mixture({jsonl}, sort)", lambda name: DIGEST) == f"mixture({complete}, sort)"
    for text in ("add", "add(digits=3)", f" {complete} ", "mixture(of=3)", 'jsonl(path="../a")', "jsonl(path=3)", "jsonl"):
        assert with_digests(text, lambda name: "nothing to ask for") == text


@pytest.mark.parametrize(
    "text",
    [
        "", "3", "add(", "add(digits)x", "add(digits=)", "add(digits=3", "add(digits=3 letters=4)",
        "add(digits=3, digits=4)",
        "add) ", "add(digits=NaN)", "add(digits='3')", "mixture(add(name=\"sort\"))", "mixture(of=3, add)", "add, sort",
        "mixture(of=" + "[" * 900 + ")", "mixture(" * 120, "a" * (MAX_NAME + 1),
    ],
)  # fmt: skip
def test_what_is_no_name_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ValueError, match="expected .* at character|at most"):
        read_name(text)


@given(st.one_of(st.text(), st.text('add(mixture,sort=[]{}"0123456789).')))
def test_nothing_that_a_stranger_writes_gives_more_than_a_sentence(text: str) -> None:
    try:
        check_named(text, 1)
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("text", "problems", "part"),
    [
        ("adds", 1, "there is no environment 'adds': did you mean 'add'?"),
        ("add(letters=3)", 1, "the environment 'add' does not take these options .* it takes: digits"),
        ("add(digits=30)", 1, "a whole number from 1 to 9"),
        ("mixture(add, adds)", 1, "did you mean 'add'"),
        ("mixture(add, sort(digits=1))", 1, "digits must be a whole number"),
        ("mixture()", 1, "does not take these options"),
        ("mixture(of=[])", 1, "cannot contain a mixture"),
        ("mixture(of=[3])", 1, "a list of environments"),
        ('jsonl(path="tasks.jsonl")', 1, "needs its digest"),
        (f'jsonl(path="/etc/passwd", digest="{DIGEST}")', 1, "without folders"),
        (f'jsonl(path="..", digest="{DIGEST}")', 1, "without folders"),
    ],
)
def test_what_nobody_could_open_is_refused_before_it_is_opened(text: str, problems: int, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        check_named(text, problems)


def test_a_name_opens_what_it_names(tmp_path: Path) -> None:
    for name in BUILT_IN:
        check_named(name, 1 << 20)
    assert open_named("add(digits=3)").problem(5) == open_environment("add", digits=3).problem(5)
    (tmp_path / "tasks.jsonl").write_bytes(TASK)
    name = f'mixture(sort, jsonl(path="tasks.jsonl", digest="{DIGEST}"))'
    assert files_of(name) == [("tasks.jsonl", DIGEST)] and files_of("add") == []
    mixed = open_named(name, {"tasks/tasks.jsonl": str(tmp_path / "tasks.jsonl")})
    assert (mixed.size, mixed.problem(1).prompt) == (2, "1+1")
    with pytest.raises(ValueError, match="tasks/tasks.jsonl is not here"):
        open_named(name)


def test_mixture_deals_its_environments_in_turn() -> None:
    mixture = open_environment("mixture", of=[{"name": "add", "digits": 1}, {"name": "guess"}])
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
    assert mixture.problem(5).prompt == open_environment("guess").problem(2).prompt
