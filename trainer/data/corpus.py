"""Corpora of which a peer fetches only the blocks that it reads: manifests, blocks in folders, and rows of mixed sources.

`protocol.corpora.manifest` defines the format, and the peer has checked the manifest.  A block is checked against its
hash at its first use in this process, because a disk may have altered it since it was written.  A source has two splits,
each a stream of tokens in blocks of `block_tokens` tokens, in shards of `shard_blocks` blocks.  A row of text is a window
of any length in that stream.  A row of chats, or both rows of a preference, have the length of the corpus, and a byte of
flags for each token.

`kernels.mixture` maps each row of the run to a row of a source, so a batch depends only on the numbers of its rows.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from kernels.mixture import RowMixture
from kernels.outside_files import open_outside, read_outside
from trainer.data.rows import Documents, Rows, Tokens

MAX_MANIFEST_BYTES = 4 << 20
COUNTS, BEGINS = 1, 2
"""Flags of a token: the loss counts its prediction; it is the first of a document."""


class RowKind(StrEnum):
    """Kind of a corpus's rows."""

    TEXT = "text"
    CHAT = "chat"
    PREFERENCE = "preference"


@dataclass(frozen=True)
class StoredSplit:
    """Stream of tokens.  text_bytes: bytes of UTF-8 that the tokens stand for.  shards: their roots, in hexadecimal."""

    tokens: int
    text_bytes: int
    shards: tuple[str, ...]


@dataclass(frozen=True)
class StoredSource:
    """Both splits of a source."""

    name: str
    train: StoredSplit
    held_out: StoredSplit


class BlockPlace(NamedTuple):
    """Place of a block in a split.  size, stride: bytes of this block, and of a full block."""

    shard: str
    number: int
    size: int
    stride: int


