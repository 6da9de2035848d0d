"""Corpus in a folder: the writing of its blocks, its manifest, its documents, and the check of all its bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from kernels.outside_files import open_outside, read_outside
from peer.corpora.options import MAX_DOCUMENT_BYTES, TokenFormat
from peer.corpora.parts import sync_folder, write_durably
from peer.errors import ExitCode, PeerError
from protocol.corpora.manifest import (
    BEGINS,
    COUNTS,
    MAX_MANIFEST_BYTES,
    SHARDS,
    CorpusKind,
    CorpusManifest,
    Split,
    read_manifest,
)
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import HASH_BYTES, Hash, chunk_hash, tree_root
from trainer.data.rows import Mask, Tokens
from trainer.data.templates import TemplatedTokenizer
from trainer.data.tokens import MAX_TOKENIZER_BYTES

MANIFEST, DIGEST, TOKENIZER = "corpus.msgpack", "corpus.digest", "tokenizer.json"
"""Names of files in a corpus's folder."""
UNFINISHED = "unfinished"
"""Name of the shard that is being written, in the folder of the shards."""
REMEDY = "copy the corpus again, or build it again"


def shard_path(folder: Path, root: bytes) -> Path:
    """Return the path of a shard in a corpus's folder."""
    return folder / SHARDS / f"{root.hex()}.shard"


def leaves_path(folder: Path, root: bytes) -> Path:
    """Return the path of the hashes of a shard's blocks."""
    return folder / SHARDS / f"{root.hex()}.leaves"


class SplitWriter:
    """Writer of a split's stream of tokens.

    folder: folder of the corpus.  shape: tokens of a block, and blocks of a shard.  token_bytes: size of a token without its
    flags.  written: number of tokens that were added.
    """

    def __init__(self, folder: Path, shape: tuple[int, int], token_bytes: int, *, has_flags: bool) -> None:
        self._folder, self._token_bytes, self._has_flags = folder, token_bytes, has_flags
        self._block_tokens, self._shard_blocks = shape
        self._tokens, self._flags = bytearray(), bytearray()
        self._file: BinaryIO | None = None
        self._leaves: list[Hash] = []
        self._shards: list[Hash] = []
        self.written = 0
        (folder / SHARDS).mkdir(parents=True, exist_ok=True)

    def add(self, tokens: bytes | memoryview, flags: bytes | memoryview = b"") -> None:
        """Append tokens, with a flag for each if the corpus has flags.  Raises OSError."""
        self._tokens += tokens
        self._flags += flags
        self.written += len(tokens) // self._token_bytes
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
        return self._shards

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
        self._shards.append(root)
        self._leaves = []


# ------------------------------------------------------------------------------------------------------------------------
# Finished corpus.


class StoredDocument(NamedTuple):
    """Tokens of a document.  counts: for rows of chats and preferences, true for tokens that count; all true for text."""

    tokens: Tokens
    counts: Mask


