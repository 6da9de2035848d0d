"""A tokenizer that is trained on one's own data: its size, its sample, and that the same inputs give the same one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peer.cli import main
from peer.corpora import vocabulary
from peer.corpora.folder import FinishedCorpus
from peer.corpora.inputs import BuildInput
from peer.corpora.options import BuildOptions, FieldSelection, TokenFormat
from peer.corpora.vocabulary import SPECIAL, tokens_for, train_tokenizer
from peer.errors import ExitCode
from protocol.corpora.manifest import CorpusKind
from tests.peer.corpora.makers import texts_of, write_rows
from trainer.data.tokenizer_json import MAX_TOKEN_BYTES, load, trained, tried

ROWS = [{"text": f"the number {number} follows the number {number - 1}; " * 3} for number in range(200)]


def build(out: Path, *words: str) -> int:
    return main(["data", "build", str(out), *words, "--workers", "1", "--held-out", "0"])


def digest(folder: Path) -> str:
    return FinishedCorpus(folder).digest.hex()


def test_build_without_a_tokenizer_trains_one_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_rows(tmp_path / "rows.jsonl", ROWS)
    assert build(tmp_path / "out", f"s={path}") == ExitCode.OK
    manifest, tokenizer = FinishedCorpus(tmp_path / "out").manifest, FinishedCorpus(tmp_path / "out").tokenizer()
    assert capsys.readouterr().out.startswith(f"trained     a tokenizer of {manifest.vocab} tokens, on ")
    assert 258 < manifest.vocab < 4096 and manifest.end == 0, "few texts have few pairs"
    assert sorted(texts_of(tmp_path / "out")["s", "train"]) == sorted(row["text"] for row in ROWS)
    for text in ("the number", "é中\U0001f600\0\t", "<|im_end|><|im_start|>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text and 0 not in tokenizer.encode(text)


@pytest.mark.slow
def test_same_inputs_give_the_same_tokenizer_and_it_serves_other_corpora(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", ROWS)
    for name, words in (("a", []), ("b", []), ("c", ["--tokenizer", str(tmp_path / "a")])):
        assert build(tmp_path / name, f"s={path}", *words) == ExitCode.OK
    assert digest(tmp_path / "a") == digest(tmp_path / "b") == digest(tmp_path / "c")


@pytest.mark.parametrize(("word", "vocab"), [("300", 300), ("bytes", 256)])
def test_tokenizer_is_bytes_or_of_a_chosen_size(word: str, vocab: int, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", ROWS)
    assert build(tmp_path / "out", str(path), "--tokenizer", word) == ExitCode.OK
    assert FinishedCorpus(tmp_path / "out").manifest.vocab == vocab


REFUSED = {
    "--tokenizer 299": "from 300 to 131072",
    "--end 5": "a tokenizer that is trained has its own end token; leave --end out",
    "--tokenizer nowhere": "there is no nowhere; give --tokenizer a folder with a tokenizer.json, that file, or bytes, or a",
}


@pytest.mark.parametrize("words", REFUSED)
def test_tokenizer_that_cannot_be_had_is_a_sentence(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_rows(tmp_path / "rows.jsonl", ROWS)
    try:
        code = build(tmp_path / "out", str(path), *words.split())
    except SystemExit as error:
        code = int(error.code or 0)
    assert code in (ExitCode.INPUT, ExitCode.USAGE) and REFUSED[words] in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["rows.jsonl"]


def test_build_that_cannot_begin_is_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*args: Any) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(vocabulary, "train_tokenizer", train)
    path = write_rows(tmp_path / "rows.jsonl", ROWS)
    (tmp_path / "out").mkdir()
    assert build(tmp_path / "out", str(path)) == ExitCode.INPUT


@pytest.mark.parametrize(
    ("size", "tokens"),
    [(0, 4096), (100 << 20, 16384), (1 << 30, 32768), (None, 32768)],
)
def test_size_of_the_vocabulary_follows_from_that_of_the_inputs(size: int | None, tokens: int) -> None:
    assert tokens_for(size) == tokens


def test_sample_is_bounded_and_from_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        write_rows(
            tmp_path / "in" / f"{number:02}.jsonl", [{"text": chr(0x4E00 + number) * 4 + f" {n}"} for n in range(500)]
        )
    monkeypatch.setattr(vocabulary, "SAMPLE_BYTES", 20_000)
    found = train_tokenizer([BuildInput("s", tmp_path / "in")], BuildOptions(workers=1))
    assert found.sample_bytes < 20_000
    tokenizer = load(found.content)
    assert all(len(tokenizer.encode(chr(0x4E00 + number) * 4)) == 1 for number in range(20)), "each file's word is known"


@pytest.mark.parametrize("kind", [CorpusKind.CHAT, CorpusKind.PREFERENCE])
def test_tokenizer_of_chats_learns_their_messages_alone(kind: CorpusKind, tmp_path: Path) -> None:
    rows = [{"prompt": f"wherefore {n}", "completion": "therefore"} for n in range(9)]
    if kind is CorpusKind.PREFERENCE:
        rows = [{"prompt": "wherefore", "chosen": "therefore", "rejected": f"no {n}"} for n in range(9)]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    options = BuildOptions(TokenFormat(kind, template="plain", row_tokens=65), FieldSelection(), workers=1)
    tokenizer = load(train_tokenizer([BuildInput("s", path)], options).content)
    assert len(tokenizer.encode("wherefore")) == len(tokenizer.encode("therefore")) == 1 < len(tokenizer.encode("prompt"))
    assert build(tmp_path / "out", str(path), "--kind", kind.value, "--sequence-length", "64") == ExitCode.OK


TEXTS = {
    "one run of letters": ["ACGT" * 5000],
    "spaces": [" " * 20_000 + "x", " " * 20_000 + "y"],
    "other scripts": ["日本語テキスト" * 2000],
    "nothing": [],
}


@pytest.mark.slow
@pytest.mark.parametrize("case", TEXTS)
def test_tokenizer_of_any_texts_is_one_that_runs_allow(case: str) -> None:
    content = trained(iter(TEXTS[case]), 2000, SPECIAL)
    clean = tried(content, frozenset({0}))
    assert trained(iter(TEXTS[case]), 2000, SPECIAL) == content
    assert max(map(len, json.loads(clean)["model"]["vocab"])) <= MAX_TOKEN_BYTES
