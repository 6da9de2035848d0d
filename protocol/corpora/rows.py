"""Rows of a run in its corpora: whether these fit the manifest, and which blocks hold which rows.  Pure.

A row of the run is a row of one source, in one epoch (`kernels.mixture`).  A row of a source has its tokens in one block or
in several consecutive ones (`protocol.corpora.manifest`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kernels.mixture import RowMixture
from protocol.corpora.manifest import Block, CorpusManifest, CorpusSource, Split
from protocol.corpora.shards import shards_of
from protocol.run.manifest import RunManifest
from protocol.run.sections import SourceSection
from protocol.wire.canonical import Malformed


@dataclass(frozen=True)
class MixedSplit:
    """A split of a corpus, as a source of a mixture."""

    manifest: CorpusManifest
    split: Split


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


# ------------------------------------------------------------------------------------------------------------------------
# Checks that the corpora of a run fit its manifest: sources, rows, vocabulary and tokenizer.


def corpora_flaw(run: RunManifest, corpora: Sequence[CorpusManifest]) -> str:
    """Return the first reason why these corpora are not those that the run describes; empty if they are.

    corpora: in the order of `data.corpora`.
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
            yield f"source {source.name} has {rows} rows to learn from, and the run says {source.rows}"


def corpus_flaw(run: RunManifest, corpus: CorpusManifest, called: str) -> str:
    """Return the first reason why the run cannot read the rows of a corpus; empty if it can.

    called: name of the corpus, for people.
    """
    return next(_flaws_of_one(run, corpus, called), "")


def _flaws_of_one(run: RunManifest, corpus: CorpusManifest, called: str) -> Iterator[str]:
    data = run.data
    if corpus.kind.value != data.format:
        yield f'{called} was built with the kind "{corpus.kind.value}", and data.format is "{data.format}"'
    if corpus.vocab > run.model.vocab:
        yield f"{called} has {corpus.vocab} tokens, more than the model's {run.model.vocab}"
    if corpus.row_tokens and corpus.row_tokens != data.sequence_length + 1:
        yield (
            f"{called} has rows of {corpus.row_tokens - 1} predicted tokens, and data.sequence_length is "
            f"{data.sequence_length}"
        )


def source_in(corpora: Sequence[CorpusManifest], source: SourceSection) -> CorpusSource | None:
    """Return the source that a section names; None if its corpus has none of this name."""
    return next((each for each in corpora[source.corpus].sources if each.name == source.name), None)
