"""The blocks that hold rows of a run; a pure function.

A row of the run is a row of one source, in one epoch (`kernels.mixture`).  A row of a source has its tokens in one block or
in several consecutive ones (`protocol.corpora.manifest`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernels.mixture import RowMixture
from protocol.corpora.manifest import Block, CorpusManifest, Split


@dataclass(frozen=True)
class MixedSplit:
    """A split of a corpus, as a source of a mixture."""

    manifest: CorpusManifest
    split: Split


def train_splits(manifest: CorpusManifest) -> list[MixedSplit]:
    """Return the sources of a corpus, in their order, for training."""
    return [MixedSplit(manifest, source.train) for source in manifest.sources]


def blocks_needed(
    splits: Sequence[MixedSplit], mixture: RowMixture, ranges: Iterable[tuple[int, int]], length: int
) -> list[Block]:
    """Return the blocks that hold these rows of the run, each once, in the order in which they are first read.

    splits: the sources of the mixture; each one that is read has a row.  ranges: half-open ranges of rows of the run, in
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


def blocks_held_out(manifest: CorpusManifest) -> list[Block]:
    """Return the blocks of all held-out splits of a corpus."""
    splits = [source.held_out for source in manifest.sources]
    return [manifest.block(split, number) for split in splits for number in range(manifest.blocks(split))]
