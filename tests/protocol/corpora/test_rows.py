"""The blocks of a range of rows hold its tokens, and nothing but blocks that it reads."""

from __future__ import annotations

from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.mixture import MixturePhase, RowMixture
from protocol.corpora.manifest import Block, CorpusManifest, MixedSplit, Split, blocks_needed
from tests.protocol.corpora.corpora import Corpus, a_corpus


def read_by(corpus: Corpus, mixture: RowMixture, row: int, length: int) -> set[Block]:
    """The blocks with the tokens of one row, token by token."""
    source, index = mixture.place(row)
    manifest, split = corpus.manifest, corpus.manifest.sources[source].train
    rows = manifest.rows(split, length)
    return {manifest.block(split, token // manifest.block_tokens) for token in tokens(manifest, split, index % rows, length)}


def tokens(manifest: CorpusManifest, split: Split, row: int, length: int) -> range:
    found = manifest.tokens_of(split, row, length)
    assert len(found) == length + 1 and found.start >= 0 and found.stop <= split.tokens
    return found


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