class FinishedCorpus:
    """Corpus in a folder."""

    def __init__(self, path: Path) -> None:
        """Read the manifest.  Raises `PeerError` if the folder has none that can be read."""
        self.path = path
        try:
            self.raw = read_outside(path / MANIFEST, MAX_MANIFEST_BYTES)
        except OSError as error:
            raise PeerError(
                f"{path} is not a corpus: cannot read {MANIFEST}: {error.strerror}; give a folder that "
                "`peer data build OUT INPUT` made",
                ExitCode.INPUT,
            ) from error
        try:
            self.manifest: CorpusManifest = read_manifest(self.raw)
        except Malformed as error:
            raise PeerError(f"{path / MANIFEST} is damaged: {error}; {REMEDY}", ExitCode.INPUT) from error
        self.digest = chunk_hash(self.raw)

    @property
    def splits(self) -> Iterator[tuple[str, str, Split]]:
        """All splits, with the names of their sources and "train" or "held out"."""
        for source in self.manifest.sources:
            yield source.name, "train", source.train
            yield source.name, "held out", source.held_out

    def tokenizer(self) -> TemplatedTokenizer:
        """Return the tokenizer in the folder.  Raises `PeerError` if it is not the corpus's."""
        manifest, path = self.manifest, self.path / TOKENIZER
        if manifest.tokenizer == bytes(HASH_BYTES):
            return TokenFormat().open()
        self._check_tokenizer()
        return TokenFormat(tokenizer=path, ends=(manifest.end,)).open()

    def blocks(self, split: Split) -> Iterator[bytes]:
        """Yield the blocks of a split, each checked against its hash.  Raises `PeerError` for damage."""
        number = 0
        for root in split.shards:
            leaves = self._leaves(Hash(root))
            blocks = min(self.manifest.shard_blocks, self.manifest.blocks(split) - number)
            if len(leaves) != blocks or tree_root(leaves) != root:
                raise self._damage(leaves_path(self.path, root), "its hashes do not match the shard")
            path = shard_path(self.path, root)
            try:
                with open_outside(path, self.path) as file:
                    for place, leaf in enumerate(leaves):
                        block = file.read(self.manifest.block(split, number).size)
                        if chunk_hash(block) != leaf:
                            raise self._damage(path, f"block {place} does not match its hash")
                        yield block
                        number += 1
                    if file.read(1):
                        raise self._damage(path, "it is too long")
            except OSError as error:
                raise self._damage(path, error.strerror or str(error)) from error

    def tokens_and_flags(self, block: bytes) -> tuple[Tokens, npt.NDArray[np.uint8]]:
        """Return the tokens of a block, and their flags; no flags for text."""
        manifest = self.manifest
        count = len(block) // manifest.bytes_per_token
        tokens = np.frombuffer(block, np.dtype(f"<u{manifest.token_bytes}"), count)
        return tokens, np.frombuffer(block, np.uint8, offset=count * manifest.token_bytes)

    def documents(self, split: Split) -> Iterator[StoredDocument]:
        """Yield the documents of a split in their order, texts without the end token and chats without padding.

        Documents longer than the limit of a build are cut.
        """
        is_text, end = self.manifest.kind is CorpusKind.TEXT, self.manifest.end
        most = MAX_DOCUMENT_BYTES // self.manifest.token_bytes
        held: list[tuple[Tokens, npt.NDArray[np.uint8]]] = []
        for block in self.blocks(split):
            tokens, flags = self.tokens_and_flags(block)
            starts = np.flatnonzero(tokens == end) + 1 if is_text else np.flatnonzero(flags & BEGINS)
            before = 0
            for start in [*starts.tolist(), None]:
                if sum(len(some) for some, _ in held) < most:
                    held.append((tokens[before:start], flags[before:start]))
                if start is not None:
                    yield from _document(held, is_text=is_text)
                    held, before = [], start
        yield from _document(held, is_text=is_text)

    def _leaves(self, root: Hash) -> list[Hash]:
        path = leaves_path(self.path, root)
        data = self._read(path, HASH_BYTES * self.manifest.shard_blocks)
        if not data or len(data) % HASH_BYTES:
            raise self._damage(path, "it has a wrong length")
        return [Hash(data[place : place + HASH_BYTES]) for place in range(0, len(data), HASH_BYTES)]

    def _read(self, path: Path, most_bytes: int) -> bytes:
        try:
            return read_outside(path, most_bytes, self.path)
        except OSError as error:
            raise self._damage(path, error.strerror or str(error)) from error

    def _check_tokenizer(self) -> None:
        path = self.path / TOKENIZER
        if chunk_hash(self._read(path, MAX_TOKENIZER_BYTES)) != self.manifest.tokenizer:
            raise self._damage(path, "it is not the tokenizer of the corpus")

    def _check_manifest(self) -> None:
        """Compare the manifest with the digest that the build has written."""
        path, digest = self.path / DIGEST, self.digest.hex()
        try:
            noted = read_outside(path, 2 * HASH_BYTES + 2).strip()
        except OSError as error:
            raise PeerError(
                f"{path} cannot be read ({error.strerror}), so a change of {MANIFEST} would go unnoticed; if the corpus had "
                f"the digest {digest} when it was built, write that into {path}; otherwise {REMEDY}",
                ExitCode.INPUT,
            ) from error
        if noted != digest.encode():
            raise self._damage(self.path / MANIFEST, f"its digest is not the one in {DIGEST}")

    def _damage(self, path: Path, flaw: str) -> PeerError:
        return PeerError(f"{path} is damaged: {flaw}; {REMEDY}", ExitCode.INPUT)

    def verify(self, tell: Callable[[int], None] = lambda tokens: None) -> None:
        """Read the whole corpus; raise `PeerError` for the first damage.  tell: called with the number of checked tokens."""
        self._check_manifest()
        if self.manifest.tokenizer != bytes(HASH_BYTES):
            self._check_tokenizer()
        done = 0
        for name, which, split in self.splits:
            documents = 0
            for number, block in enumerate(self.blocks(split)):
                tokens, flags = self.tokens_and_flags(block)
                where = f"block {number} of {name} ({which})"
                if int(tokens.max()) >= self.manifest.vocab:
                    raise self._damage(self.path, f"{where} has a token outside the vocabulary")
                if len(flags) and int(flags.max()) > COUNTS | BEGINS:
                    raise self._damage(self.path, f"{where} has unknown flags")
                documents += int(np.count_nonzero(tokens == self.manifest.end))
                done += len(tokens)
                tell(done)
            if self.manifest.kind is CorpusKind.TEXT and documents < split.documents:
                raise self._damage(self.path, f"{name} ({which}) has {documents} documents instead of {split.documents}")


def _document(parts: list[tuple[Tokens, npt.NDArray[np.uint8]]], *, is_text: bool) -> Iterator[StoredDocument]:
    """Yield the document in these parts, unless it is empty or padding."""
    tokens = np.concatenate([some for some, _ in parts]) if parts else np.zeros(0, np.uint8)
    if is_text:
        if len(tokens) > 1:
            yield StoredDocument(tokens[:-1], np.ones(len(tokens) - 1, np.bool_))
        return
    flags = np.concatenate([some for _, some in parts]) if parts else np.zeros(0, np.uint8)
    counts = (flags & COUNTS).astype(np.bool_)
    if counts.any():
        yield StoredDocument(tokens, counts)


def summaries(manifest: CorpusManifest) -> list[dict[str, Any]]:
    """Return the counts of all splits.  share: fraction of the corpus's training tokens, or of its held-out tokens."""
    found = []
    for which in ("train", "held_out"):
        splits = [(source.name, getattr(source, which)) for source in manifest.sources]
        total = sum(split.tokens for _, split in splits)
        for name, split in splits:
            counts = {"tokens": split.tokens, "documents": split.documents, "text_bytes": split.text_bytes}
            sizes = {"blocks": manifest.blocks(split), "shards": len(split.shards)}
            found.append({"source": name, "split": which, **counts, **sizes, "share": split.tokens / max(1, total)})
    return found
