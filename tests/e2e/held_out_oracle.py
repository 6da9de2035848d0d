"""Losses of transformers on the held-out rows of a corpus, read without our code but the manifest's format.

A document is computed alone, as a run with `documents = "masked"` does.  Needs the extra `oracle`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from protocol.corpora.manifest import BEGINS, COUNTS, CorpusKind, CorpusManifest, Split, read_manifest

BATCH_TOKENS = 1 << 13
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class HeldOutRow:
    """Tokens of a row.  begins: of these, the first of a document.  counts: predictions of these count."""

    tokens: Array
    begins: Array
    counts: Array


def open_model(folder: Path) -> Any:
    """The model in a folder, in fp32."""
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()


def read_split(corpus: Path, manifest: CorpusManifest, split: Split) -> tuple[Array, Array]:
    """All tokens of a split, and their flags, which are empty for text."""
    tokens, flags, width = [], [], manifest.token_bytes
    stride = manifest.block_tokens * manifest.bytes_per_token
    for root in split.shards:
        data = (corpus / "shards" / f"{bytes(root).hex()}.shard").read_bytes()
        for start in range(0, len(data), stride):
            block = data[start : start + stride]
            count = len(block) // manifest.bytes_per_token
            tokens.append(np.frombuffer(block, f"<u{width}", count).astype(np.int64))
            flags.append(np.frombuffer(block, np.uint8, offset=count * width))
    return np.concatenate(tokens), np.concatenate(flags)


def held_out_rows(corpus: Path, source: str, length: int, most_tokens: int) -> list[HeldOutRow]:
    """The rows that `peer eval --tokens most_tokens` measures; of preferences, both rows of each."""
    manifest = read_manifest((corpus / "corpus.msgpack").read_bytes())
    (split,) = (each.held_out for each in manifest.sources if each.name == source)
    tokens, flags = read_split(corpus, manifest, split)
    if manifest.kind is CorpusKind.TEXT:
        starts = [min(at, len(tokens) - length - 1) for at in range(0, len(tokens) - 1, length)]
        rows = [
            HeldOutRow(row, np.concatenate([[False], row[:-1] == manifest.end]), np.ones(length + 1, bool))
            for row in (tokens[start : start + length + 1] for start in starts)
        ]
        return [each for [each] in _spread([[row] for row in rows], most_tokens // length)]
    width = manifest.row_tokens
    rows = [
        HeldOutRow(tokens[at : at + width], begins, (flags[at : at + width] & COUNTS != 0) & ~begins)
        for at in range(0, len(tokens), width)
        for begins in [flags[at : at + width] & BEGINS != 0]
    ]
    unit = 2 if manifest.kind is CorpusKind.PREFERENCE else 1
    units = [rows[at : at + unit] for at in range(0, len(rows), unit)]
    return [row for rows_of_unit in _spread(units, most_tokens // (width - 1)) for row in rows_of_unit]


def _spread(units: Sequence[list[HeldOutRow]], most: int) -> Iterator[list[HeldOutRow]]:
    count = min(len(units), max(1, most))
    return (units[number * len(units) // count] for number in range(count))


def log_likelihoods(model: Any, rows: Sequence[HeldOutRow]) -> list[float]:
    """The log-likelihood of the tokens that count in each row."""
    sums, parts = [0.0] * len(rows), list[tuple[int, Array, Array]]()
    for number, row in enumerate(rows):
        begins = [0, *np.flatnonzero(row.begins[:-1])[int(row.begins[0]) :].tolist(), len(row.tokens) - 1]
        for start, end in pairwise(begins):
            if row.counts[start + 1 : end + 1].any():
                parts.append((number, row.tokens[start : end + 1], row.counts[start + 1 : end + 1]))
    parts.sort(key=lambda part: len(part[1]))
    while parts:
        count = max(1, BATCH_TOKENS // len(parts[-1][1]))
        batch, parts = parts[-count:], parts[:-count]
        width = max(len(tokens) for _, tokens, _ in batch)
        padded = torch.zeros(len(batch), width, dtype=torch.long)
        counts = torch.zeros(len(batch), width - 1, dtype=torch.bool)
        for place, (_, tokens, counting) in enumerate(batch):
            padded[place, : len(tokens)] = torch.from_numpy(tokens)
            counts[place, : len(counting)] = torch.from_numpy(counting)
        with torch.no_grad():
            logits = model(padded[:, :-1]).logits.double()
        losses = F.cross_entropy(logits.flatten(0, 1), padded[:, 1:].flatten(), reduction="none").view(counts.shape)
        for place, (number, _, _) in enumerate(batch):
            sums[number] -= float(losses[place][counts[place]].sum())
    return sums


def loss_of(model: Any, rows: Sequence[HeldOutRow]) -> float:
    """The mean loss of the tokens that count, in nats."""
    return -sum(log_likelihoods(model, rows)) / sum(int(row.counts[1:].sum()) for row in rows)


def margins(model: Any, reference: Any, rows: Sequence[HeldOutRow], beta: float) -> list[float]:
    """The margin of each preference, whose chosen row comes first."""
    gained = np.subtract(log_likelihoods(model, rows), log_likelihoods(reference, rows))
    return [float(each) for each in beta * (gained[0::2] - gained[1::2])]


def preference_loss(margins: Sequence[float]) -> float:
    """The mean DPO loss without label smoothing."""
    return sum(math.log1p(math.exp(-margin)) for margin in margins) / len(margins)
