"""Built-in tasks: the same problem for everybody, solvable, short, and worth nothing but for the right answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.environments.environment import Environment, Problem
from trainer.environments.registry import BUILT_IN, open_environment

every_task = pytest.mark.parametrize("name", BUILT_IN)
SAMPLE = range(0, 1000, 7)
FIRST = {
    "reverse": [("reverse jqvqy\n", "yqvqj"), ("reverse tdcm\n", "mcdt")],
    "sort": [("sort 45\n", "45"), ("sort 38386\n", "33688")],
    "add": [("add 1+4\n", "5"), ("add 16+18\n", "34")],
    "shift": [("shift ba\n", "cb"), ("shift myop\n", "nzpq")],
    "count": [("count c aa\n", "0"), ("count b dbdcdaa\n", "1")],
    "close": [("close ([\n", "])"), ("close {{\n", "}}")],
    "guess": [("guess 1-15\n", "8 more\n12 more\n14 less\n13"), ("guess 1-15\n", "8 less\n4 more\n6 more\n7")],
    "lookup": [("lookup c u\n", "?c 8\n?u 3\n=83"), ("lookup f v\n", "?f 1\n?v 5\n=15")],
    "calculate": [
        ("calculate 43*9+77\n", "?43*9 387\n?387+77 464\n=464"),
        ("calculate 87*6+69\n", "?87*6 522\n?522+69 591\n=591"),
    ],
}


def conversation(environment: Environment, index: int) -> tuple[str, str]:
    """A prompt, and a solution's turns with the replies to them."""
    problem = environment.problem(index)
    turns = environment.solution(problem)
    said = [f"{turns[at]} {environment.reply(problem, turns[: at + 1])}" for at in range(len(turns) - 1)]
    return problem.prompt, "".join([*said, turns[-1]])


@every_task
def test_problem_follows_from_the_number_alone(name: str) -> None:
    one, other = open_environment(name), open_environment(name)
    problems = [one.problem(index) for index in SAMPLE]
    assert [other.problem(index) for index in reversed(SAMPLE)] == problems[::-1]
    assert len({problem.prompt for problem in problems}) > 50 or name == "guess"
    assert [problem.index for problem in problems] == list(SAMPLE)


@every_task
def test_solutions_are_short_and_score_one_within_the_turns(name: str) -> None:
    environment = open_environment(name)
    for index in SAMPLE:
        problem = environment.problem(index)
        turns = environment.solution(problem)
        assert environment.score(problem, turns) == 1.0
        assert len(turns) <= environment.max_turns
        assert environment.reply(problem, turns) is None
        assert all(environment.reply(problem, turns[:count]) for count in range(1, len(turns)))
        prompt, answer = conversation(environment, index)
        assert len(prompt) + len(answer) <= 64 and "\0" not in prompt
    assert [conversation(environment, index) for index in range(2)] == FIRST[name], "what they always were"


@pytest.mark.slow
@every_task
@given(data=st.data())
def test_anything_may_be_written(name: str, data: st.DataObject) -> None:
    environment = open_environment(name)
    problem = environment.problem(data.draw(st.integers(0, environment.size - 1)))
    turn = st.one_of(st.text(max_size=20), st.from_regex(r"[?=]?[0-9a-z*+-]{0,12}\n?", fullmatch=True))
    turns = data.draw(st.lists(turn, max_size=6))
    assert environment.score(problem, turns) in (0.0, 1.0)
    if turns:
        reply = environment.reply(problem, turns)
        assert reply is None or ("\0" not in reply and 0 < len(reply) <= 16)


@every_task
def test_conversation_ends_after_the_last_turn(name: str) -> None:
    environment = open_environment(name)
    problem = environment.problem(5)
    assert environment.reply(problem, ["nonsense"] * environment.max_turns) is None
    assert environment.score(problem, ["nonsense"] * environment.max_turns) == 0.0
    assert environment.score(problem, []) == 0.0
    assert environment.score(problem, [*["nonsense"] * environment.max_turns, *environment.solution(problem)]) == 0.0


def test_tools_answer_what_they_are_asked() -> None:
    lookup, calculate = open_environment("lookup"), open_environment("calculate")
    values = {"a": "1", "n": "2"}
    assert lookup.reply(Problem(0, "", values), ["?n"]) == "2\n"
    assert lookup.reply(Problem(0, "", values), ["?z"]) == "?\n"
    assert lookup.score(Problem(0, "", values), ["?a", "?n", "=12"]) == 1.0
    assert lookup.score(Problem(0, "", values), ["?a", "?n", "=21"]) == 0.0
    assert calculate.reply(Problem(0, "", (1, 2, 3)), ["?12*12"]) == "144\n"
    assert calculate.reply(Problem(0, "", (1, 2, 3)), ["?1-2"]) == "-1\n"
    assert calculate.reply(Problem(0, "", (1, 2, 3)), ["?9**9"]) == "?\n"
    assert calculate.reply(Problem(0, "", (1, 2, 3)), ["?" + "9" * 7 + "*1"]) == "?\n"


def test_options_change_the_problems_and_are_checked() -> None:
    longest = max(len(open_environment("reverse", letters=20).problem(index).answer) for index in range(200))
    assert longest == 20
    for wrong in (1, 65, 6.0, "6", True):
        with pytest.raises(ValueError, match="letters must be a whole number from 2 to 64"):
            open_environment("reverse", letters=wrong)
