"""Format of a corpus: its manifest, the places of its tokens in blocks and shards, and the rows of a run in it.

The folder of a corpus is laid out so that any static web server over it is a mirror (`protocol.blobs.mirrors`):

    corpus.msgpack          the manifest
    shards/<root>.shard     the blocks of a shard, one after the other
    shards/<root>.leaves    the hashes of its blocks, 32 bytes each

The manifest is a canonical message.  Its bytes are a file of the run, whose root identifies the corpus.  Each **source** has
two **splits**, one for training and one held out.  A split is one stream of tokens in which documents follow each other in
the order of a keyed hash.  The stream is cut into **blocks** of `block_tokens` tokens; the last one may be shorter.  A
**shard** is a file of `shard_blocks` blocks.  It is also a blob with the blocks as its chunks: the manifest has its root,
over the hashes of its blocks.

A token takes `token_bytes` bytes, little endian.  In a corpus of text a document ends with the token `end`, and a run
chooses the length of its rows.  A corpus of chats or preferences consists of rows of `row_tokens` tokens.  In each of its
blocks, a byte of flags for each token (`COUNTS`, `BEGINS`) follows the tokens.  A preference is two rows: chosen, rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kernels.mixture import RowMixture
from protocol.blobs.blob import EvenSpans
from protocol.run.manifest import RunManifest
from protocol.run.sections import MAX_SOURCES, SourceSection
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Body, HashField, decode_body
from protocol.wire.hashes import Hash

SHARDS = "shards"
"""Name of the folder of the shards in the folder of a corpus."""
MAX_MANIFEST_BYTES = 4 << 20
MAX_SPLIT_TOKENS = 1 << 44
MAX_BLOCK_BYTES = 1 << 20
"""Most bytes of a block, tokens and flags together."""
LEAST_BLOCK_TOKENS = 1 << 10
"""Fewest tokens of a block; if blocks hold whole units, it may have less than a unit fewer."""
MAX_SHARD_BLOCKS = 1 << 12
MAX_SHARDS = 1 << 15
"""Most shards of all splits together."""
MAX_RECIPE_CHARS = 1 << 14
COUNTS, BEGINS = 1, 2
"""Flags of a token: the loss counts its prediction; it is the first of a document."""


class CorpusKind(StrEnum):
    """Kind of a corpus's rows."""

    TEXT = "text"
    CHAT = "chat"
    PREFERENCE = "preference"


@dataclass(frozen=True, order=True)
class Block:
    """Place of a block: its shard, by its root, and its number in the shard.  size: size in bytes, tokens and flags."""

    shard: Hash
    number: int
    size: int


class Split(Body):
    """Stream of tokens.  text_bytes: bytes of UTF-8 that the tokens stand for, for bits per byte.  shards: their roots."""

    tokens: Annotated[int, Field(ge=0, le=MAX_SPLIT_TOKENS)]
    documents: Annotated[int, Field(ge=0, le=MAX_SPLIT_TOKENS)]
    text_bytes: Annotated[int, Field(ge=0, le=1 << 50)]
    shards: Annotated[list[HashField], Field(max_length=MAX_SHARDS)]


