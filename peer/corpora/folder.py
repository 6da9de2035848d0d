"""Finished corpus in a folder: its manifest, its documents, and the check of all its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernels.outside_files import open_outside, read_outside
from peer.corpora.blocks import leaves_path, shard_path
from peer.corpora.build import DIGEST, MANIFEST, TOKENIZER
from peer.corpora.options import MAX_DOCUMENT_BYTES, TokenFormat
from peer.errors import ExitCode, PeerError
from protocol.corpora.manifest import (
    BEGINS,
    COUNTS,
    MAX_MANIFEST_BYTES,
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

REMEDY = "copy the corpus again, or build it again"


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
            data = read_outside(path / MANIFEST, MAX_MANIFEST_BYTES)
        except OSError as error:
            raise PeerError(
                f"{path} is not a corpus: cannot read {MANIFEST}: {error.strerror}; give a folder that "
                "`peer data build OUT INPUT` made",
                ExitCode.INPUT,
            ) from error
        try:
            self.manifest: CorpusManifest = read_manifest(data)
        except Malformed as error:
            raise PeerError(f"{path / MANIFEST} is damaged: {error}; {REMEDY}", ExitCode.INPUT) from error
        self.digest = chunk_hash(data)

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
                raise self._damage(leaves_path(self.path, root), "its hashes are not those of the shard")
            path = shard_path(self.path, root)
            try:
                with open_outside(path, self.path) as file:
                    for place, leaf in enumerate(leaves):
                        block = file.read(self.manifest.block(split, number).size)
                        if chunk_hash(block) != leaf:
                            raise self._damage(path, f"block {place} does not have its hash")
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
        """Yield the documents of a split in their order; a text without the end token, and chats without padding.

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
        try:
            data = read_outside(path, HASH_BYTES * self.manifest.shard_blocks, self.path)
        except OSError as error:
            raise self._damage(path, error.strerror or str(error)) from error
        if not data or len(data) % HASH_BYTES:
            raise self._damage(path, "it has a wrong length")
        return [Hash(data[place : place + HASH_BYTES]) for place in range(0, len(data), HASH_BYTES)]

    def _check_tokenizer(self) -> None:
        path = self.path / TOKENIZER
        try:
            data = read_outside(path, MAX_TOKENIZER_BYTES)
        except OSError as error:
            raise self._damage(path, error.strerror or str(error)) from error
        if chunk_hash(data) != self.manifest.tokenizer:
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
        """Read the whole corpus; raise `PeerError` for the first damage.  tell: called with the tokens that are checked."""
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


@dataclass(frozen=True)
class SplitSummary:
    """Counts of a split for people and programs.  share: of the corpus's training tokens, or of its held-out ones."""

    source: str
    split: str
    tokens: int
    documents: int
    text_bytes: int
    blocks: int
    shards: int
    share: float


def summaries(manifest: CorpusManifest) -> list[SplitSummary]:
    """Return the counts of all splits."""
    found = []
    for which in ("train", "held_out"):
        splits = [(source.name, getattr(source, which)) for source in manifest.sources]
        total = sum(split.tokens for _, split in splits)
        found += [
            SplitSummary(
                name,
                which,
                split.tokens,
                split.documents,
                split.text_bytes,
                manifest.blocks(split),
                len(split.shards),
                split.tokens / total if total else 0.0,
            )
            for name, split in splits
        ]
    return found
