"""A corpus has every kept document once, and its bytes follow from the inputs and options alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.corpora import parts, workers
from peer.corpora import readers as readings
from peer.corpora.build import PARTIAL, build
from peer.corpora.folder import DIGEST, FinishedCorpus
from peer.corpora.inputs import BuildInput, Document
from peer.corpora.options import BuildOptions, LeftOut
from peer.errors import ExitCode, PeerError
from tests.hostile_files import link_out, pipe
from tests.peer.corpora.makers import chat_tokens, content_of, mixed_folder, texts_of

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.lists(TEXTS.filter(str.strip), min_size=1, max_size=40), st.integers(-5, 5), st.sampled_from([0.0, 30.0]))
def test_corpus_is_a_permutation_of_the_documents(texts: list[str], seed: int, held_out: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        documents = [Document(text=text) for text in texts]
        options = BuildOptions(seed=seed, held_out_percent=held_out)
        result = build([BuildInput("all", documents)], options, out)
        found = texts_of(out)
        train, other = found["all", "train"], found["all", "held out"]
        if result.cut:  # a document of two characters or more, whose end is held out; bytes of one may be in both parts
            train, other = train[:-1], other[1:]
            assert len(set(texts) - {*train, *other}) == 1 and {*train, *other} <= set(texts)
        else:
            assert sorted(train + other) == sorted(set(texts))
        assert result.tally.left_out.get(LeftOut.SAME_TEXT, 0) == len(texts) - len(set(texts))
        documents_in = sum(split.documents for _, _, split in FinishedCorpus(out).splits)
        assert documents_in == len(set(texts)) + len(result.cut)
        assert sum(split.text_bytes for _, _, split in FinishedCorpus(out).splits) == sum(
            len(text.encode()) for text in set(texts)
        )


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[BuildInput]:
    folder = tmp_path_factory.mktemp("inputs")
    one, other = mixed_folder(folder / "one"), mixed_folder(folder / "two", 33)
    return [BuildInput("one", one), BuildInput("two", other / "a.jsonl"), BuildInput("one", other)]


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> BuildOptions:
    tokens = chat_tokens(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")
    return BuildOptions(tokens=tokens, held_out_percent=20, workers=1)


@pytest.fixture(scope="module")
def expected(inputs: list[BuildInput], options: BuildOptions, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("expected") / "out"
    build(inputs, options, out)
    return content_of(out)


@pytest.mark.slow
def test_two_workers_give_the_bytes_of_one(
    inputs: list[BuildInput], options: BuildOptions, expected: dict[str, bytes], tmp_path: Path
) -> None:
    build(inputs, replace(options, workers=2), tmp_path / "out")
    assert content_of(tmp_path / "out") == expected
    assert not (tmp_path / f"out{PARTIAL}").exists()


def test_batches_parts_and_ranges_do_not_show_in_the_bytes(
    inputs: list[BuildInput],
    options: BuildOptions,
    expected: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(readings, "BATCH_ROWS", 3)
    monkeypatch.setattr(parts, "PART_BYTES", 1000)
    monkeypatch.setattr(parts, "RANGE_BYTES", 500)
    monkeypatch.setattr(parts, "MOST_OPEN", 2)
    build(inputs, options, tmp_path / "out")
    assert content_of(tmp_path / "out") == expected


@pytest.mark.slow
def test_build_killed_at_any_step_goes_on_and_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process is killed before its second write to the journal, so that each adds one step to those before it."""
    inputs, options = [BuildInput("one", mixed_folder(tmp_path / "in"))], BuildOptions(held_out_percent=20, workers=1)
    build(inputs, options, tmp_path / "whole")
    monkeypatch.setattr(readings, "BATCH_ROWS", 4)
    monkeypatch.setattr(parts, "PART_BYTES", 800)
    out, written = tmp_path / "out", parts.BuildJournal.write

    def run_until_second_write() -> None:
        left = iter(range(1))

        def write(journal: parts.BuildJournal, line: Mapping[str, Any]) -> None:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            written(journal, line)

        monkeypatch.setattr(parts.BuildJournal, "write", write)  # in a process of its own
        build(inputs, options, out)

    codes = []
    while not out.exists():
        process = multiprocessing.get_context("fork").Process(target=run_until_second_write)
        process.start()
        process.join()
        codes.append(process.exitcode)
    assert codes[-1] == 0 and len(codes) > 10
    assert set(codes[:-1]) == {-signal.SIGKILL}
    assert content_of(out) == content_of(tmp_path / "whole")


def test_partial_build_of_other_options_is_refused(
    inputs: list[BuildInput], options: BuildOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(writer: parts.PartWriter) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(parts.PartWriter, "flush", fill)
        with pytest.raises(PeerError, match=r"its files: No space left on device; make room, and run"):
            build(inputs, options, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(PeerError, match=r"out\.partial is a build of other inputs or options; remove it"):
        build(inputs, replace(options, seed=7), tmp_path / "out")
    build(inputs, options, tmp_path / "out")


def test_same_document_is_held_out_in_every_source(tmp_path: Path) -> None:
    documents = [Document(text=f"text {number}") for number in range(50)]
    build([BuildInput("a", documents), BuildInput("b", documents)], BuildOptions(held_out_percent=30), tmp_path / "out")
    found = texts_of(tmp_path / "out")
    assert found["a", "held out"] == found["b", "held out"] != []


@pytest.mark.parametrize(
    ("name", "replace_by"),
    [
        *((name, replace_by) for name in (DIGEST, "shards/*.shard", "shards/*.leaves") for replace_by in (pipe, link_out)),
        ("shards", link_out),
    ],
)
def test_pipes_and_links_that_lead_out_of_a_corpus_are_named(
    name: str, replace_by: Callable[[Path], None], tmp_path: Path
) -> None:
    out = tmp_path / "above" / "inner" / "out"
    build([BuildInput("a", [Document(text=f"{number:1000}") for number in range(20)])], BuildOptions(), out)
    replace_by(next(out.glob(name)))
    reason = "it is not a regular file" if replace_by is pipe else "it is a link that leads out of the folder"
    with pytest.raises(PeerError, match=reason):
        FinishedCorpus(out).verify()


def test_long_text_is_encoded_in_pieces_that_join_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.corpora.documents.PIECE_CHARACTERS", 10)
    monkeypatch.setattr("peer.corpora.documents.GROUP_CHARACTERS", 25)
    texts = ["one line\nand another\n" * 5, "no end of a line in it " * 4, "x" * 95, "short", "ü" * 10]
    build([BuildInput("a", [Document(text=text) for text in texts])], BuildOptions(held_out_percent=0), tmp_path / "out")
    assert sorted(texts_of(tmp_path / "out")["a", "train"]) == sorted(texts)


@pytest.mark.slow
def test_worker_that_was_killed_is_told_in_a_sentence_and_no_worker_outlives_a_build(tmp_path: Path) -> None:
    pool = workers.ProcessPool(BuildOptions(), tmp_path, lambda reply: None, 2)
    (one, killed), (other, left) = pool._processes.items()
    killed.kill()
    with pytest.raises(
        PeerError, match=r"a worker of the build was ended \(exit code -9\), perhaps for lack of memory; run"
    ):
        for number in range(9):
            pool.put(readings.RawBatch(number, 0))
    other.close()
    assert left.wait() == ExitCode.OK
    one.close()
