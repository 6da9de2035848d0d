"""Writing of a split: its documents become blocks, shards and the hashes of their blocks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from peer.corpora.parts import sync_folder, write_durably
from protocol.wire.hashes import Hash, chunk_hash, tree_root

SHARDS = "shards"
UNFINISHED = "unfinished"
"""Name of the shard that is being written, in the folder of the shards."""
SHARD_BYTES = 256 << 20


def shard_path(folder: Path, root: bytes) -> Path:
    """Return the path of a shard in a corpus's folder."""
    return folder / SHARDS / f"{root.hex()}.shard"


def leaves_path(folder: Path, root: bytes) -> Path:
    """Return the path of the hashes of a shard's blocks."""
    return folder / SHARDS / f"{root.hex()}.leaves"


class SplitWriter:
    """Writer of a split's stream of tokens.

    folder: of the corpus.  shape: tokens of a block, and blocks of a shard.  token_bytes: of a token without its flags.
    """

    def __init__(self, folder: Path, shape: tuple[int, int], token_bytes: int, *, has_flags: bool) -> None:
        self._folder, self._token_bytes, self._has_flags = folder, token_bytes, has_flags
        self._block_tokens, self._shard_blocks = shape
        self._tokens, self._flags = bytearray(), bytearray()
        self._file: BinaryIO | None = None
        self._leaves: list[Hash] = []
        self.shards: list[Hash] = []
        (folder / SHARDS).mkdir(parents=True, exist_ok=True)

    def add(self, tokens: bytes | memoryview, flags: bytes | memoryview = b"") -> None:
        """Append tokens, with a flag for each if the corpus has flags.  Raises OSError."""
        self._tokens += tokens
        self._flags += flags
        size = self._block_tokens * self._token_bytes
        start = 0
        while len(self._tokens) - start >= size:
            first = start // self._token_bytes
            self._write(self._tokens[start : start + size], self._flags[first : first + self._block_tokens])
            start += size
        if start:
            del self._tokens[:start], self._flags[: start // self._token_bytes if self._has_flags else 0]

    def finish(self) -> list[Hash]:
        """Write the rest, and return the roots of all shards."""
        if self._tokens:
            self._write(self._tokens, self._flags)
            self._tokens, self._flags = bytearray(), bytearray()
        self._close_shard()
        return self.shards

    def close(self) -> None:
        """Close the unfinished shard, if there is one."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, tokens: bytearray, flags: bytearray) -> None:
        block = bytes(tokens + flags)
        if self._file is None:
            self._file = (self._folder / SHARDS / UNFINISHED).open("wb")
        self._file.write(block)
        self._leaves.append(chunk_hash(block))
        if len(self._leaves) == self._shard_blocks:
            self._close_shard()

    def _close_shard(self) -> None:
        if self._file is None:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()
        root = tree_root(self._leaves)
        write_durably(leaves_path(self._folder, root), self._leaves)
        (self._folder / SHARDS / UNFINISHED).replace(shard_path(self._folder, root))
        sync_folder(self._folder / SHARDS)
        self.shards.append(root)
        self._leaves = []
