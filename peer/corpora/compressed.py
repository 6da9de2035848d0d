"""Content of files that may be compressed, read with bounded memory.

The first bytes tell the compression: gzip, zstd, xz or bzip2.  A file that breaks off, or whose compression is damaged,
raises `BrokenFile` after its last readable bytes.
"""

from __future__ import annotations

import bz2
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, BinaryIO

import zstandard

CHUNK_BYTES = 1 << 16
COMPRESSED_BYTES = 1 << 11
"""Compressed bytes that are expanded at a time.  Four of them can become 128 KiB, so this becomes at most 64 MiB."""
MAX_WINDOW_BYTES = 128 << 20
"""Largest window of a zstd frame or an xz stream, which is kept in memory."""
ENDINGS = (".gz", ".zst", ".xz", ".bz2")
"""Endings of the names of compressed files."""


class BrokenFile(Exception):
    """Error for a file that cannot be read to its end; the text completes a sentence."""


class CutFile(BrokenFile):
    """Error for a file whose end is missing, so that the size of the lost part is unknown."""


Note = Callable[[int], None]
"""Function called with the number of bytes of a file that were read."""


def chunks_of(file: BinaryIO, note: Note = lambda read: None) -> Iterator[bytes]:
    """Yield the decompressed content of an open file in pieces.  note: called while it is read.

    Raises `BrokenFile`, OSError.
    """
    if ending := compression_of(file):
        yield from _expanded(file, note, ending)
        return
    while chunk := file.read(CHUNK_BYTES):
        note(file.tell())
        yield chunk


def compression_of(file: BinaryIO) -> str:
    """Return the ending of a file's compression; "" for none.  The file is at its beginning, and stays there."""
    head = file.read(6)
    file.seek(0)
    return next((name for name, magic in _MAGIC.items() if head.startswith(magic)), "")


def head_of(file: BinaryIO, size: int) -> tuple[bytes, bool]:
    """Return up to `size` decompressed bytes of a file's beginning, and True if they are the whole content.

    The file is rewound.  A damaged file counts up to the damage.
    """
    parts, left = list[bytes](), size
    try:
        for chunk in chunks_of(file):
            parts.append(chunk[:left])
            left -= len(chunk)
            if left < 0:
                break
    except BrokenFile:
        left = -1
    file.seek(0)
    return b"".join(parts), left >= 0


def lines_of(chunks: Iterable[bytes], limit: int) -> Iterator[bytes | int]:
    """Yield the lines of a text without their ends; for a line longer than `limit`, yield its size."""
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            size += end - start
            yield size if size > limit else b"".join([*parts, chunk[start:end]])
            parts, size, start = [], 0, end + 1
        rest = chunk[start:]
        size += len(rest)
        if size <= limit:
            parts.append(rest)
        else:
            parts.clear()
    if size:
        yield size if size > limit else b"".join(parts)


_OUTSIDE, _IN_TEXT = re.compile(rb'["\[\]{},]'), re.compile(rb'["\\]')


def elements_of(chunks: Iterable[bytes], limit: int) -> Iterator[bytes | int]:
    """Yield the elements of a JSON array, which begins with [; for an element longer than `limit`, yield its size.

    Only brackets, commas and texts are checked, because the parser of an element finds its other faults.  Raises
    `BrokenFile` for an array that does not end, or that has text after its end.
    """
    depth, size, is_text, is_escaped = 0, 0, False, False
    parts: list[bytes] = []
    for chunk in chunks:
        place = start = 0
        if is_escaped:
            place, is_escaped = 1, False
        while (found := (_IN_TEXT if is_text else _OUTSIDE).search(chunk, place)) is not None:
            place, mark = found.end(), found[0]
            if mark == b"\\":
                place += 1
            elif mark == b'"':
                is_text = not is_text
            elif mark in b"[{":
                depth += 1
                start = place if depth == 1 else start
            elif depth == 1:
                size += place - 1 - start
                element = b"".join([*parts, chunk[start : place - 1]])
                if size > limit or element.strip():
                    yield size if size > limit else element
                parts, size, start = [], 0, place
                if mark != b",":
                    depth = -1
                    break
            elif mark != b",":
                depth -= 1
        if depth < 0:
            if chunk[start:].strip() or any(more.strip() for more in chunks):
                raise BrokenFile("it has text after the end of its JSON array; write one record on each line")
            return
        is_escaped = place > len(chunk)
        if depth:
            size += len(chunk) - start
            parts = [*parts, chunk[start:]] if size <= limit else []
    raise CutFile("its JSON array breaks off; copy it again")


# -- compressions ------------------------------------------------------------------------------------------------------

_MAGIC = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd", ".xz": b"\xfd7zXZ\x00", ".bz2": b"BZh"}
_STREAMS: dict[str, Callable[[], Any]] = {
    ".gz": partial(zlib.decompressobj, zlib.MAX_WBITS | 16),
    ".zst": zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj,
    ".xz": partial(lzma.LZMADecompressor, memlimit=MAX_WINDOW_BYTES),
    ".bz2": bz2.BZ2Decompressor,
}
"""Makers of decompressors for one stream of a file."""
_BOUNDED = (lzma.LZMADecompressor, bz2.BZ2Decompressor)
"""Decompressors that can keep their input for later calls; a byte of bzip2 may become a megabyte."""


def _expanded(file: BinaryIO, note: Note, ending: str) -> Iterator[bytes]:
    """Yield the content of one stream after the other.

    The libraries' own files do not notice a zstd file that is cut short, or have no limit.
    """
    stream, is_inside = _STREAMS[ending](), False
    try:
        while piece := file.read(COMPRESSED_BYTES):
            note(file.tell())
            while piece or (isinstance(stream, _BOUNDED) and not stream.needs_input):
                chunk = stream.decompress(piece, CHUNK_BYTES) if isinstance(stream, _BOUNDED) else stream.decompress(piece)
                if chunk:
                    yield chunk
                is_inside, piece = not stream.eof, b""
                if stream.eof:
                    piece, stream = stream.unused_data.lstrip(b"\0"), _STREAMS[ending]()  # streams may be padded
    except (zlib.error, zstandard.ZstdError, lzma.LZMAError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise BrokenFile(f"the {ending} file is damaged ({error}); copy it again") from error
    if is_inside:
        raise CutFile(f"the {ending} file is cut short; copy it again")
