"""Functions that open a run's tokenizer, training data and environment, as its configuration says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kernels.mixture import MAX_WEIGHTS, MixturePhase, RowMixture
from trainer.config import OWN_CORPUS, PhaseConfig, SourceConfig, TrainingConfig
from trainer.data.corpus import (
    BlockFolders,
    CorpusFolder,
    CorpusReading,
    DocumentLayout,
    MixedSource,
    StoredCorpus,
)
from trainer.data.templates import TemplatedTokenizer
from trainer.data.tokens import ByteTokenizer, TokenizerFile
from trainer.environments.environment import Environment
from trainer.environments.records import ALL, SolveRates
from trainer.environments.registry import open_named

TOKENIZER = "tokenizer.json"
"""Name of the tokenizer among the files of a run."""


def tokenizer_of(config: TrainingConfig) -> TemplatedTokenizer:
    """Return the tokenizer of a run's model.  Raises ValueError for a tokenizer that does not fit the run."""
    if config.tokenizer is None:
        if config.model.vocab < ByteTokenizer.vocab:
            raise ValueError(
                f"the run reads bytes, which are {ByteTokenizer.vocab} tokens, but its model has {config.model.vocab}; make "
                "model.vocab 256, or give the run the model's tokenizer"
            )
        return TemplatedTokenizer(ByteTokenizer(), "plain" if config.data.format == "chat" else "raw")
    file = TokenizerFile(_file(config, TOKENIZER), tuple(config.tokenizer.ends))
    if file.vocab > config.model.vocab:
        raise ValueError(f"the run's tokenizer has {file.vocab} tokens, more than its model ({config.model.vocab})")
    return TemplatedTokenizer(file, config.tokenizer.template)


def with_own_sources(config: TrainingConfig) -> TrainingConfig:
    """Return the configuration with the sources of this member's own corpus, mixed in proportion to their rows.

    Raises ValueError for a corpus that cannot be read.
    """
    corpus, length = StoredCorpus.read(_file(config, OWN_CORPUS)), config.data.sequence_length
    rows = {name: rows for name, source in corpus.sources.items() if (rows := corpus.rows(source.train, length))}
    if not rows:
        raise ValueError(f"this member's own data has no row of data.sequence_length ({length}); add more data")
    scale = MAX_WEIGHTS // len(rows)
    weights = [max(1, each * scale // max(rows.values())) for each in rows.values()] if len(rows) > 1 else [1]
    sources = [SourceConfig(name=name, corpus=OWN_CORPUS, source=name) for name in rows]
    phases = [PhaseConfig(start=0, weights=weights)]
    return replace(config, data=config.data.changed(sources=sources, phases=phases))


def reading_of(config: TrainingConfig) -> CorpusReading:
    """Open the corpora of a run's sources.  Raises ValueError for corpora that do not fit the run."""
    if config.data.source == "local":
        config = with_own_sources(config)
    if not config.data.sources:
        raise ValueError("the run names no data to train on; ask its organiser for a new run")
    data, blocks = config.data, BlockFolders([Path(each) for each in config.blocks])
    folders: dict[str, CorpusFolder] = {}
    for name in {source.corpus for source in data.sources}:
        corpus = StoredCorpus.read(_file(config, name))
        if corpus.vocab > config.model.vocab:
            raise ValueError(
                f"the corpus {name} has {corpus.vocab} tokens, more than the run's model ({config.model.vocab})"
            )
        if corpus.kind != data.format:
            raise ValueError(f'the corpus {name} has rows of the kind "{corpus.kind}", but data.format is "{data.format}"')
        folders[name] = CorpusFolder(corpus, blocks)
    return CorpusReading(
        [MixedSource(source.name, folders[source.corpus], source.source) for source in data.sources],
        RowMixture([MixturePhase(phase.start, tuple(phase.weights)) for phase in data.phases]),
        data.sequence_length,
        DocumentLayout(data.documents),
    )


def environment_of(config: TrainingConfig) -> Environment:
    """Open the tasks that a run's rollouts solve, without the tasks outside the run's bounds on solve rates.

    Raises ValueError if this installation cannot provide the tasks, and SandboxUnavailable.
    """
    rates = SolveRates(config.rl.min_solve_rate, config.rl.max_solve_rate) if config.rl else ALL
    return open_named(config.environment, config.files, rates)


def _file(config: TrainingConfig, name: str) -> Path:
    if name not in config.files:
        raise ValueError(f"the run's file {name} is not here")
    return Path(config.files[name])
