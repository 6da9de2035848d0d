"""Tools answer the same everywhere, whatever a model writes, and hostile programs do no harm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.environments import attacks
from trainer.data.tokens import ByteTokenizer
from trainer.environments.environment import Environment, reply_tokens
from trainer.environments.registry import corpora_of, files_of, open_environment, open_named, problems_of, with_digests
from trainer.environments.sandbox import SandboxUnavailable
from trainer.environments.task_file import digest_of
from trainer.environments.tools import Calculator, CorpusSearch, PythonTool, calls_in, read_corpus, shown, without_calls

BYTES = ByteTokenizer()
ADDING = open_environment("tools", of=[{"name": "add"}], use=["calculator"], turns=3)
PYTHON = open_environment("tools", of=[{"name": "add"}], use=["python"], turns=3, seconds=1, reply_bytes=64)
DOCUMENTS = [("Alps", "mountains in Europe"), ("Nile", "a river in Africa"), ("", "a river in Europe: the Rhine")]


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def said(environment: Environment, *turns: str) -> str | None:
    """The reply's content to these turns."""
    reply = environment.reply(environment.problem(0), turns)
    return None if reply is None else reply.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>\n")


def test_only_the_answer_after_calls_is_scored() -> None:
    problem = ADDING.problem(1)
    question = call("calculator", expression="16+18")
    assert problem.prompt.startswith("add 16+18\n") and '"name": "calculator"' in problem.prompt
    assert said(ADDING, question) == "34"
    assert said(ADDING, question, "34") is None
    assert ADDING.score(problem, [question, "34"]) == 1.0
    assert ADDING.score(problem, ["34"]) == 1.0
    assert ADDING.score(problem, [question]) == ADDING.score(problem, [question, "35"]) == 0.0
    assert ADDING.score(problem, [f"34 {question}"]) == 0.0
    assert ADDING.has_exact_replies(problem) and ADDING.is_exact(problem) and not PYTHON.has_exact_replies(problem)


def test_nothing_replies_beyond_the_last_turn() -> None:
    problem, question = ADDING.problem(0), call("calculator", expression="1")
    assert reply_tokens(ADDING, problem, [question] * 2, BYTES) is not None
    assert reply_tokens(ADDING, problem, [question] * 3, BYTES) is None


@pytest.mark.parametrize(
    ("turn", "error"),
    [
        ("<tool_call>[7]</tool_call>", "a call has a name and arguments"),
        ("<tool_call>{</tool_call>", "the call is not JSON"),
        ("<tool_call>" + "[" * 60_000 + "</tool_call>", "the call is not JSON"),
        ("<tool_call>" + " " * 70_000 + "</tool_call>", "at most 65536 characters"),
        (call("shell", code="ls"), "there is no such function; there are calculator"),
        (call("calculator", expression=7), "takes the argument expression, a string"),
        (call("calculator", expression="1", more="2"), "takes the argument expression, a string"),
    ],
)
def test_a_call_that_cannot_be_made_is_answered_with_its_error(turn: str, error: str) -> None:
    assert error in str(said(ADDING, turn))


def test_calls_in_a_turn_are_bounded() -> None:
    flaws = [each.flaw for each in calls_in(call("calculator", expression="1") * 20)]
    assert flaws == [""] * 4 + ["a turn has at most 4 calls"] * 12
    assert calls_in("<tool_call>" * 100_000) == []


def test_a_call_that_cannot_be_made_keeps_what_was_written() -> None:
    texts = ('{"name": "a", "arguments": [1]}', '{"name": 7}', "{", call("b", c="é")[11:-12])
    turn = "I look. " + "".join(f"<tool_call>{text}</tool_call>\n" for text in texts)
    assert [(each.name, each.written) for each in calls_in(turn)] == [
        ("a", "[1]"),
        ("", '{"name": 7}'),
        ("", "{"),
        ("b", '{"c": "\\u00e9"}'),
    ]
    assert without_calls(turn) == "I look."


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("17*23", "391"), ("-2**2", "-4"), ("2**3**2", "512"), ("(1+2)*3/4", "2.25"), ("-7//2", "-4"), ("-7%3", "2"),
        ("10/3", "3.33333333333"), ("2**-1", "0.5"), ("1/0", "error: division by zero"),
        ("0**-1", "error: division by zero"),
        ("9**9**9", "error: an exponent is a whole number up to 512"), ("2**512", "error: the number is too large"),
        ("(" * 150, "error: not an expression"), ("1e5", "error: not an expression"),
        ("__import__('os')", "error: not an expression"),
        ("1" * 201, "error: an expression has at most 200 characters"), ("", "error: not an expression"),
    ],
)  # fmt: skip
def test_the_calculator_computes_as_python_does_within_bounds(expression: str, value: str) -> None:
    assert Calculator().result(expression) == value


@given(st.text(alphabet="0123456789+-*/%(). ", max_size=40))
def test_any_expression_has_a_result(expression: str) -> None:
    assert 0 < len(Calculator().result(expression)) < 1000


