"""A corpus manifest says what its blocks are, and which of them hold the tokens of rows."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.mixture import MixturePhase, RowMixture
from protocol.corpora.manifest import (
    MAX_SHARDS,
    MAX_SPLIT_TOKENS,
    Block,
    CorpusManifest,
    MixedSplit,
    Split,
    blocks_needed,
    read_manifest,
    shards_of,
)
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import chunk_hash
from tests.protocol.corpora.corpora import Corpus, a_corpus

SHARD = bytes(range(32))
EMPTY: dict[str, Any] = {"documents": 0, "shards": [], "text_bytes": 0, "tokens": 0}
FIELDS: dict[str, Any] = {
    "block_tokens": 1024,
    "end": 0,
    "format": 1,
    "kind": "text",
    "recipe": "{}",
    "row_tokens": 0,
    "shard_blocks": 4,
    "sources": [
        {
            "held_out": EMPTY,
            "name": "web",
            "train": {"documents": 7, "shards": [SHARD, SHARD[::-1]], "text_bytes": 9000, "tokens": 5000},
        }
    ],
    "token_bytes": 2,
    "tokenizer": bytes(32),
    "vocab": 50257,
}
GOLDEN = "936d3b76dbdb164e43bd515e3230d301d30c2d568c19fb2838a64e9bb9882a35"


def encoded(**changes: Any) -> bytes:
    return canonical.encode(FIELDS | changes)


def sources(**changes: Any) -> dict[str, Any]:
    """The field `sources` with another training split."""
    source = FIELDS["sources"][0]
    return {"sources": [source | {"train": source["train"] | changes}]}


def test_bytes_of_a_manifest_are_golden() -> None:
    data = encoded()
    manifest = read_manifest(data)
    assert manifest.encode() == data
    assert chunk_hash(data).hex() == GOLDEN


HOSTILE: dict[str, dict[str, Any]] = {
    "one shard too few": sources(shards=[SHARD]),
    "one shard too many": sources(shards=[SHARD] * 3),
    "shards without tokens": sources(tokens=0, documents=0),
    "tokens without shards": sources(shards=[]),
    "2^60 tokens": sources(tokens=1 << 60),
    "the most tokens and few shards": sources(tokens=MAX_SPLIT_TOKENS),
    "negative tokens": sources(tokens=-1),
    "more documents than tokens": sources(documents=5001),
    "2^60 bytes of text": sources(text_bytes=1 << 60),
    "a shard's root that is too short": sources(shards=[SHARD, SHARD[:31]]),
    "too many shards": sources(shards=[SHARD] * (MAX_SHARDS + 1), tokens=(MAX_SHARDS + 1) * 4096),
    "tokens that their bytes cannot hold": {"token_bytes": 1},
    "a width that no type has": {"token_bytes": 3},
    "an end token outside the vocabulary": {"end": 50257},
    "a huge vocabulary": {"vocab": 1 << 21, "token_bytes": 4},
    "no tokens in a block": {"block_tokens": 0},
    "tiny blocks": {"block_tokens": 1023},
    "tiny blocks of whole rows": {"kind": "chat", "row_tokens": 100, "block_tokens": 900},
    "blocks that are too large": {"block_tokens": 1 << 20},
    "no blocks in a shard": {"shard_blocks": 0},
    "rows of text": {"row_tokens": 128},
    "chats without rows": {"kind": "chat"},
    "blocks with part of a row": {"kind": "chat", "row_tokens": 1000},
    "blocks with half a preference": {"kind": "preference", "row_tokens": 1024},
    "another kind": {"kind": "image"},
    "another format": {"format": 2},
    "no source": {"sources": []},
    "two sources of one name": {"sources": FIELDS["sources"] * 2},
    "many sources": {"sources": [FIELDS["sources"][0] | {"name": f"s{number}"} for number in range(17)]},
    "a name with a path": {"sources": [FIELDS["sources"][0] | {"name": "../x"}]},
    "a name with a line feed": {"sources": [FIELDS["sources"][0] | {"name": "web\n"}]},
    "a long recipe": {"recipe": "x" * (1 << 15)},
    "an unknown field": {"more": 1},
    "a text for a number": {"vocab": "50257"},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_manifest_that_does_not_add_up_is_refused(case: str) -> None:
    with pytest.raises(Malformed):
        read_manifest(encoded(**HOSTILE[case]))


def test_shards_of_one_root_have_the_same_blocks() -> None:
    source = FIELDS["sources"][0]
    other = {"name": "code", "train": source["train"] | {"shards": [SHARD], "tokens": 1000}}
    lying = read_manifest(encoded(sources=[source, source | other]))
    for corpora in ([lying], [read_manifest(encoded()), read_manifest(encoded(sources=[source | other]))]):
        with pytest.raises(Malformed, match="a shard of web and one of code have the same root but different blocks"):
            shards_of(corpora)
    assert len(shards_of([read_manifest(encoded()), read_manifest(encoded(recipe=""))])) == 2, "one corpus, built twice"


def manifest_of(tokens: int, block_tokens: int, shard_blocks: int) -> tuple[CorpusManifest, Split]:
    blocks = -(-tokens // block_tokens)
    shards = [number.to_bytes(32, "big") for number in range(-(-blocks // shard_blocks))]
    changes = sources(tokens=tokens, documents=0, shards=shards)
    fields = {**FIELDS, "block_tokens": block_tokens, "shard_blocks": shard_blocks, **changes}
    manifest = CorpusManifest.model_validate(fields)
    return manifest, manifest.sources[0].train


@given(st.integers(1, 5000), st.integers(1, 300), st.integers(1, 8))
def test_blocks_together_are_the_stream(tokens: int, block_tokens: int, shard_blocks: int) -> None:
    manifest, split = manifest_of(tokens, block_tokens, shard_blocks)
    blocks = [manifest.block(split, number) for number in range(manifest.blocks(split))]
    assert sum(block.size for block in blocks) == 2 * tokens
    assert blocks == sorted(blocks) and len(set(blocks)) == len(blocks)
    assert blocks[0] == Block(split.shards[0], 0, 2 * min(tokens, block_tokens))  # type: ignore[arg-type]


@given(st.integers(2, 5000), st.integers(1, 400), st.integers(1, 300))
def test_rows_predict_every_token_but_the_first_and_lie_in_their_blocks(tokens: int, length: int, block_tokens: int) -> None:
    manifest, split = manifest_of(tokens, block_tokens, 4)
    rows = [manifest.tokens_of(split, row, length) for row in range(manifest.rows(split, length))]
    assert bool(rows) == (tokens > length)
    if rows:
        assert {place for row in rows for place in row[1:]} == set(range(1, tokens))
        assert all(len(row) == length + 1 for row in rows)
    for number, row in enumerate(rows):
        blocks = manifest.blocks_of(split, range(number, number + 1), length)
        assert blocks.start * block_tokens <= row.start and row.stop <= blocks.stop * block_tokens
        assert len(blocks) <= len(row) // block_tokens + 2
    assert manifest.blocks_of(split, range(3, 3), length) == range(0)


# -- the blocks of rows of a mixture --------------------------------------------------------------------------------------


def read_by(corpus: Corpus, mixture: RowMixture, row: int, length: int) -> set[Block]:
    """The blocks with the tokens of one row, token by token."""
    source, index = mixture.place(row)
    manifest, split = corpus.manifest, corpus.manifest.sources[source].train
    rows = manifest.rows(split, length)
    return {
        manifest.block(split, token // manifest.block_tokens)
        for token in tokens_of_row(manifest, split, index % rows, length)
    }


def tokens_of_row(manifest: CorpusManifest, split: Split, row: int, length: int) -> range:
    found = manifest.tokens_of(split, row, length)
    assert len(found) == length + 1 and found.start >= 0 and found.stop <= split.tokens
    return found


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1500, 9000), min_size=1, max_size=3),
    length=st.integers(64, 1400),
    weights=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    later=st.lists(st.integers(1, 5), min_size=3, max_size=3),
    ranges=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 30)), max_size=4),
)
def test_the_tokens_of_every_row_lie_in_the_blocks_and_every_block_is_read(
    sizes: list[int], length: int, weights: list[int], later: list[int], ranges: list[tuple[int, int]]
) -> None:
    corpus, count = a_corpus(sizes), len(sizes)
    first = weights[:count] if any(weights[:count]) else [1] * count
    mixture = RowMixture([MixturePhase(0, tuple(first)), MixturePhase(40, tuple(later[:count]))])
    half_open = [(start, start + rows) for start, rows in ranges]
    splits = [MixedSplit(corpus.manifest, source.train) for source in corpus.manifest.sources]
    needed = blocks_needed(splits, mixture, half_open, length)
    rows = [*chain.from_iterable(range(*pair) for pair in half_open)]
    read = [read_by(corpus, mixture, row, length) for row in rows]
    assert set(needed) == set().union(*read) and len(set(needed)) == len(needed)
    begun = [next(at for at, blocks in enumerate(read) if block in blocks) for block in needed]
    assert begun == sorted(begun), "in reading order"


def test_an_epoch_that_begins_again_needs_the_first_blocks_again_once() -> None:
    corpus = a_corpus((4096,))
    stream = MixedSplit(corpus.manifest, corpus.manifest.sources[0].train)
    rows = corpus.manifest.rows(stream.split, 512)
    needed = blocks_needed(
        [stream], RowMixture([MixturePhase(0, (1,))]), [(rows - 1, rows + 1), (3 * rows, 3 * rows + 1)], 512
    )
    assert [block.number for block in needed] == [3, 0]
