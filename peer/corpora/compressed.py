"""Lines of files that may be compressed, read with bounded memory.

A file that breaks off, or whose compression is damaged, raises `BrokenFile` after its last readable line.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

import zstandard

CHUNK_BYTES = 1 << 16
ZSTD_CHUNK_BYTES = 1 << 11
"""Compressed bytes that are expanded at a time.  Four of them can become 128 KiB, so this becomes at most 64 MiB."""
MAX_WINDOW_BYTES = 128 << 20
"""Largest window of a zstd frame, which is kept in memory."""


class BrokenFile(Exception):
    """Error for a file that breaks off; the text completes a sentence."""


Note = Callable[[int], None]
"""Function called with the number of bytes of a file that were read."""


def lines_of(name: str, file: BinaryIO, limit: int, note: Note = lambda read: None) -> Iterator[bytes | None]:
    """Yield the lines of an open file without their ends; None for a line longer than `limit`.

    The endings .gz and .zst of its name tell the compression.  note: called as the file is read.  Raises `BrokenFile`,
    OSError.
    """
    parts: list[bytes] = []
    size = 0
    for chunk in _chunks(name, file, note):
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            yield None if size + end - start > limit else b"".join([*parts, chunk[start:end]])
            parts, size, start = [], 0, end + 1
        rest = chunk[start:]
        size += len(rest)
        if size <= limit:
            parts.append(rest)
        else:
            parts.clear()
    if size:
        yield None if size > limit else b"".join(parts)


def _chunks(name: str, file: BinaryIO, note: Note) -> Iterator[bytes]:
    if name.endswith(".zst"):
        yield from _zstd(file, note)
    elif name.endswith(".gz"):
        yield from _gzip(file, note)
    else:
        while chunk := file.read(CHUNK_BYTES):
            note(file.tell())
            yield chunk


def _gzip(compressed: BinaryIO, note: Note) -> Iterator[bytes]:
    try:
        with gzip.open(compressed) as file:
            while chunk := file.read(CHUNK_BYTES):
                note(compressed.tell())
                yield chunk
    except EOFError as error:
        raise BrokenFile("the .gz file is cut short; copy it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise BrokenFile(f"the .gz file is damaged ({error}); copy it again") from error


def _zstd(file: BinaryIO, note: Note) -> Iterator[bytes]:
    """Expand frame after frame.  The library's stream reader would not notice a file that is cut short."""
    library = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    frame = library.decompressobj()
    is_inside = False
    try:
        while piece := file.read(ZSTD_CHUNK_BYTES):
            note(file.tell())
            while piece:
                if chunk := frame.decompress(piece):
                    yield chunk
                is_inside = not frame.eof
                piece = frame.unused_data if frame.eof else b""
                if frame.eof:
                    frame = library.decompressobj()
    except zstandard.ZstdError as error:
        raise BrokenFile(f"the .zst file is damaged ({error}); copy it again") from error
    if is_inside:
        raise BrokenFile("the .zst file is cut short; copy it again")
