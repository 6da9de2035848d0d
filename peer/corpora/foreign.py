"""Token files of other tools: Megatron's .bin with .idx, DataTrove's .ds with .ds.index, and arrays in .npy files.

Megatron's index has, after nine bytes of magic: version (u64), code of the token type (u8), number of sequences (u64),
number of boundaries of documents (u64), length of each sequence (i32), place of each sequence in bytes (i64), and the first
sequence of each document, with the number of all at the end (i64).  DataTrove's index is the end of each document, in tokens
(u64).  A .npy file has one stream, in which the end token ends each document, or a document in each row.

Files are mapped, so a file of any size takes no memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from tokenize import TokenError

import numpy as np
import numpy.typing as npt

from peer.corpora.inputs import BuildInput, Document, check_file
from peer.corpora.options import MAX_DOCUMENT_BYTES
from peer.errors import ExitCode, PeerError
from trainer.data.rows import Tokens

MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
MEGATRON_HEAD = "<QBQQ"
MEGATRON_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Types of tokens by their codes in an index; the other codes are of fractions."""
STREAM_TOKENS = 1 << 20
"""Tokens of a stream that are searched for end tokens at a time."""
INDEX_DOCUMENTS = 1 << 16
"""Documents of an index whose places are converted at a time."""


def token_input(source: str, path: Path, end: int) -> BuildInput:
    """Return the documents of a token file as an input.  end: the end token.  Raises `PeerError` for another file."""
    path = path.with_suffix(".bin") if path.suffix == ".idx" else path
    check_file(path)
    readers: dict[str, Callable[[Path], Iterator[Tokens]]] = {
        ".bin": _megatron,
        ".ds": _datatrove,
        ".npy": partial(_array, end=end),
    }
    if path.suffix not in readers:
        raise PeerError(
            f"{path} is not a token file that can be imported; give Megatron's .bin, DataTrove's .ds, or a .npy file",
            ExitCode.INPUT,
        )
    # A document that its length leaves out is cut here, because workers get copies.
    documents = (Document(tokens=tokens[: MAX_DOCUMENT_BYTES + 1]) for tokens in readers[path.suffix](path))
    return BuildInput(source, documents, path.name)


def _megatron(path: Path) -> Iterator[Tokens]:
    index = path.with_suffix(".idx")
    data = _mapped(index, np.dtype("u1"))
    head = len(MEGATRON_MAGIC) + struct.calcsize(MEGATRON_HEAD)
    if len(data) < head or data[: len(MEGATRON_MAGIC)].tobytes() != MEGATRON_MAGIC:
        raise _broken(index, "it is not an index of Megatron's")
    version, code, sequences, boundaries = struct.unpack(MEGATRON_HEAD, data[len(MEGATRON_MAGIC) : head].tobytes())
    if version != 1 or code not in MEGATRON_TYPES:
        raise _broken(index, f"it has version {version} and token type {code}, which are unknown")
    if boundaries < 1 or head + 12 * sequences + 8 * boundaries > len(data):
        raise _broken(index, "it is too short for its sequences and documents")
    dtype = np.dtype(MEGATRON_TYPES[code])
    sizes = np.frombuffer(data, "<i4", sequences, head)
    places = np.frombuffer(data, "<i8", sequences, head + 4 * sequences)
    firsts = np.frombuffer(data, "<i8", boundaries, head + 12 * sequences)
    tokens = _mapped(path, dtype)
    if firsts[0] != 0 or firsts[-1] != sequences or (firsts[1:] < firsts[:-1]).any():
        raise _broken(index, "its documents do not add up to its sequences")
    for first, last in _pairs(firsts):
        pieces, left = [], MAX_DOCUMENT_BYTES + 1  # sequences may overlap, so together they may exceed the file
        for sequence in range(first, last):
            size, place = int(sizes[sequence]), int(places[sequence])
            start = place // dtype.itemsize
            if size < 0 or place % dtype.itemsize or not 0 <= start <= start + size <= len(tokens):
                raise _broken(index, f"sequence {sequence} lies outside {path.name}")
            pieces.append(tokens[start : start + min(size, left)])
            left -= len(pieces[-1])
        yield np.concatenate(pieces) if pieces else np.zeros(0, dtype)


def _pairs(column: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield all pairs of successive numbers of a mapped column; only a part of them is in memory as objects."""
    for start in range(0, len(column) - 1, INDEX_DOCUMENTS):
        yield from pairwise(column[start : start + INDEX_DOCUMENTS + 1].tolist())


def _datatrove(path: Path) -> Iterator[Tokens]:
    index = path.with_name(path.name + ".index")
    ends = _mapped(index, np.dtype("<u8"))
    size = path.stat().st_size
    total = int(ends[-1]) if len(ends) else 0
    if not total or size not in (2 * total, 4 * total) or (ends[1:] < ends[:-1]).any():
        raise _broken(index, f"its documents do not add up to the tokens of {path.name}, of 2 or 4 bytes each")
    tokens, start = _mapped(path, np.dtype(f"<u{size // total}")), 0
    for end in map(int, ends):
        yield tokens[start:end]
        start = end


def _array(path: Path, end: int) -> Iterator[Tokens]:
    try:
        tokens = np.lib.format.open_memmap(path, mode="r")  # np.load would take archives and pickles as well
    except (OSError, ValueError, OverflowError, TypeError, SyntaxError, TokenError) as error:
        raise _broken(path, f"it is not an array ({error})") from error
    if tokens.ndim == 2 and not tokens.shape[1]:
        raise _broken(path, "its rows have no tokens")
    if tokens.dtype.kind not in "iu" or tokens.ndim not in (1, 2):
        raise _broken(path, f"it has {tokens.ndim} dimensions of {tokens.dtype}, not 1 or 2 of whole numbers")
    if tokens.ndim == 2:
        yield from tokens
        return
    held: list[Tokens] = []
    most = MAX_DOCUMENT_BYTES  # the length of a longer document leaves it out
    for start in range(0, len(tokens), STREAM_TOKENS):
        piece = np.array(tokens[start : start + STREAM_TOKENS])
        before = 0
        for stop in (np.flatnonzero(piece == end) + 1).tolist():
            yield np.concatenate([*held, piece[before:stop]])
            held, before = [], stop
        if before < len(piece) and sum(map(len, held)) <= most:
            held.append(piece[before:])
    if held:
        yield np.concatenate(held)


def _mapped(path: Path, dtype: np.dtype[np.generic]) -> Tokens:
    check_file(path)
    size = path.stat().st_size
    if size % dtype.itemsize:
        raise _broken(path, f"its size is not a multiple of {dtype.itemsize} bytes")
    try:
        return np.memmap(path, dtype, "r") if size else np.zeros(0, dtype)
    except OSError as error:
        raise PeerError(f"cannot read {path}: {error.strerror}; check its permissions", ExitCode.INPUT) from error


def _broken(path: Path, flaw: str) -> PeerError:
    return PeerError(f"{path} is damaged: {flaw}; copy it again", ExitCode.INPUT)
