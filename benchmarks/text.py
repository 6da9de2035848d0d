"""The text that comes with the program, as the data of benchmarks that train."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from peer.corpora.builtin import builtin_corpus
from peer.trainer_process.process import TrainerPlaces
from protocol.run.sections import CORPORA, SOURCE
from trainer.config import PhaseConfig, SourceConfig, TrainingData


@cache
def text_places() -> TrainerPlaces:
    """Return the places of the corpus, in a folder that is removed with the process."""
    folder = Path(tempfile.mkdtemp(prefix="benchmark-text-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return builtin_corpus(folder).places


def text_data(length: int, rows: int) -> TrainingData:
    """Return data with rows of `length` predicted tokens, `rows` of them in a step."""
    source = SourceConfig(name=SOURCE, corpus=f"{CORPORA}0", source=SOURCE)
    phases = [PhaseConfig(start=0, weights=[1])]
    return TrainingData(sequence_length=length, sequences_per_step=rows, sources=[source], phases=phases, documents="joined")
