"""Division of a source into documents to learn from and documents that are held out.

A keyed hash decides it for each document (`peer.corpora.documents`), which gives about the wanted share if there are many
documents.  With one, a few or very unequal documents it may give nothing, or nearly all.  Then the documents are put into
one order, first the documents to learn from, and the end of that order is held out.  It begins between two documents if that
gives about the wanted share, and otherwise within a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from typing import NamedTuple

import numpy as np

from peer.corpora.options import OptionWords
from peer.corpora.parts import KeptDocument, Parts
from protocol.corpora.manifest import CorpusKind, CorpusManifest
from protocol.run.sections import DataSection
from trainer.data.templates import TemplatedTokenizer

TOLERANCE = 2
"""Factor by which the tokens of whole documents may differ from the wanted share."""
LEAST_CUT_TOKENS = 3
"""Tokens of the shortest text that is cut: one on each side, and its end token."""


@dataclass(frozen=True)
class Division:
    """Place in the order of a source's documents; the documents before it are learned from.

    documents: number of whole documents before the place.  tokens: number of the next document's tokens before the place; 0
    between two documents.
    """

    documents: int
    tokens: int = 0


def divided(train: tuple[int, int], held_out: tuple[int, int], percent: float) -> Division | None:
    """Return the division that the hashes give; None if it is not about the wanted share.

    train, held_out: tokens and documents of the splits by the hashes.  percent: wanted share of the tokens.
    """
    wanted = (train[0] + held_out[0]) * percent / 100
    is_about = wanted <= TOLERANCE * held_out[0] <= TOLERANCE * TOLERANCE * wanted
    return Division(train[1]) if not percent or (train[0] and is_about) else None


def division(documents: Iterable[KeptDocument], total: int, percent: float, *, is_text: bool) -> Division:
    """Return the division that gives about the wanted share.

    documents: documents of the source, first the ones to learn from by their hashes.  total: number of their tokens.
    is_text: False for chats and preferences, which are not cut.  Documents with one key are the same, so they stay together.
    """
    held_out = max(1, round(total * percent / 100))
    start, before, number = total - held_out, 0, 0
    for _, same in groupby(documents, key=lambda each: each.key):
        sizes = [each.tokens for each in same]
        tokens, after = sum(sizes), total - before - sum(sizes)
        if before + tokens > start:
            is_cuttable = is_text and len(sizes) == 1 and tokens >= LEAST_CUT_TOKENS
            if after and (TOLERANCE * after >= held_out or not is_cuttable):
                return Division(number + len(sizes))
            if before and (total - before <= TOLERANCE * held_out or not is_cuttable):
                return Division(number)
            if is_cuttable:
                return Division(number, min(max(1, start - before), tokens - LEAST_CUT_TOKENS + 1))
        before, number = before + tokens, number + len(sizes)
    return Division(number)


@dataclass(frozen=True)
class SourceDocuments:
    """Documents of a source, first the `trained` ones that the hashes do not hold out."""

    parts: Parts
    source: int
    trained: int

    def after(self, count: int) -> Iterator[KeptDocument]:
        """Yield the documents after the first `count`."""
        for group, first in ((2 * self.source, count), (2 * self.source + 1, max(0, count - self.trained))):
            if group % 2 or count < self.trained:
                yield from islice((each for some in self.parts.ranges(group) for each in some.kept), first, None)


class WrittenDocument(NamedTuple):
    """Document, or a part of one, as it is written.  tokens: its tokens with the end token."""

    payload: bytes
    tokens: int
    text_bytes: int


def documents_of(
    source: SourceDocuments, division: Division, tokenizer: TemplatedTokenizer, *, trains: bool
) -> Iterator[WrittenDocument]:
    """Yield the documents of a split.  Of a document that is divided, the first part gets an end token of its own."""
    count = division.documents
    cut = next(source.after(count), None) if division.tokens else None
    whole = islice(source.after(0), count) if trains else source.after(count + (cut is not None))
    part = [_part(source.parts.payload(cut), cut.text_bytes, division.tokens, tokenizer, is_first=trains)] if cut else []
    yield from [] if trains else part
    for each in whole:
        yield WrittenDocument(source.parts.payload(each), each.tokens, each.text_bytes)
    yield from part if trains else []


def _part(payload: bytes, text_bytes: int, tokens: int, tokenizer: TemplatedTokenizer, *, is_first: bool) -> WrittenDocument:
    """Return the first or the second part of a text.  tokens: number of tokens in the first part.

    text_bytes: size of the whole text, or 0.
    A character whose tokens are in both parts counts in the first one.
    """
    stored = np.frombuffer(payload, np.dtype(tokenizer.dtype).newbyteorder("<"))
    first = min(text_bytes, len(tokenizer.decode(stored[:tokens].tolist()).encode()))
    if not is_first:
        return WrittenDocument(stored[tokens:].tobytes(), len(stored) - tokens, text_bytes - first)
    return WrittenDocument(np.append(stored[:tokens], stored.dtype.type(tokenizer.end)).tobytes(), tokens + 1, first)


def shortage(manifest: CorpusManifest, percent: float, words: OptionWords) -> str:
    """Return a sentence if a corpus is too small for a run; empty if it is not.

    Text is measured with the default row length of a run file.
    """
    length = manifest.row_tokens - 1 if manifest.row_tokens else DataSection.model_fields["sequence_length"].default
    of = f"a row of {length} tokens" if manifest.row_tokens else f"a row of {length} tokens, as runs have by default"
    short = next((each for each in manifest.sources if not manifest.rows(each.train, length)), None)
    if short is not None:
        tokens = short.train.tokens
        return f"the source {short.name} has {tokens} tokens to learn from, which do not fill {of}; give more data"
    if not percent or any(manifest.rows(each.held_out, length) for each in manifest.sources):
        return ""
    remedy = "give more data"
    if manifest.kind is CorpusKind.TEXT:
        total = max(each.train.tokens + each.held_out.tokens for each in manifest.sources)
        needed = (
            100 * TOLERANCE * (length + 1) // total + 1
        )  # because the part may be that much smaller or larger than its share
        is_enough = percent < needed and total * (100 - TOLERANCE * needed) >= 100 * (length + 1)
        remedy += f", or {words.held_out} {needed}" if is_enough else ""
    held_out = sum(each.held_out.tokens for each in manifest.sources)
    return f"{held_out} tokens are held out, which do not fill {of}, so a run could not measure its loss; {remedy}"
