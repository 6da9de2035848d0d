"""Each command that the program, its documents or its examples tell people to type is one that the program takes.

A sentence of the program and a line for a shell are complete, as far as the real parser of the command line can tell.
Docstrings and prose may name a command without its values (`peer export`), but no command, option or choice that is unknown.
"""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from peer.cli import build_parser
from peer.settings.preferences import SETTINGS
from tests.house_rules import PRODUCT, docstrings

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for package in PRODUCT for path in (ROOT / package).rglob("*.py"))
DOCUMENTS = sorted(path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")] if path.name != "CHANGELOG.md")
COMMENTED = sorted(path for folder in ("examples", "peer") for path in (ROOT / folder).rglob("*.toml"))
QUOTED = re.compile(r"`([^`]+)`")
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
VALUE = "\0"
"""Stands for a value that is known only when a sentence is written; N in a command is one as well, and a number."""
REFERENCE = ROOT / "docs" / "reference" / "commands.md"
"""Written from the parser, with the placeholders of its choices."""
NAMED = ("are required:", "is required", "expected one argument", "expected at least one argument")
"""Parts of the parser's complaints about a command that is named without its values."""


# ------------------------------------------------------------------------------------------------------------------------
# Strings of a source, as people read them.


def text_of(node: ast.AST) -> str:
    """Return the text of a string, with `VALUE` for each value in it."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(text_of, values))
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return text_of(left) + text_of(right)
    return VALUE


def helps(tree: ast.AST) -> set[str]:
    """Return the parser's texts about arguments, which name other commands."""
    given = {text_of(node.value) for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "help"}
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) == 3)
    return given | {text_of(call.args[2]) for call in calls if isinstance(call.func, ast.Name) and call.func.id == "option"}


def strings(node: ast.AST) -> Iterator[str]:
    """Yield the whole strings in a tree; parts that are added are one string."""
    text = text_of(node)
    if text != VALUE:
        yield text
    joins = isinstance(node, ast.BinOp | ast.JoinedStr)
    for child in ast.iter_child_nodes(node):
        parts = strings(child)
        if joins and text_of(child) != VALUE:  # the string itself is a part of the one above, but not what it inserts
            next(parts)
        yield from parts


# ------------------------------------------------------------------------------------------------------------------------
# Command lines in a text.