class CorpusSource(Body):
    """Documents that the organiser mixes as one."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")]
    train: Split
    held_out: Split


class CorpusManifest(Body):
    """A corpus.  tokenizer: BLAKE3 of the checked tokenizer.json; zeros for bytes.  vocab: exclusive upper bound on tokens.

    end: token that ends a document.  row_tokens: tokens of a row, predicted ones and the first; 0 for text.  recipe: JSON
    that names the inputs and options of the build, for people.
    """

    format: Literal[1] = 1
    kind: Annotated[CorpusKind, Field(strict=False)]
    tokenizer: HashField
    vocab: Annotated[int, Field(ge=2, le=1 << 20)]
    end: Annotated[int, Field(ge=0, lt=1 << 20)]
    token_bytes: Literal[1, 2, 4]
    row_tokens: Annotated[int, Field(ge=0, le=(1 << 17) + 1)]
    block_tokens: Annotated[int, Field(ge=1, le=MAX_BLOCK_BYTES)]
    shard_blocks: Annotated[int, Field(ge=1, le=MAX_SHARD_BLOCKS)]
    recipe: Annotated[str, Field(max_length=MAX_RECIPE_CHARS)]
    sources: Annotated[list[CorpusSource], Field(min_length=1, max_length=MAX_SOURCES)]

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        for flaw in self._flaws():
            raise ValueError(flaw)
        return self

    def _flaws(self) -> Iterator[str]:
        if self.vocab > 1 << 8 * self.token_bytes or self.end >= self.vocab:
            yield "a corpus whose tokens do not fit its vocabulary"
        if self.block_tokens * self.bytes_per_token > MAX_BLOCK_BYTES:
            yield "a corpus with blocks that are too large"
        if (self.kind is CorpusKind.TEXT) != (self.row_tokens == 0):
            yield "a corpus of rows without a row length, or a corpus of text with one"
        if self.unit_tokens > 1 and self.block_tokens % self.unit_tokens:
            yield "a corpus whose blocks do not hold whole rows"
        if len({source.name for source in self.sources}) < len(self.sources):
            yield "a corpus with two sources of the same name"
        splits = [split for source in self.sources for split in (source.train, source.held_out)]
        if sum(len(split.shards) for split in splits) > MAX_SHARDS:
            yield "a corpus with too many shards"
        for split in splits:
            if len(split.shards) != -(-self.blocks(split) // self.shard_blocks):
                yield "a corpus whose shards do not add up to its tokens"
            if split.documents > split.tokens or split.tokens % self.unit_tokens:
                yield "a corpus with more documents than tokens, or part of a row"

    @property
    def bytes_per_token(self) -> int:
        """Bytes of a token in a block, with its flags."""
        return self.token_bytes + (self.kind is not CorpusKind.TEXT)

    @property
    def unit_tokens(self) -> int:
        """Tokens of the smallest part that is read: 1 for text, otherwise a row's, or both rows' of a preference."""
        return max(1, self.row_tokens) * (2 if self.kind is CorpusKind.PREFERENCE else 1)

    def blocks(self, split: Split) -> int:
        """Return the number of blocks of a split."""
        return -(-split.tokens // self.block_tokens)

    def block(self, split: Split, number: int) -> Block:
        """Return the place of block `number` of a split, counted from 0 over all shards."""
        assert 0 <= number < self.blocks(split)
        shard, within = divmod(number, self.shard_blocks)
        tokens = min(self.block_tokens, split.tokens - number * self.block_tokens)
        return Block(Hash(split.shards[shard]), within, tokens * self.bytes_per_token)

    def rows(self, split: Split, length: int) -> int:
        """Return the number of rows of `length` predicted tokens in a split.

        Rows of text predict every token but the first; the last row may overlap the row before it.  Rows of other kinds
        have the length of the corpus.  A preference counts as one row.
        """
        if self.kind is not CorpusKind.TEXT:
            return split.tokens // self.unit_tokens
        return -(-(split.tokens - 1) // length) if split.tokens > length else 0

    def tokens_of(self, split: Split, row: int, length: int) -> range:
        """Return the places in the stream of the tokens of a row, its first token included."""
        if self.kind is not CorpusKind.TEXT:
            return range(row * self.unit_tokens, (row + 1) * self.unit_tokens)
        start = min(row * length, split.tokens - length - 1)
        return range(start, start + length + 1)

    def blocks_of(self, split: Split, rows: range, length: int) -> range:
        """Return the numbers of the blocks that hold these consecutive rows of a split."""
        if not rows:
            return range(0)
        first, last = self.tokens_of(split, rows.start, length), self.tokens_of(split, rows.stop - 1, length)
        return range(first.start // self.block_tokens, (last.stop - 1) // self.block_tokens + 1)


def read_manifest(data: bytes) -> CorpusManifest:
    """Return the corpus that these bytes describe; raises `Malformed` with one sentence.

    Blocks must not be tiny: a reader keeps a file and a list entry for each.
    """
    manifest = decode_body(CorpusManifest, data, max_bytes=MAX_MANIFEST_BYTES)
    if manifest.block_tokens <= LEAST_BLOCK_TOKENS - manifest.unit_tokens:
        raise Malformed(f"a corpus with blocks of {manifest.block_tokens} tokens, fewer than {LEAST_BLOCK_TOKENS}")
    return manifest


# ------------------------------------------------------------------------------------------------------------------------
# Shards as blobs.


@dataclass(frozen=True)
class Shard:
    """A shard: a blob whose chunks are blocks.

    number: its position in the corpus.  source: name of its source.  first: the number of its first block in its split.
    spans: places of its blocks.
    """

    root: Hash
    number: int
    source: str
    is_held_out: bool
    first: int
    spans: EvenSpans

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self.spans)

    def block(self, number: int) -> Block:
        """Return the place of a block of this shard."""
        span = self.spans[number]
        return Block(self.root, number, span.stop - span.start)

    def has(self, block: Block) -> bool:
        """Return True if there is such a block."""
        return 0 <= block.number < len(self) and self.block(block.number) == block

    def name_of(self, number: int) -> str:
        """Return a block's name for people."""
        return f"block {self.first + number} of {self.source}{', held out' if self.is_held_out else ''}"


Shards = Mapping[Hash, Shard]
"""Shards of all corpora of a run, by their roots."""