@dataclass(frozen=True)
class StoredCorpus:
    """Parts of a corpus's manifest that reading needs.  digest: digest of the manifest's bytes, in hexadecimal."""

    digest: str
    kind: RowKind
    vocab: int
    end: int
    token_bytes: int
    row_tokens: int
    block_tokens: int
    shard_blocks: int
    sources: Mapping[str, StoredSource]

    def __post_init__(self) -> None:
        if self.token_bytes not in (1, 2, 4) or min(self.vocab, self.block_tokens, self.shard_blocks) < 1:
            raise ValueError("sizes outside their range")
        if (self.kind is RowKind.TEXT) != (self.row_tokens == 0) or self.row_tokens == 1 or self.row_tokens < 0:
            raise ValueError("rows that do not fit its kind")
        for source in self.sources.values():
            for split in (source.train, source.held_out):
                blocks = -(-split.tokens // self.block_tokens)
                if split.tokens < 0 or len(split.shards) != -(-blocks // self.shard_blocks):
                    raise ValueError("shards that do not add up to its tokens")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a manifest.  Raises ValueError with one sentence for a file that is not a manifest."""
        import msgpack  # imported here, because models and kernels are tested on GPU images without it

        try:
            data = read_outside(path, MAX_MANIFEST_BYTES)
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror}") from error
        try:
            return cls._of(msgpack.unpackb(data, raw=False), hashlib.blake2b(data, digest_size=16).hexdigest())
        except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
            raise ValueError(
                f"{path} does not describe a corpus that this version reads ({error}); build or fetch it again"
            ) from error

    @classmethod
    def _of(cls, fields: Mapping[str, Any], digest: str) -> Self:
        if fields["format"] != 1:
            raise ValueError(f"format {fields['format']!r:.20}")
        sizes = {
            name: int(fields[name]) for name in ("vocab", "end", "token_bytes", "row_tokens", "block_tokens", "shard_blocks")
        }
        sources = [
            StoredSource(str(each["name"]), _split(each["train"]), _split(each["held_out"])) for each in fields["sources"]
        ]
        return cls(digest=digest, kind=RowKind(fields["kind"]), sources={each.name: each for each in sources}, **sizes)

    @property
    def has_flags(self) -> bool:
        """True if a byte of flags for each token follows a block's tokens."""
        return self.kind is not RowKind.TEXT

    @property
    def unit_rows(self) -> int:
        """Number of rows that are read together: 2 for a preference, otherwise 1."""
        return 2 if self.kind is RowKind.PREFERENCE else 1

    def rows(self, split: StoredSplit, length: int) -> int:
        """Return the number of rows of `length` predicted tokens in a split; a preference counts as one row.

        Rows of text predict every token but the first.
        """
        if self.has_flags:
            return split.tokens // (self.unit_rows * self.row_tokens)
        return -(-(split.tokens - 1) // length) if split.tokens > length else 0

    def span(self, split: StoredSplit, row: int, length: int) -> range:
        """Return the places of a row's tokens in the stream, including its first token.

        The last row of text ends with the stream, and may overlap the row before it.
        """
        if self.has_flags:
            unit = self.unit_rows * self.row_tokens
            return range(row * unit, (row + 1) * unit)
        start = min(row * length, split.tokens - length - 1)
        return range(start, start + length + 1)

    def block(self, split: StoredSplit, number: int) -> BlockPlace:
        """Return the place of block `number` of a split, counted from 0 over all shards."""
        width = self.token_bytes + self.has_flags
        shard, within = divmod(number, self.shard_blocks)
        tokens = min(self.block_tokens, split.tokens - number * self.block_tokens)
        return BlockPlace(split.shards[shard], within, tokens * width, self.block_tokens * width)


def _split(fields: Mapping[str, Any]) -> StoredSplit:
    shards = tuple(bytes(root).hex() for root in fields["shards"])
    return StoredSplit(int(fields["tokens"]), int(fields["text_bytes"]), shards)


# ------------------------------------------------------------------------------------------------------------------------
# Blocks in folders.


MOST_KEPT = 16
"""Blocks that stay in memory, of 1 MiB at most."""
HASH_BYTES = 32


class BlockMissing(Exception):
    """Exception for a block of which no folder has an intact copy (yet).  shard: its root, in hexadecimal."""

    def __init__(self, shard: str, number: int) -> None:
        super().__init__(f"block {number} of the shard {shard[:12]} is not here")
        self.shard, self.number = shard, number


class BlockFolders:
    """Folders in which blocks are looked up: `<shard>/<number>` is a block, and `<shard>.shard` is a whole shard.

    `<shard>/leaves` and `<shard>.leaves` are the BLAKE3 hashes of a shard's blocks; a block with another hash is ignored.
    Files are read, not mapped: if somebody shortened a mapped file, the process would end.  Blocks are read whole, and the
    last ones used stay in memory.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)
        self._kept: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        """Blocks by shard and number, the last used at the end."""

    def read(self, place: BlockPlace) -> bytes:
        """Return a block.  Raises BlockMissing."""
        key = place.shard, place.number
        data = self._kept.pop(key, None) or self._found(place)
        self._kept[key] = data
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return data

    def _found(self, place: BlockPlace) -> bytes:
        from blake3 import blake3  # imported here, because models and kernels are tested on GPU images without it

        names = (f"{place.shard}/leaves", f"{place.shard}.leaves")
        leaves = {_part(folder, name, place.number * HASH_BYTES, HASH_BYTES) for folder in self._folders for name in names}
        for name, offset in ((f"{place.shard}/{place.number}", 0), (f"{place.shard}.shard", place.number * place.stride)):
            for folder in self._folders:
                data = _part(folder, name, offset, place.size)
                if len(data) == place.size and blake3(data).digest() in leaves:
                    return data
        raise BlockMissing(place.shard, place.number)


def _part(folder: Path, name: str, begin: int, size: int) -> bytes:
    """Return a part of a file in a folder; nothing if it cannot be read."""
    try:
        with open_outside(folder / name, folder) as file:
            file.seek(begin)
            return file.read(size)
    except OSError:
        return b""


class CorpusFolder:
    """Corpus whose blocks lie in folders."""

    def __init__(self, corpus: StoredCorpus, blocks: BlockFolders) -> None:
        self.corpus = corpus
        self._blocks = blocks
        self._dtype = np.dtype(f"<u{corpus.token_bytes}")

    def read(self, split: StoredSplit, span: range) -> tuple[Tokens, npt.NDArray[np.uint8]]:
        """Return the tokens of a span of a split, and their flags, which are empty for text.

        Raises BlockMissing, and ValueError for tokens outside the vocabulary.
        """
        corpus = self.corpus
        tokens, flags = bytearray(), bytearray()
        for number in range(span.start // corpus.block_tokens, (span.stop - 1) // corpus.block_tokens + 1):
            place, first = corpus.block(split, number), number * corpus.block_tokens
            begin, end = max(span.start - first, 0), min(span.stop - first, corpus.block_tokens)
            data = self._blocks.read(place)
            tokens += data[begin * corpus.token_bytes : end * corpus.token_bytes]
            if corpus.has_flags:
                before = place.size // (corpus.token_bytes + 1) * corpus.token_bytes
                flags += data[before + begin : before + end]
        found = np.frombuffer(tokens, self._dtype)
        if int(found.max(initial=0)) >= corpus.vocab:
            raise ValueError(
                f"the run's corpus has a token {int(found.max())}, and its vocabulary has {corpus.vocab}, so its files here "
                "are damaged or were built wrongly: check them with `peer data verify FOLDER`"
            )
        return found, np.frombuffer(flags, np.uint8)


# ------------------------------------------------------------------------------------------------------------------------
# Rows of a run.


class DocumentLayout(StrEnum):
    """Layout of a row of text: either each document is computed as if it were alone, or the row is one document."""

    MASKED = "masked"
    JOINED = "joined"


@dataclass(frozen=True)
class MixedSource:
    """Source of a run, under the name that the run gives it.  source: its name in the corpus."""

    name: str
    folder: CorpusFolder
    source: str

    @property
    def splits(self) -> StoredSource:
        """Both splits of the source."""
        return self.folder.corpus.sources[self.source]


class CorpusReading:
    """Rows of a mixture of sources.

    Windows are rows of the run; their numbers are not limited, and may begin the next epoch of a source.

    Windows of the held-out split are numbered through all sources, one source after the other.

    digest: hash of all the data, in hexadecimal.  names: names of the sources.  windows: number of rows before a source
    begins its second epoch; at least 1.
    """

    def __init__(self, sources: Sequence[MixedSource], mixture: RowMixture, length: int, documents: DocumentLayout) -> None:
        """Make a reading of rows that predict `length` tokens.  Raises ValueError for unsuitable sources."""
        assert len(sources) == mixture.sources
        self._sources, self._mixture, self._length, self._documents = tuple(sources), mixture, length, documents
        self._check()
        self.names = tuple(source.name for source in sources)
        self._rows = [each.folder.corpus.rows(each.splits.train, length) for each in sources]
        held_out = [each.folder.corpus.rows(each.splits.held_out, length) for each in sources]
        for number, rows in enumerate(self._rows):
            if not rows and mixture.is_read(number):
                raise ValueError(
                    f"the source {self.names[number]} has no row of data.sequence_length ({length}); make "
                    "data.sequence_length smaller"
                )
        if not any(held_out):
            raise ValueError(
                f"no source has a held-out row of data.sequence_length ({length}); make it smaller, or hold out more"
            )
        ends = [0, *accumulate(held_out)]
        self._held_out = [range(*each) for each in pairwise(ends)]
        self.windows, self.held_out_windows = mixture.rows_within(self._rows) or 1, ends[-1]
        self._pairs = [0, *accumulate(self._rows)]
        """Number of each source's first preference; held-out preferences follow all others."""
        identity = [(each.name, each.source, each.folder.corpus.digest) for each in sources]
        self.digest = hashlib.blake2b(repr((identity, length, str(documents))).encode(), digest_size=16).hexdigest()

    def _check(self) -> None:
        for each in self._sources:
            corpus = each.folder.corpus
            if each.source not in corpus.sources:
                raise ValueError(f"the run's corpus has no source {each.source!r:.80}; it has {', '.join(corpus.sources)}")
            if corpus.kind is not self.kind:
                raise ValueError("a run mixes sources of one kind; use only text, only chats, or only preferences")
            if corpus.has_flags and corpus.row_tokens != self._length + 1:
                raise ValueError(
                    f"the corpus of {each.name} has rows of {corpus.row_tokens - 1} predicted tokens, but "
                    f"data.sequence_length is {self._length}; make them equal"
                )

    @property
    def length(self) -> int:
        """Number of tokens predicted in a row."""
        return self._length

    @property
    def kind(self) -> RowKind:
        """Kind of all rows."""
        return self._sources[0].folder.corpus.kind

    def weights(self, row: int) -> tuple[int, ...]:
        """Return the weights of the sources in the phase of a row of the run."""
        weights: tuple[int, ...] = self._mixture.weights(row)
        return weights

    def held_out_of(self, source: int) -> range:
        """Return the held-out windows of a source."""
        return self._held_out[source]

    def place(self, row: int) -> tuple[int, int]:
        """Return the source of a row of the run, and its number among the rows of the source's training split."""
        source, index = self._mixture.place(row)
        return source, index % self._rows[source]

    def pair(self, window: int, *, held_out: bool = False) -> int:
        """Return the number of a window's preference, as in `Rows.pairs_b`."""
        if held_out:
            return self._pairs[-1] + window
        source, row = self.place(window)
        return self._pairs[source] + row

    def rows(self, windows: Sequence[int], *, held_out: bool = False) -> Rows:
        """Return windows by number, one per row, or two for each preference.  Raises BlockMissing.

        Each row has at least one counted token.
        """
        places = (
            [self.place(each) for each in windows]
            if not held_out
            else [
                (source, each - span.start) for each in windows for source, span in enumerate(self._held_out) if each in span
            ]
        )
        read = [self._read(source, row, held_out) for source, row in places]
        units = self._sources[0].folder.corpus.unit_rows
        tokens_bt = np.stack([tokens for tokens, _ in read]).reshape(len(read) * units, self._length + 1)
        sources_b = np.repeat(np.array([source for source, _ in places], np.int16), units)
        if self.kind is RowKind.TEXT:
            ends_b = np.array([self._sources[source].folder.corpus.end for source, _ in places])
            masked = self._documents is DocumentLayout.MASKED
            return Rows(tokens_bt, None, documents_by_end(tokens_bt[:, :-1], ends_b) if masked else None, sources_b)
        flags_bt = np.stack([flags for _, flags in read]).reshape(tokens_bt.shape)
        begins_bt = (flags_bt & BEGINS) != 0
        counts_bt = (((flags_bt & COUNTS) != 0) & ~begins_bt)[:, 1:]  # not the first token, which no token precedes
        documents_bt = np.cumsum(begins_bt[:, :-1], axis=1, dtype=np.int32)
        if self.kind is RowKind.CHAT:
            return Rows(tokens_bt, counts_bt, documents_bt, sources_b)
        pairs = np.array([self.pair(each, held_out=held_out) for each in windows], np.int64)
        return Rows(tokens_bt, counts_bt, documents_bt, sources_b, np.repeat(pairs, units))

    def _read(self, number: int, row: int, held_out: bool) -> tuple[Tokens, npt.NDArray[np.uint8]]:
        each = self._sources[number]
        split = each.splits.held_out if held_out else each.splits.train
        return each.folder.read(split, each.folder.corpus.span(split, row, self._length))


def documents_by_end(tokens_bt: Tokens, ends_b: npt.NDArray[Any]) -> Documents:
    """Return the id of each token's document, from 0 in each row.

    ends_b: the token that ends a document; it belongs to the document.
    """
    ends_bt = tokens_bt == ends_b[:, None]
    documents_bt = np.zeros(tokens_bt.shape, np.int32)
    np.cumsum(ends_bt[:, :-1], axis=1, out=documents_bt[:, 1:])
    return documents_bt