def lines_of(shell: str) -> list[list[str]]:
    """Return the words of each command of `peer` in a line for a shell."""
    lexer = shlex.shlex(shell, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, "#"
    commands: list[list[str]] = [[]]
    for word in lexer:
        if re.fullmatch(r"[|&;<>()]+", word):
            commands.append([])
        else:
            commands[-1].append(word)
    found = []
    for words in commands:
        names = [place for place, word in enumerate(words) if Path(word).name == "peer"]
        if names:
            found.append(words[names[0] + 1 :])
    return found


def quoted(text: str) -> Iterator[str]:
    """Yield what stands in backquotes and has `peer` as a command."""
    for span in QUOTED.findall(text):
        span = re.sub(r"\s+", " ", span)
        if re.match(r"(?:[\w./-]+/|\w+ .*\b|[A-Z_]+=\S+ )?peer(?: |\0|$)", span):
            yield span


@cache
def parser() -> argparse.ArgumentParser:
    return build_parser()


@cache
def options() -> frozenset[str]:
    """Return the whole options of all commands."""
    found, left = set[str](), [parser()]
    while left:
        for action in left.pop()._actions:
            found |= set(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                left += action.choices.values()
    return frozenset(found)


def complaint(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the parser's complaint; empty if it takes the words.  Settings are read as well."""
    try:
        args = parser().parse_args(words)
    except SystemExit as ended:
        said = capsys.readouterr().err.strip()
        return said.splitlines()[-1] if ended.code else ""
    if short := [word for word in words if word.startswith("--") and word.partition("=")[0] not in options()]:
        return f"{short[0]} is a beginning of an option"
    setting, value = (getattr(args, name, None) for name in ("setting", "value"))
    if words[0] == "config" and setting and not setting.isupper():
        if setting not in SETTINGS:
            return f"there is no setting {setting}"
        if value and not value.isupper() and value != "1":
            SETTINGS[setting].read(value)
    return ""


def fault(command: str, capsys: pytest.CaptureFixture[str], *, may_name: bool) -> str:
    """Return the complaint about a command in which each `VALUE` may also be nothing.  may_name: values may be missing."""
    complaints = []
    for filled in ("1", ""):
        line = re.sub(r"\bN\b", "1", command.replace(VALUE, filled))
        found = [complaint(words, capsys) for words in lines_of(line) if words]
        complaints.append(next((each for each in found if each and not (may_name and any(map(each.count, NAMED)))), ""))
    return min(complaints, key=len) and f"{command.replace(VALUE, '…')}: {complaints[0]}"


# ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_commands_in_sentences_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    faults, count = [], 0
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        naming = {text for _, text in docstrings(tree)} | helps(tree)
        for text in strings(tree):
            commands = [(command, text.strip() in naming) for command in quoted(text)]
            if re.match(r"peer [a-z]+ (?:\S+ )*-", text):
                commands.append((text, False))
            count += len(commands)
            found = [fault(command, capsys, may_name=named) for command, named in commands]
            faults += [f"{path.relative_to(ROOT)}: {each}" for each in found if each]
    assert not faults, "\n".join(faults)
    assert count > 250


@pytest.mark.parametrize(
    "path", [each for each in DOCUMENTS if each != REFERENCE], ids=lambda path: str(path.relative_to(ROOT))
)
def test_commands_in_documents(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = path.read_text()
    shell = [line for kind, block in BLOCK.findall(text) if kind in ("sh", "text") for line in commands_in(block, kind)]
    found = [fault(line, capsys, may_name=False) for line in shell]
    found += [fault(command, capsys, may_name=True) for command in quoted(BLOCK.sub("", text))]
    assert not [each for each in found if each]


def commands_in(block: str, kind: str) -> list[str]:
    """Return the lines of a block that begin a command of `peer`; a text is also what a program printed."""
    begun = r"(?:\S*/)?peer |\S+=\S+ peer |(?:docker exec|ssh) .*\bpeer " if kind == "sh" else r"peer [a-z]+(?: -|$)"
    return [line.strip() for line in block.replace("\\\n", " ").splitlines() if re.match(begun, line.strip())]


@pytest.mark.parametrize("path", COMMENTED, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_comments_of_run_files(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comments = re.findall(r"^# ?(.*)", path.read_text(), re.MULTILINE)
    found = [fault(command, capsys, may_name=True) for command in quoted("\n".join(comments))]
    lines = [line.split("    ")[0].strip() for line in (each.strip() for each in comments) if line.startswith("peer ")]
    found += [fault(line, capsys, may_name=False) for line in lines]
    assert not [each for each in found if each]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_targets_of_make_in_documents(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:`|^)make ([a-z-]+)\b", path.read_text(), re.MULTILINE)
    assert set(named) <= targets


@pytest.mark.parametrize(
    "command",
    [
        "peer stop",
        "peer join --rol seed",
        "peer join --role cook",
        "peer leave now",
        "ssh host peer wach",
        "peer status && peer halt",
        f"peer watch {VALUE} --web {VALUE} more",
    ],
)
def test_a_command_that_is_wrong_is_found(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(quoted(f"Type `{command}` here.")) == [command]
    assert fault(command, capsys, may_name=True)


@pytest.mark.parametrize("command", ["peer merge", "peer export --push", "peer id export", "peer run create --out"])
def test_a_command_without_its_values_is_named_and_not_typed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not fault(command, capsys, may_name=True) and fault(command, capsys, may_name=False)


def test_strings_are_read_as_they_are_printed() -> None:
    tree = ast.parse("say(f'`peer leave{where}`' ' now', 'type `peer tasks admit ' + done[f'`peer {x}`'] + '`')")
    assert list(strings(tree)) == [f"`peer leave{VALUE}` now", f"type `peer tasks admit {VALUE}`", f"`peer {VALUE}`"]