def shards_of(manifests: Iterable[CorpusManifest]) -> dict[Hash, Shard]:
    """Return the shards of these corpora.  Raises `Malformed` if two of them have one root and different blocks."""
    shards: dict[Hash, Shard] = {}
    for manifest in manifests:
        block_bytes, number = manifest.block_tokens * manifest.bytes_per_token, 0
        for source in manifest.sources:
            for split, is_held_out in ((source.train, False), (source.held_out, True)):
                left = split.tokens * manifest.bytes_per_token
                for at, root in enumerate(map(Hash, split.shards)):
                    size = min(left, manifest.shard_blocks * block_bytes)
                    spans, first = EvenSpans(size, block_bytes), at * manifest.shard_blocks
                    known = shards.setdefault(root, Shard(root, number, source.name, is_held_out, first, spans))
                    if (known.spans.size, known.spans.chunk_bytes) != (size, block_bytes):
                        raise Malformed(
                            f"a shard of {known.source} and one of {source.name} have the same root but different blocks"
                        )
                    left, number = left - size, number + 1
    return shards


# ------------------------------------------------------------------------------------------------------------------------
# Rows of a run in its corpora.  A row of the run is a row of one source, in one epoch (`kernels.mixture`).  A row of a
# source has its tokens in one block or in several consecutive ones.


@dataclass(frozen=True)
class MixedSplit:
    """A split of a corpus, as a source of a mixture."""

    manifest: CorpusManifest
    split: Split


def blocks_needed(
    splits: Sequence[MixedSplit], mixture: RowMixture, ranges: Iterable[tuple[int, int]], length: int
) -> list[Block]:
    """Return the blocks that hold these rows of the run, each once, in the order in which they are first read.

    splits: the sources of the mixture; each source that is read has a row.  ranges: half-open ranges of rows of the run, in
    reading order.  length: predicted tokens of a row.  Takes a few microseconds a row.
    """
    assert len(splits) == mixture.sources
    rows = [split.manifest.rows(split.split, length) for split in splits]
    found: dict[tuple[int, int], None] = {}
    for first, end in ranges:
        for row in range(first, end):
            source, index = mixture.place(row)
            manifest, split = splits[source].manifest, splits[source].split
            at = index % rows[source]
            for number in manifest.blocks_of(split, range(at, at + 1), length):
                found[source, number] = None
    return [splits[source].manifest.block(splits[source].split, number) for source, number in found]


# ------------------------------------------------------------------------------------------------------------------------
# Checks that the corpora of a run fit its manifest: sources, rows, vocabulary and tokenizer.


def corpora_flaw(run: RunManifest, corpora: Sequence[CorpusManifest]) -> str:
    """Return the first reason why these corpora are not the ones that the run describes; empty if they are.

    corpora: the corpora in the order of `data.corpora`.
    """
    assert len(corpora) == len(run.data.corpora)
    return next(_flaws(run, corpora), "")


def _flaws(run: RunManifest, corpora: Sequence[CorpusManifest]) -> Iterator[str]:
    data = run.data
    for corpus in corpora:
        yield from _flaws_of_one(run, corpus, f"the corpus of {', '.join(source.name for source in corpus.sources)[:80]}")
    if any(corpus.tokenizer != corpora[0].tokenizer for corpus in corpora):
        yield "the corpora were built with different tokenizers"
    try:
        shards_of(corpora)
    except Malformed as error:
        yield str(error)
    for source in data.sources:
        found = source_in(corpora, source)
        if found is None:
            yield f"corpus {source.corpus} has no source {source.name}"
        elif (rows := corpora[source.corpus].rows(found.train, data.sequence_length)) != source.rows:
            yield f"source {source.name} has {rows} rows to learn from, but the run says {source.rows}"


def corpus_flaw(run: RunManifest, corpus: CorpusManifest, called: str) -> str:
    """Return the first reason why the run cannot read the rows of a corpus; empty if it can.

    called: name of the corpus, for people.
    """
    return next(_flaws_of_one(run, corpus, called), "")


def _flaws_of_one(run: RunManifest, corpus: CorpusManifest, called: str) -> Iterator[str]:
    data = run.data
    if corpus.kind.value != data.format:
        yield f'{called} was built with the kind "{corpus.kind.value}", but data.format is "{data.format}"'
    if corpus.vocab > run.model.vocab:
        yield f"{called} has {corpus.vocab} tokens, more than the model's {run.model.vocab}"
    if corpus.row_tokens and corpus.row_tokens != data.sequence_length + 1:
        yield (
            f"{called} has rows of {corpus.row_tokens - 1} predicted tokens, but data.sequence_length is "
            f"{data.sequence_length}"
        )


def splits_of(run: RunManifest, corpora: Sequence[CorpusManifest]) -> list[MixedSplit]:
    """Return the training splits of the run's sources, in their order.  The corpora must fit the run."""
    found = [(corpora[source.corpus], source_in(corpora, source)) for source in run.data.sources]
    return [MixedSplit(corpus, source.train) for corpus, source in found if source is not None]


def source_in(corpora: Sequence[CorpusManifest], source: SourceSection) -> CorpusSource | None:
    """Return the source that a section names; None if its corpus has none of this name."""
    return next((each for each in corpora[source.corpus].sources if each.name == source.name), None)