def test_escape_codes_and_invisible_characters_are_not_shown() -> None:
    assert shown("\x1b]0;x\x07\x1b[2J\u202e\0\ud800ok\r\n", 100) == "\ufffd]0;x\ufffd\ufffd[2J\ufffd\ufffd\ufffdok\n"
    assert shown("é" * 100, 21) == "é" * 7 + "\n[cut]"
    assert len(shown("x" * 10**6, 64)) == 64


def test_a_program_gives_what_it_prints_and_the_kind_of_its_error() -> None:
    problem = PYTHON.problem(0)
    assert said(PYTHON, call("python", code="import random\nprint(6 * 7, random.random())")) == "42 0.8444218515250481"
    assert said(PYTHON, call("python", code="print('a')\n1 / 0")) == "a\nerror: ZeroDivisionError"
    reply = PYTHON.reply(problem, [call("python", code="print('\\x1b[31m\\0' + 'y' * 9999)")])
    assert reply is not None and "\x1b" not in reply and "\0" not in reply and len(reply.encode()) < 110
    assert reply_tokens(PYTHON, problem, [call("python", code="print('\\0')")], BYTES) is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "results"),
    [
        (attacks.LOOP, {"error: out of time", "error: killed"}),
        (attacks.FORK_BOMB, {"error: out of time", "error: killed"}),
        (attacks.SHOUT, {"error: too much output", "error: killed", "error: out of time"}),
        (attacks.ALLOCATE, {"error: MemoryError", "error: killed"}),
        (attacks.CRASH, {"error: killed"}),
    ],
)
def test_hostile_programs_end_with_an_error(program: str, results: set[str]) -> None:
    assert said(PYTHON, call("python", code=program)) in results


def test_a_program_is_run_once_for_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def result(self: PythonTool, text: str) -> str:
        runs.append(text)
        return "7"

    monkeypatch.setattr(PythonTool, "result", result)
    environment = open_environment("tools", of=[{"name": "add"}], use=["python"])
    for _ in range(3):
        assert said(environment, call("python", code="print(7)")) == "7"
    assert runs == ["print(7)"]


def test_search_finds_the_documents_with_the_rarest_words() -> None:
    search = CorpusSearch(DOCUMENTS, 300)
    assert search.result("Which RIVER is in Africa?").splitlines()[0] == "Nile: a river in Africa"
    assert search.result("europe river").splitlines()[0] == "a river in Europe: the Rhine"
    assert search.result("volcano") == search.result("") == "nothing found"


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"text": 7}', b'{"text": ""}', b'{"title": 1, "text": "x"}', b""])
def test_a_damaged_corpus_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"line 1|document|the corpus"):
        read_corpus(line)


def test_a_manifest_names_tools_and_their_files(tmp_path: Path) -> None:
    lines = {"tasks.jsonl": [{"prompt": "What flows in Africa?", "answer": "Nile"}]}
    lines["docs.jsonl"] = [{"title": title, "text": text} for title, text in DOCUMENTS]
    for name, records in lines.items():
        (tmp_path / name).write_text("\n".join(map(json.dumps, records)))
    name = 'tools(jsonl(path="tasks.jsonl"), use=["search", "calculator"], corpus="docs.jsonl", turns=2)'
    named = with_digests(name, lambda path: digest_of((tmp_path / path).read_bytes()))
    assert [path for path, _ in files_of(named)] == ["docs.jsonl", "tasks.jsonl"]
    assert (corpora_of(named), problems_of(named, {"tasks.jsonl": 1})) == ({"docs.jsonl"}, 1)
    environment = open_named(named, {f"tasks/{path}": str(tmp_path / path) for path in lines})
    assert (environment.size, environment.max_turns) == (1, 2)
    assert str(said(environment, call("search", query="Africa"))).startswith("Nile")
    assert environment.score(environment.problem(0), [call("search", query="Africa"), "Nile"]) == 1.0
    assert open_named('mixture(tools(add, use=["calculator"]), sort)').max_turns == 4


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("tools(add)", "use"), ("tools(add, use=[])", "list of tools"), ('tools(add, use=["shell"])', "list of tools"),
        ('tools(add, use=["search"])', "a file of documents"), ('tools(guess, use=["calculator"])', "several turns"),
        ('tools(mixture(add), use=["calculator"])', "each environment"), ('tools(add, sort, use=["calculator"])', "to one"),
        ('tools(add, use=["calculator"], turns=1)', "from 2 to 64"), ('tools(add, use=["calculator"], seconds=61)', "to 60"),
        ('tools(add, use=["search"], corpus="../x")', "folders"), ('tools(add, use=["search"], corpus="x")', "digest"),
    ],
)  # fmt: skip
def test_tools_that_no_peer_can_open_are_refused(name: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        problems_of(name, {})


def test_a_failing_sandbox_is_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: PythonTool, text: str) -> str:
        raise SandboxUnavailable("no memory")

    monkeypatch.setattr(PythonTool, "result", fails)
    with pytest.raises(RuntimeError, match="gives no reply here: SandboxUnavailable"):
        reply_tokens(PYTHON, PYTHON.problem(0), [call("python", code="1")], BYTES)
