"""Measurement of an exported model on the held-out rows of a corpus, for `peer eval`.

The trainer's code computes the model and the rows, so a loss can be compared with the held-out losses of a run that reads
the same corpus in rows of the same length.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from kernels.mixture import MixturePhase, RowMixture
from kernels.outside_files import read_outside
from peer.corpora.folder import FinishedCorpus
from peer.errors import ExitCode, PeerError, told_as
from peer.weights.folders import check_memory
from peer.weights.tokenizer_files import folder_tokenizer
from protocol.corpora.manifest import MAX_MANIFEST_BYTES, read_manifest
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import HASH_BYTES, chunk_hash
from trainer.data.corpus import (
    BlockFolders,
    BlockMissing,
    CorpusFolder,
    CorpusReading,
    DocumentLayout,
    MixedSource,
    RowKind,
    StoredCorpus,
)
from trainer.data.tokens import Tokenizer, TokenizerFile, UnreadableText, checked_file, names_in
from trainer.device import pick_device
from trainer.models.llama.model import Decoder
from trainer.objective import LanguageModelObjective, SourceTotals
from trainer.weights.folder import WeightsFolder

MANIFEST, SHARDS, TOKENIZER = "corpus.msgpack", "shards", "tokenizer.json"
ROW_TOKENS = 1024
"""Tokens that are predicted in a row of text, unless the model reads fewer."""
BATCH_TOKENS = 1 << 12
FP32_BYTES = 4
COMPARED_DOCUMENTS, COMPARED_TOKENS = 64, 1 << 12
"""Number of held-out documents of each source that two tokenizers are compared on, and of tokens from the beginning of
each."""


@dataclass(frozen=True)
class HeldOutOptions:
    """Options of a measurement.

    tokens: largest number of tokens per source.  length: tokens predicted in a row of text; None for the default.
    documents: "masked" or "joined", for text.  device: a name that torch knows, or "auto".
    """

    tokens: int = 1 << 16
    length: int | None = None
    documents: str = "masked"
    device: str = "auto"


@dataclass(frozen=True)
class HeldOutLoss:
    """Loss on a source's held-out rows, in nats per token.  tokens: predicted tokens that count.

    bits_per_byte: bits for each byte of the text; None for chats and preferences, because only part of their text counts.
    """

    source: str
    tokens: int
    loss: float
    bits_per_byte: float | None

    @property
    def perplexity(self) -> float:
        """Exponential of the loss; infinite if it is too large for a number."""
        return math.exp(self.loss) if self.loss < 700 else math.inf


def measure(
    model: Path, corpus: Path, options: HeldOutOptions, on_progress: Callable[[float], None] = lambda share: None
) -> list[HeldOutLoss]:
    """Return the loss of the model in a folder on each source of a corpus.

    For a preference, only the chosen text is measured.

    on_progress: called repeatedly with the share done, from 0 to 1.  Raises `PeerError`.
    """
    try:
        with told_as(ExitCode.INPUT, ValueError):
            weights = WeightsFolder(model)
            stored = _stored(corpus)
            reading = _reading(stored, corpus, weights, options)
            folder_tokenizer(model, weights.config.vocab)
            _check_tokenizers(model, corpus)
            decoder = _decoder(weights, options.device)
            return _measured(decoder, stored, reading, options.tokens, on_progress)
    except BlockMissing as error:
        raise PeerError(f"{corpus} lacks a block: {error}; copy the whole folder again", ExitCode.INPUT) from error


def _stored(corpus: Path) -> StoredCorpus:
    path = corpus / MANIFEST
    try:
        read_manifest(read_outside(path, MAX_MANIFEST_BYTES))
    except OSError as error:
        raise ValueError(
            f"{corpus} is not a corpus: cannot read {MANIFEST}: {error.strerror}; give a folder that "
            "`peer data build OUT INPUT` made"
        ) from error
    except Malformed as error:
        raise ValueError(f"{path} is damaged: {error}; copy the corpus again, or build it again") from error
    return StoredCorpus.read(path)


def _reading(stored: StoredCorpus, corpus: Path, weights: WeightsFolder, options: HeldOutOptions) -> CorpusReading:
    vocab, context = weights.config.vocab, weights.config.context
    if stored.vocab > vocab:
        raise ValueError(
            f"the corpus {corpus} has {stored.vocab} tokens, more than the model ({vocab}); give a corpus that was built "
            "with the model's tokenizer"
        )
    if stored.kind is not RowKind.TEXT:
        if options.length is not None:
            raise ValueError("the rows of chats and preferences have the length given by the corpus; leave --length out")
        length = stored.row_tokens - 1
    else:
        most = max(source.held_out.tokens for source in stored.sources.values()) - 1
        length = options.length or min(context or ROW_TOKENS, ROW_TOKENS, max(1, most))
    if not any(stored.rows(source.held_out, length) for source in stored.sources.values()):
        raise ValueError(
            f"no source of {corpus} has a held-out row of {length} tokens; make --length smaller, or hold out more"
        )
    folder = CorpusFolder(stored, BlockFolders([corpus / SHARDS]))
    sources = [MixedSource(name, folder, name) for name in stored.sources]
    read = [int(stored.rows(source.train, length) > 0) for source in stored.sources.values()]
    if not any(read):
        raise ValueError(f"no source of {corpus} has a row of {length} tokens to learn from; make --length smaller")
    return CorpusReading(sources, RowMixture([MixturePhase(0, tuple(read))]), length, DocumentLayout(options.documents))


def _check_tokenizers(model: Path, corpus: Path) -> None:
    """Raise ValueError if the model's tokenizer makes tokens that differ from the corpus; warn if the model has none.

    The files may differ in form, and in parts that no trainer uses.  All tokens of the corpus must have the same numbers,
    and texts of its held-out documents the same tokens.
    """
    stored, path = FinishedCorpus(corpus), model / TOKENIZER
    reads_bytes, end = stored.manifest.tokenizer == bytes(HASH_BYTES), stored.manifest.end
    if not path.exists():
        if not reads_bytes:
            print(
                f"{model} has no tokenizer, so it is unknown whether {corpus} was built with its tokenizer; if it was "
                "not, the losses mean nothing",
                file=sys.stderr,
            )
        return
    if not reads_bytes and chunk_hash(checked_file(path, (end,))) == stored.manifest.tokenizer:
        return
    if reads_bytes or _makes_other_tokens(path, stored):
        raise ValueError(
            f"the corpus {corpus} was built with another tokenizer than {model} has, so the losses would mean nothing; "
            "give a corpus that was built with the model's tokenizer"
        )


def _makes_other_tokens(path: Path, stored: FinishedCorpus) -> bool:
    theirs = stored.tokenizer()
    wanted, found = names_in(stored.path / TOKENIZER).all, names_in(path).all
    if not wanted.items() <= found.items():
        return True
    ours = TokenizerFile(path, (stored.manifest.end,))
    for source in stored.manifest.sources:
        for document in islice(stored.documents(source.held_out), COMPARED_DOCUMENTS):
            text = theirs.decode(document.tokens[:COMPARED_TOKENS].tolist())
            if _tokens(ours, text) != _tokens(theirs, text):
                return True
    return False


def _tokens(tokenizer: Tokenizer, text: str) -> list[int] | None:
    """Return the tokens of a text; None if the tokenizer refuses it."""
    try:
        return tokenizer.encode(text)
    except UnreadableText:
        return None


def _decoder(weights: WeightsFolder, device: str) -> Decoder:
    """Return the model on its device, in fp32."""
    try:
        place = pick_device(device)
        check_memory(FP32_BYTES * weights.config.parameters, place.type)
        flat, at = torch.empty(weights.config.parameters, device=place), 0
    except RuntimeError as error:  # an unknown device, or a device with too little memory
        reason = str(error).strip().splitlines()[0][:200]
        raise ValueError(f"the model cannot be put on the device {device!r}: {reason}; name another --device") from error
    for block in weights.values():
        flat[at : at + len(block)] = torch.from_numpy(block)
        at += len(block)
    return Decoder(weights.config, flat.device, flat)


@torch.no_grad()
def _measured(
    decoder: Decoder, stored: StoredCorpus, reading: CorpusReading, tokens: int, on_progress: Callable[[float], None]
) -> list[HeldOutLoss]:
    totals, objective = SourceTotals(reading.names), LanguageModelObjective()
    count = max(1, BATCH_TOKENS // reading.length)
    windows: list[int] = []
    for source in range(len(reading.names)):  # spread over its held-out split, with about `tokens` tokens in all
        split = reading.held_out_of(source)
        wanted = min(len(split), max(1, tokens // reading.length))
        windows += [split[number * len(split) // wanted] for number in range(wanted)]
    for start in range(0, len(windows), count):
        rows = reading.rows(windows[start : start + count], held_out=True)[:: stored.unit_rows]
        totals.add(objective.measured(rows, objective.loss(decoder, rows, 0.0)))
        on_progress(min(1.0, (start + count) / len(windows)))
    found = []
    for each in totals.losses:
        held_out = stored.sources[each.source].held_out
        bytes_per_token = held_out.text_bytes / held_out.tokens
        bits = None
        if stored.kind is RowKind.TEXT and bytes_per_token > 0:
            bits = each.loss / math.log(2) / bytes_per_token
        found.append(HeldOutLoss(each.source, each.tokens, each.loss, bits))
    return found
