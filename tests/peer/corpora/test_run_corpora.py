"""Data that a run file names: corpora of chats and of solved examples, and the sentences on data that gives no run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from peer.corpora.folder import FinishedCorpus
from peer.corpora.inputs import Document
from peer.corpora.options import TokenFormat
from peer.corpora.run_data import MOST_EXAMPLES, OwnDocuments, RunData, run_data, solved_examples
from peer.errors import PeerError
from protocol.corpora.manifest import CorpusKind
from protocol.run.sections import EXAMPLES
from tests.peer.corpora.makers import write_rows
from trainer.environments.environment import Environment, Problem
from trainer.environments.registry import open_environment

BYTES = TokenFormat()
CHATS = TokenFormat(CorpusKind.CHAT, template="plain", row_tokens=65)


class Unsolved(Environment):
    """Knows no solutions."""

    size = 3

    def problem(self, index: int) -> Problem:
        return Problem(index, "?", None)

    def score(self, problem: Problem, turns: object) -> float:
        return 0.0

    def solution(self, problem: Problem) -> tuple[str, ...]:
        raise ValueError("nobody knows")


def a_chat(number: int) -> dict[str, Any]:
    return {"prompt": f"{number}?", "completion": f"{number}!"}


def read(section: dict[str, Any], folder: Path, tokens: TokenFormat = BYTES, **own: Sequence[Document]) -> RunData:
    documents = {name: OwnDocuments("key", partial(list, some)) for name, some in own.items()}
    return run_data(section, folder, tokens, folder / "built", own=documents)


def chats(rows: list[Any], folder: Path, **fields: Any) -> RunData:
    write_rows(folder / "talk.jsonl", rows)
    section = {"format": "chat", "from": "talk.jsonl", "sequence_length": 64, "held_out_percent": 20, **fields}
    return read(section, folder, CHATS)


def test_two_sources_of_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_rows(tmp_path / folder / "train.jsonl", [{"text": f"a text of {folder}, long enough for a row " * 9}])
    sources = [{"from": f"{folder}/train.jsonl", "weight": weight} for folder, weight in (("a", 90), ("b", 10))]
    with pytest.raises(PeerError, match=r"two of \[\[data.sources\]\] are called train; give each a name of its own"):
        read({"sources": sources, "sequence_length": 64}, tmp_path)


def test_examples_are_documents_in_the_layout_of_rollouts_and_each_is_in_one_split(tmp_path: Path) -> None:
    environment = open_environment("sort")
    documents = solved_examples(environment, BYTES.open())
    assert len(documents) == min(environment.size, MOST_EXAMPLES)
    prompt, answer = environment.example(0)
    first = documents[0]
    assert first.tokens is not None and bytes(first.tokens) == (prompt + answer).encode() + b"\0"
    assert first.text_bytes == len((prompt + answer).encode())
    data = read({"from": EXAMPLES, "sequence_length": 16}, tmp_path, examples=documents[:400])
    (source,) = FinishedCorpus(data.folders[0]).manifest.sources
    distinct = len({bytes(each.tokens) for each in documents[:400] if each.tokens is not None})
    assert source.name == EXAMPLES and source.train.documents + source.held_out.documents == distinct
    assert 0.02 < source.held_out.documents / distinct < 0.09


def test_another_environment_has_other_examples_and_one_without_solutions_has_none() -> None:
    sort, reverse = (solved_examples(open_environment(name), BYTES.open()) for name in ("sort", "reverse"))
    assert str(sort[0].tokens) != str(reverse[0].tokens)
    with pytest.raises(ValueError, match="nobody knows"):
        solved_examples(Unsolved(), BYTES.open())


def test_examples_of_no_environment_are_refused_and_a_folder_of_that_name_is_read(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r'no section \[rl\] names one; add it, or write "./examples" for a folder'):
        read({"from": EXAMPLES}, tmp_path)
    rows = [{"text": f"{number} and more" * 4} for number in range(99)]
    write_rows(tmp_path / "examples" / "a.jsonl", rows)
    assert read({"from": "./examples", "sequence_length": 16}, tmp_path).section["sources"][0]["name"] == "examples"


def test_chats_of_any_size_are_a_corpus_and_the_organiser_is_told_of_it(tmp_path: Path) -> None:
    data = chats([a_chat(number) for number in range(40)], tmp_path)
    manifest = FinishedCorpus(data.folders[0]).manifest
    assert manifest.kind is CorpusKind.CHAT and manifest.row_tokens == 65
    ((what, about),) = data.remarks
    split = manifest.sources[0]
    assert what == "chats" and split.train.documents + split.held_out.documents == 40
    rows = split.train.tokens // 65
    told = f"{split.train.documents} chats in {rows} windows to learn from, {split.held_out.documents} held out"
    assert about == f"{told}; read: 1 file (JSON lines)"
    again = chats([a_chat(number) for number in range(40)], tmp_path)
    assert again.remarks == data.remarks or again.folders != data.folders


def test_chats_that_are_cut_left_out_or_bad_are_counted_and_the_first_bad_one_is_named(tmp_path: Path) -> None:
    rows = [a_chat(number) for number in range(300)]
    rows[7] = {"prompt": "a?", "completion": "b" * 500}
    rows[8] = {"prompt": "a" * 500, "completion": "b"}
    rows[9] = {"prompt": "no answer"}
    ((_, about),) = chats(rows, tmp_path).remarks
    assert "; 1 longer than a window are cut; read: 1 file (JSON lines); left out: 1 no chat or preference, 1 with " in about
    assert ", 1 with nothing to learn; the first bad row is talk.jsonl, " in about
    assert "the first bad row is talk.jsonl, row 10: a chat is a record with a list of" in about
    with pytest.raises(PeerError, match=r"the first is talk.jsonl, row 1: the record has the unknown field 'speech'"):
        chats([{"speech": 1, **a_chat(1)}, *rows[:5]], tmp_path)


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf", b"\n "])
def test_a_file_of_chats_may_be_one_array_with_marks_of_editors(start: bytes, tmp_path: Path) -> None:
    records = json.dumps([a_chat(number) for number in range(30)], indent=1).replace("\n", "\r\n").encode()
    (tmp_path / "talk.json").write_bytes(start + records)
    section = {"format": "chat", "from": "talk.json", "sequence_length": 64, "held_out_percent": 20}
    manifest = FinishedCorpus(read(section, tmp_path, CHATS).folders[0]).manifest
    assert sum(split.documents for each in manifest.sources for split in (each.train, each.held_out)) == 30


def test_a_file_of_chats_in_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "talk.jsonl").write_text(json.dumps(a_chat(1)) + "\n", encoding="utf-16")
    with pytest.raises(PeerError, match=r"talk.jsonl, row 1: it is .*; save (it|the file) as UTF-8"):
        read({"format": "chat", "from": "talk.jsonl", "sequence_length": 64}, tmp_path, CHATS)


@pytest.mark.parametrize(
    ("rows", "fields", "part"),
    [
        (40, {"held_out_percent": 0}, "[data] held_out_percent is 0; it must be a whole number from 1 to 50"),
        (40, {"held_out_percent": True}, "[data] held_out_percent is True; it must be a whole number"),
        (40, {"from": "absent"}, "absent, which does not exist; correct the path"),
        (0, {}, "the source talk has no document to learn from"),
    ],
)
def test_data_that_gives_no_run_is_a_sentence(rows: int, fields: dict[str, Any], part: str, tmp_path: Path) -> None:
    with pytest.raises(PeerError) as refused:
        chats([a_chat(number) for number in range(rows)], tmp_path, **fields)
    assert part in str(refused.value)


def test_the_tokens_of_chats_are_those_that_are_learnt(tmp_path: Path) -> None:
    data = chats([a_chat(number) for number in range(100)], tmp_path)
    source, corpus = data.section["sources"][0], FinishedCorpus(data.folders[0])
    learnt = sum(len(f"{number}!") + 1 for number in range(100))
    assert 0.6 * learnt < source["counted"] < learnt, "each answer and its end, of the chats that are not held out"
    assert source["counted"] < corpus.manifest.sources[0].train.tokens / 2


def test_files_passed_over_are_counted_and_a_corpus_of_an_earlier_reading_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": f"a text of number {number}, long enough"} for number in range(99)]
    for name in ("train", "test", "validation"):
        write_rows(tmp_path / "clone" / f"{name}.jsonl", rows)
    (tmp_path / "clone" / "README.md").write_text("a card")
    section = {"from": "clone", "sequence_length": 16}
    data = read(section, tmp_path)
    ((_, told),) = data.remarks
    assert "; read: 1 file (JSON lines); passed over: 1 file (about the data), 2 files (of another split than train)" in told
    assert read(section, tmp_path).folders == data.folders
    monkeypatch.setattr("peer.corpora.run_data.READING", 1)
    assert read(section, tmp_path).folders != data.folders


def test_repeated_chats_are_named_with_the_switch_that_keeps_them(tmp_path: Path) -> None:
    rows = [a_chat(number % 20) for number in range(100)]
    once = chats(rows, tmp_path)
    ((_, told),) = once.remarks
    assert "80 with the text of another (keep_repeated = true in [data] keeps them)" in told
    kept = chats(rows, tmp_path, keep_repeated=True)
    ((_, told),) = kept.remarks
    assert "left out" not in told
    (first,), (all_,) = (FinishedCorpus(each.folders[0]).manifest.sources for each in (once, kept))
    for few, many in ((first.train, all_.train), (first.held_out, all_.held_out)):
        assert many.documents == 5 * few.documents > 0, "copies of one chat are in one split"
    with pytest.raises(PeerError, match="id names documents that are the same"):
        chats(rows, tmp_path, keep_repeated=True, id="prompt")
