"""Functions that open a run's tokenizer, training data and environment, as its configuration says."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from kernels.mixture import MAX_WEIGHTS, MixturePhase, RowMixture
from trainer.config import OWN_CORPUS, PhaseConfig, SourceConfig, TrainingConfig
from trainer.data import embedded as corpora
from trainer.data.chat import ChatReading
from trainer.data.corpus import (
    BlockFolders,
    CorpusFolder,
    CorpusReading,
    DocumentLayout,
    MixedSource,
    StoredCorpus,
)
from trainer.data.embedded import SEPARATOR, Corpus
from trainer.data.rows import Reading
from trainer.data.templates import TemplatedTokenizer
from trainer.data.tokens import ByteTokenizer, Tokenizer, TokenizerFile
from trainer.environments.environment import Environment, example_tokens
from trainer.environments.records import ALL
from trainer.environments.registry import open_named

# ------------------------------------------------------------------------------------------------------------------------
# Corpus of an environment's own examples, for a warm start.


MOST_EXAMPLES = 1 << 14


def corpus_of(environment: Environment, held_out_percent: int, tokenizer: Tokenizer | None = None) -> Corpus:
    """Return examples of problems spread over the environment, in the layout of rollouts; hold out a fixed share.

    tokenizer: defaults to bytes.  Raises ValueError if the environment knows no solutions.
    """
    tokenizer = tokenizer or ByteTokenizer()
    count = min(environment.size, MOST_EXAMPLES)
    splits: dict[bool, list[int]] = {False: [], True: []}
    for number in range(count):
        example = example_tokens(environment, number * environment.size // count, tokenizer)
        splits[number * held_out_percent % 100 < held_out_percent] += [*example.prompt, *example.output]
    train, held_out = (np.array(splits[held], np.min_scalar_type(tokenizer.vocab - 1)) for held in (False, True))
    digest = hashlib.blake2b(train.tobytes() + SEPARATOR * 2 + held_out.tobytes(), digest_size=16).hexdigest()
    return Corpus(train, held_out, digest)


# ------------------------------------------------------------------------------------------------------------------------


TOKENIZER, CHATS = "tokenizer.json", "chats.jsonl"
"""Names of a run's files."""


def tokenizer_of(config: TrainingConfig) -> TemplatedTokenizer:
    """Return the tokenizer of a run's model.  Raises ValueError for a tokenizer that does not fit the run."""
    if config.tokenizer is None:
        if config.model.vocab < ByteTokenizer.vocab:
            raise ValueError(
                f"the run reads bytes, which are {ByteTokenizer.vocab} tokens, and its model has {config.model.vocab}; make "
                "model.vocab 256, or give the run the model's tokenizer"
            )
        return TemplatedTokenizer(ByteTokenizer(), "plain" if config.data.format == "chat" else "raw")
    file = TokenizerFile(_file(config, TOKENIZER), config.tokenizer.ends)
    if file.vocab > config.model.vocab:
        raise ValueError(f"the run's tokenizer has {file.vocab} tokens, more than its model's {config.model.vocab}")
    return TemplatedTokenizer(file, config.tokenizer.template)


def reading_of(config: TrainingConfig, tokenizer: TemplatedTokenizer) -> Reading:
    """Open a run's training data. Raises ValueError if this installation cannot provide the data."""
    data = config.data
    if data.source == "local":
        return mixed_reading(with_own_sources(config))
    if data.sources:
        return mixed_reading(config)
    if data.format == "preference":
        raise ValueError("preferences are read from a corpus, and the run names none; add data.sources")
    if data.format == "chat":
        path = _file(config, CHATS)
        return ChatReading(path, tokenizer, data.sequence_length, data.held_out_percent, packed=data.packed)
    if data.corpus == "examples":
        corpus = corpus_of(environment_of(config), data.held_out_percent, tokenizer)
    else:
        corpus = corpora.load(data.corpus, data.held_out_percent, tokenizer if config.tokenizer else None)
    return corpora.TextReading(corpus, data.sequence_length)


def with_own_sources(config: TrainingConfig) -> TrainingConfig:
    """Return the configuration with the sources of this member's own corpus, mixed in proportion to their rows.

    Raises ValueError for a corpus that cannot be read.
    """
    corpus, length = StoredCorpus.read(_file(config, OWN_CORPUS)), config.data.sequence_length
    rows = {name: rows for name, source in corpus.sources.items() if (rows := corpus.rows(source.train, length))}
    if not rows:
        raise ValueError(f"this member's own data has no row of data.sequence_length ({length}); give more data")
    scale = MAX_WEIGHTS // len(rows)
    weights = tuple(max(1, each * scale // max(rows.values())) for each in rows.values()) if len(rows) > 1 else (1,)
    sources = tuple(SourceConfig(name, OWN_CORPUS, name) for name in rows)
    return replace(config, data=replace(config.data, sources=sources, phases=(PhaseConfig(0, weights),)))


def mixed_reading(config: TrainingConfig) -> CorpusReading:
    """Open the corpora of a run's sources.  Raises ValueError for corpora that do not fit the run."""
    data, blocks = config.data, BlockFolders([Path(each) for each in config.blocks])
    folders: dict[str, CorpusFolder] = {}
    for name in {source.corpus for source in data.sources}:
        corpus = StoredCorpus.read(_file(config, name))
        if corpus.vocab > config.model.vocab:
            raise ValueError(
                f"the corpus {name} has {corpus.vocab} tokens, more than the run's model ({config.model.vocab})"
            )
        if corpus.kind != data.format:
            raise ValueError(f'the corpus {name} has rows of the kind "{corpus.kind}", and data.format is "{data.format}"')
        folders[name] = CorpusFolder(corpus, blocks)
    return CorpusReading(
        [MixedSource(source.name, folders[source.corpus], source.source) for source in data.sources],
        RowMixture([MixturePhase(phase.start, phase.weights) for phase in data.phases]),
        data.sequence_length,
        DocumentLayout(data.documents),
    )


def environment_of(config: TrainingConfig) -> Environment:
    """Open the tasks that a run's rollouts solve, without the tasks outside the run's bounds on solve rates.

    Raises ValueError if this installation cannot provide the tasks, and SandboxUnavailable.
    """
    return open_named(config.environment, config.files, config.rl.solve_rates if config.rl else ALL)


def _file(config: TrainingConfig, name: str) -> Path:
    if name not in config.files:
        raise ValueError(f"the run's file {name} is not here")
    return Path(config.files[name])
