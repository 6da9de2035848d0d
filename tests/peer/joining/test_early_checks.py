"""`peer run create` and `peer run show` check a run file in the same way, and before they build a corpus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peer.cli import main
from peer.corpora import run_data
from peer.errors import ExitCode
from peer.joining.run_source import create_run
from tests.peer.corpora.makers import END, tokenizer_file, write_rows

ROWS = [{"text": f"the number {number} follows the number {number - 1}; " * 9} for number in range(99)]
DATA = 'from = "rows.jsonl"\nsequence_length = 16\n'
MISTAKES = {
    'name = "a run"\nouter_lr = "x"\n[data]\n' + DATA: "outer_lr",
    'name = "a run"\n[modle]\n[data]\n' + DATA: "modle",
    'name = "a run"\n[data]\nformat = "chats"\n' + DATA: 'must be "text", "chat" or "preference"',
    'name = "a run"\n[data]\n'
    + DATA
    + "[[data.phases]]\nfrom_tokens = 5\nweights = { other = 1 }\n": "the sources are rows",
    'name = "a run"\n[tokenizer]\nfrom = "tokenizer"\n[model]\nvocab = 100\n[data]\n' + DATA: "100",
    'name = "a run"\n[tokenizer]\nfrom = "tokenizer"\nends = [999]\n[data]\n' + DATA: "has no token 999",
    '[data]\n[[data.sources]]\nfrom = "rows.jsonl"\n[[data.sources]]\nfrom = "rows.jsonl"\n': "two of [[data.sources]]",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_rows(tmp_path / "rows.jsonl", ROWS)
    (tmp_path / "tokenizer").mkdir()
    tokenizer_file(tmp_path / "tokenizer" / "tokenizer.json")
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    return tmp_path


@pytest.mark.parametrize("text", MISTAKES)
def test_mistake_in_a_run_file_is_told_before_a_corpus_is_built(
    text: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*args: object, **options: object) -> None:
        raise AssertionError("a corpus was built")

    monkeypatch.setattr(run_data, "build", build)
    (folder / "run.toml").write_text(text)
    told = []
    for command in ("create", "show"):
        words = ["run", command, str(folder / "run.toml"), "--data-dir", str(folder / "data")]
        assert main(words) not in (ExitCode.OK, ExitCode.FAILED)
        told.append(capsys.readouterr().err)
    assert told[0] == told[1] and MISTAKES[text] in told[0]


def test_all_mistakes_of_a_data_section_are_told_with_those_of_the_others(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = 'text = 3\nkeep_repeated = "yes"\nwhere = 1\nmost_rows = -1\nheld_out_percent = true\nread_as = 4\n'
    others = 'sequence_length = "x"\nformat = "chats"\nfoo = 1\n[model]\ndim = 127\n'
    (folder / "run.toml").write_text(f'name = ""\n[data]\nfrom = "nowhere"\n{options}{others}')
    assert main(["run", "show", str(folder / "run.toml"), "--data-dir", str(folder / "data")]) == ExitCode.INPUT
    first, *told = capsys.readouterr().err.splitlines()
    assert first.endswith("run.toml has 12 mistakes:") and len(told) == 12
    parts = ["nowhere, which does not exist", "text", "keep_repeated", "where", "most_rows", "held_out_percent", "read_as"]
    for part in (*parts, "sequence_length", "format", "data.foo", "dim", "name is ''"):
        assert any(part in line for line in told), part


@pytest.mark.parametrize(
    ("text", "vocab"),
    [
        ('[tokenizer]\nfrom = "tokenizer"\n', 260),
        ('[tokenizer]\nfrom = "tokenizer"\n[model]\nvocab = 320\n', 320),
        ("", 256),
    ],
)
def test_model_has_the_tokens_of_the_tokenizer_unless_the_file_says_it(text: str, vocab: int, folder: Path) -> None:
    (folder / "run.toml").write_text(f'name = "a run"\n{text}[data]\n{DATA}')
    assert create_run(folder / "run.toml", folder / "data").manifest.model.vocab == vocab
