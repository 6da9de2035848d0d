"""Data that a run file names: corpora of chats and of solved examples, and the sentences on data that gives no run.

Remedies speak of the fields of the run file, not of the options of a command.
"""

from __future__ import annotations

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
from trainer.environments.registry import open_environment

BYTES = TokenFormat()
CHATS = TokenFormat(CorpusKind.CHAT, template="plain", row_tokens=65)


def a_chat(number: int) -> dict[str, Any]:
    return {"prompt": f"{number}?", "completion": f"{number}!"}


def read(section: dict[str, Any], folder: Path, tokens: TokenFormat = BYTES, **own: Sequence[Document]) -> RunData:
    documents = {name: OwnDocuments("key", partial(list, some)) for name, some in own.items()}
    return run_data(section, folder, tokens, folder / "built", own=documents)


def chats(rows: list[Any], folder: Path, **fields: Any) -> RunData:
    write_rows(folder / "talk.jsonl", rows)
    section = {"format": "chat", "from": "talk.jsonl", "sequence_length": 64, "held_out_percent": 20, **fields}
    return read(section, folder, CHATS)


@pytest.mark.slow
def test_examples_are_documents_in_the_layout_of_rollouts_and_each_is_in_one_split(tmp_path: Path) -> None:
    environment = open_environment("sort")
    documents = solved_examples(environment, BYTES.open())
    assert len(documents) == min(environment.size, MOST_EXAMPLES)
    problem = environment.problem(0)
    prompt, answer = problem.prompt, "".join(environment.solution(problem))
    first = documents[0]
    assert first.tokens is not None and bytes(first.tokens) == (prompt + answer).encode() + b"\0"
    assert first.text_bytes == len((prompt + answer).encode())
    data = read({"from": EXAMPLES, "sequence_length": 16}, tmp_path, examples=documents[:400])
    (source,) = FinishedCorpus(data.folders[0]).manifest.sources
    distinct = len({bytes(each.tokens) for each in documents[:400] if each.tokens is not None})
    assert source.name == EXAMPLES and source.train.documents + source.held_out.documents == distinct
    assert 0.02 < source.held_out.documents / distinct < 0.09


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


def test_the_tokens_of_chats_are_those_that_are_learnt(tmp_path: Path) -> None:
    data = chats([a_chat(number) for number in range(100)], tmp_path)
    source, corpus = data.section["sources"][0], FinishedCorpus(data.folders[0])
    learnt = sum(len(f"{number}!") + 1 for number in range(100))
    assert 0.6 * learnt < source["counted"] < learnt, "each answer and its end, of the chats that are not held out"
    assert source["counted"] < corpus.manifest.sources[0].train.tokens / 2


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
    with pytest.raises(PeerError, match="id says which documents are the same"):
        chats(rows, tmp_path, keep_repeated=True, id="prompt")


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (
            {"sources": [{"weight": 1}, {"weight": 1.5}]},
            "weight in entry 2 of data.sources is 1.5; it must be a whole number",
        ),
        ({"sources": [{"name": "a b"}]}, r"name in entry 1 of data.sources is .?'?a b.*it must be 1 to 64 letters, digits"),
        (
            {"phases": [{"weights": {"zz": 1}}]},
            "weights in entry 1 of data.phases names 'zz', and the sources are a; correct",
        ),
        ({"phases": [{"weights": {"a": -5}}]}, "the weight of a in entry 1 of data.phases is -5; it must be a whole number"),
    ],
)
def test_mistake_in_sources_and_phases_names_its_entry_and_field(section: dict[str, Any], said: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", [{"text": f"text number {number}"} for number in range(50)])
    sources = [{"from": "a.jsonl", **each} for each in section.get("sources", [{}])]
    with pytest.raises(PeerError, match=said):
        read({"sequence_length": 16, **section, "sources": sources}, tmp_path)
