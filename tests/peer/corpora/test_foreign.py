"""Token files of other tools are read as their documents; a file that lies is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from peer.corpora import foreign, readers
from peer.corpora.build import build
from peer.corpora.folder import FinishedCorpus
from peer.corpora.foreign import token_input
from peer.corpora.options import BuildOptions, LeftOut
from peer.errors import PeerError

DOCUMENTS = [[1, 2, 3], [4], [5, 6]]


def megatron(
    folder: Path, *, sequences: int = 4, version: int = 1, shift: int = 0, firsts: Sequence[int] = (0, 2, 3, 4)
) -> Path:
    """Three documents, of which the first has two sequences."""
    pieces = [[1, 2], [3], [4], [5, 6]]
    np.array([token for piece in pieces for token in piece], "<u2").tofile(folder / "a.bin")
    sizes = np.array([len(piece) for piece in pieces], "<i4")
    places = np.array([0, 4, 6, 8], "<i8") + shift
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", version, 8, sequences, len(firsts))
    (folder / "a.idx").write_bytes(head + sizes.tobytes() + places.tobytes() + np.array(firsts, "<i8").tobytes())
    return folder / "a.bin"


def datatrove(folder: Path, width: str = "<u2") -> Path:
    np.array([token for document in DOCUMENTS for token in document], width).tofile(folder / "a.ds")
    np.cumsum([len(document) for document in DOCUMENTS]).astype("<u8").tofile(folder / "a.ds.index")
    return folder / "a.ds"


def stream(folder: Path) -> Path:
    np.save(folder / "a.npy", np.array([1, 2, 3, 0, 4, 0, 5, 6], np.int64))
    return folder / "a.npy"


def documents_in(path: Path, out: Path) -> list[list[int]]:
    build([token_input("s", path, 0)], BuildOptions(held_out_percent=0), out)
    corpus = FinishedCorpus(out)
    return sorted(each.tokens.tolist() for each in corpus.documents(corpus.manifest.sources[0].train))


@pytest.mark.parametrize("make", [megatron, datatrove, partial(datatrove, width="<u4"), stream])
def test_documents_are_those_of_the_file(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "STREAM_TOKENS", 3)
    monkeypatch.setattr(foreign, "INDEX_DOCUMENTS", 2)
    assert documents_in(make(tmp_path), tmp_path / "out") == sorted(DOCUMENTS)


def ends(*numbers: int) -> Callable[[Path], Path]:
    """A maker of DataTrove's files whose documents end at these tokens."""

    def make(folder: Path) -> Path:
        path = datatrove(folder)
        np.array(numbers, "<u8").tofile(folder / "a.ds.index")
        return path

    return make


def array(content: Any) -> Callable[[Path], Path]:
    """A maker of a .npy file with this array or these bytes."""

    def make(folder: Path) -> Path:
        path = folder / "a.npy"
        path.write_bytes(content) if isinstance(content, bytes) else np.save(path, content, allow_pickle=True)
        return path

    return make


def of_shape(shape: str) -> Callable[[Path], Path]:
    head = f"{{'descr': '<u2', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return array(b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head + bytes(64))


def written(name: str, content: bytes) -> Callable[[Path], Path]:
    """A maker of Megatron's files, of which one has other bytes; or of a file with another name."""

    def make(folder: Path) -> Path:
        path = megatron(folder)
        (folder / name).write_bytes(content)
        return path if name.startswith("a.idx") else folder / name

    return make


OVERFLOW = (0, (1 << 63) - 1, -(1 << 63), -1, 4)
LYING: dict[str, tuple[Callable[[Path], Path], str]] = {
    "sequences beyond the index": (partial(megatron, sequences=1 << 60), "it is too short for its sequences and documents"),
    "an unknown version": (partial(megatron, version=2), "it has version 2 and token type 8"),
    "places outside the file": (partial(megatron, shift=1 << 40), r"sequence 0 lies outside a\.bin"),
    "documents that decrease by an overflow": (partial(megatron, firsts=OVERFLOW), "do not add up to its sequences"),
    "no magic": (written("a.idx", b"x" * 100), "it is not an index of Megatron's"),
    "ends that decrease": (ends(4, 3, 6), "its documents do not add up"),
    "ends that decrease by an overflow": (ends((1 << 63) - 1, (1 << 63) + 5, (1 << 64) - 1, 6), "documents do not add up"),
    "pickled objects": (array(np.array([{}], object)), "it is not an array"),
    "a shape without end": (of_shape(f"({1 << 70},)"), "it is not an array"),
    "many empty rows": (of_shape(f"({1 << 40}, 0)"), "its rows have no tokens"),
}


@pytest.mark.parametrize("case", LYING)
def test_file_that_lies_is_refused(case: str, tmp_path: Path) -> None:
    make, sentence = LYING[case]
    with pytest.raises(PeerError, match=sentence):
        documents_in(make(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


def test_document_of_sequences_that_overlap_takes_no_more_memory_than_the_largest_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "MAX_DOCUMENT_BYTES", 99)
    np.zeros(50, "<u2").tofile(tmp_path / "a.bin")
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1000, 2)
    columns = [np.full(1000, 50, "<i4"), np.zeros(1000, "<i8"), np.array([0, 1000], "<i8")]
    (tmp_path / "a.idx").write_bytes(head + b"".join(each.tobytes() for each in columns))
    ((_, content, _),) = readers._from_memory(cast(Any, token_input("s", tmp_path / "a.bin", 0).origin))
    assert len(content.tokens) == 100, "just too long, so it is left out and counted"


def test_tokens_outside_the_vocabulary_are_bad_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([[1, 2], [3, 256], [-1, 5]]))
    options = BuildOptions(held_out_percent=0, bad_percent=90)
    result = build([token_input("s", tmp_path / "a.npy", 0)], options, tmp_path / "out")
    assert result.tally.left_out == {LeftOut.TOKENS: 2}
    assert "a.npy, row 2: it has tokens outside the tokenizer's 256" in str(result.tally.first(True))
