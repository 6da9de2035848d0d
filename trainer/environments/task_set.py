"""Reader of contributed sets of tasks, strict and within bounds.

Pure: bytes in, tasks out.  Publication, admission and the statistics of a set are decided elsewhere.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

from trainer.environments.jsonl import digest_of
from trainer.environments.records import TaskRecord, read_tasks

MAX_SET_BYTES = 16 << 20
"""Largest set, after decompression."""
MAX_COMPRESSED_BYTES = 16 << 20
ZSTANDARD = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class TaskBundle:
    """Contributed set of tasks.  plain: its bytes after decompression.  digest: of these bytes, the name of the set."""

    digest: str
    tasks: tuple[TaskRecord, ...]
    plain: bytes


def read_task_set(data: bytes) -> TaskBundle:
    """Read a set from bytes: lines of JSON, plain or compressed by Zstandard.

    Raises ValueError with one sentence for anything else; never decompresses more than `MAX_SET_BYTES`.
    """
    plain = _decompressed(data) if data.startswith(ZSTANDARD) else data
    if len(plain) > MAX_SET_BYTES:
        raise ValueError(f"a set has at most {MAX_SET_BYTES >> 20} MiB")
    return TaskBundle(digest_of(plain), read_tasks(io.BytesIO(plain)), plain)


def _decompressed(data: bytes) -> bytes:
    if len(data) > MAX_COMPRESSED_BYTES:
        raise ValueError(f"a compressed set has at most {MAX_COMPRESSED_BYTES >> 20} MiB")
    try:
        import zstandard
    except ImportError as error:
        raise ValueError("a compressed set needs the package zstandard: pip install zstandard") from error
    damaged = "the set is damaged: it is not what Zstandard writes"
    try:
        size = zstandard.frame_content_size(data)
        if size < 0:
            raise ValueError("the compressed set does not say its size: compress it as a file (zstd FILE), not from a pipe")
        if size > MAX_SET_BYTES:
            raise ValueError(f"a set has at most {MAX_SET_BYTES >> 20} MiB")
        reader = zstandard.ZstdDecompressor(max_window_size=MAX_SET_BYTES).stream_reader(data)
        plain = bytes(reader.read(size + 1))
    except zstandard.ZstdError as error:
        raise ValueError(damaged) from error
    if len(plain) != size:
        raise ValueError(damaged)
    return plain
