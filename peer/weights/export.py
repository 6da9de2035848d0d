"""Export of a run's model as a Hugging Face folder, from the data directory, whether a peer runs or not.

`protocol.chain.stored_run` reads the states on disk, `trainer.weights` writes the files' formats, and
`peer.weights.new_folder` makes the new folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from peer.errors import ExitCode, PeerError
from peer.paths import run_dir
from peer.weights.new_folder import check_room, check_target, published_as, told
from peer.weights.tokenizer_files import copy_tokenizer, generation_in
from protocol.blobs.store import BlobStore
from protocol.chain.stored_run import F32, NotStored, StoredRun, StoredState
from protocol.disk import Disk
from protocol.run.manifest import RunManifest, SignedManifest
from protocol.run.sections import TOKENIZER
from protocol.sync.run_files import paths_of
from trainer.config import TrainingConfig
from trainer.models.llama.huggingface import ends_in
from trainer.models.llama.initial import initial_parameters
from trainer.weights.numbers import ExportFormat
from trainer.weights.writing import write_folder

__all__ = ["ExportFormat", "Exported", "export"]

ATTEMPTS = 3
"""Tries, because a running peer may remove a checkpoint between two looks at its folder."""
BYTES_VOCABULARY, BYTES_EOS = 256, 0
"""Vocabulary and end token of a run without a tokenizer: it reads bytes, and a zero byte separates files of its corpus."""


@dataclass(frozen=True)
class Exported:
    """Result of an export.  rounds: that the model has learned from.  is_final: the run has ended with this state.
    tokenizer: the folder has one."""

    rounds: int
    is_final: bool
    parameters: int
    size_bytes: int
    tokenizer: bool


def export(
    signed: SignedManifest,
    data: Path,
    target: Path,
    form: ExportFormat,
    checkpoint: int | None,
    on_progress: Callable[[float], None] = lambda share: None,
) -> Exported:
    """Write the model after `checkpoint` rounds, or the newest one, to the new folder `target`.  Raises `PeerError`.

    on_progress: called now and then with the share written, from 0 to 1.
    """
    check_target(target)
    manifest = signed.manifest
    folder = run_dir(data, signed.run)
    with _naming_errors():
        state = _stored_state(signed, folder, checkpoint)
        with published_as(target) as unfinished:
            seeded = None
            if state.start is None:
                check_room(unfinished, (4 + form.width) * manifest.parameters)
                seeded = _seeded(signed, unfinished / ".initial")
            else:
                check_room(unfinished, form.width * manifest.parameters)
            config = TrainingConfig.from_sections(manifest.trainer_sections()).model
            fetched = paths_of(manifest, BlobStore(Disk(), folder / "files")).get(TOKENIZER)
            has_tokenizer = copy_tokenizer(folder, unfinished, fetched)
            generation = generation_in(unfinished)
            write_folder(
                unfinished,
                config,
                told(state.parameters(seeded), manifest.parameters, on_progress),
                form,
                context=_longest_row(manifest),
                eos=_ends_of_text(manifest, generation, has_tokenizer=has_tokenizer),
                generation=generation,
            )
            del seeded
            (unfinished / ".initial").unlink(missing_ok=True)
            total = sum(path.stat().st_size for path in unfinished.iterdir())
    is_final = StoredRun(signed, folder).is_final(state.rounds)
    return Exported(state.rounds, is_final, manifest.parameters, total, has_tokenizer)


def _longest_row(manifest: RunManifest) -> int:
    """Return the most tokens that a run's model reads in a row."""
    return max(manifest.data.sequence_length, manifest.rl.row_tokens if manifest.rl is not None else 0)


def _ends_of_text(manifest: RunManifest, generation: Mapping[str, Any], *, has_tokenizer: bool) -> Sequence[int]:
    """Return the tokens that end a text: the run's, and the ones in the model's generation_config.json."""
    ends: Sequence[int] = ()
    if manifest.tokenizer is not None:
        ends = manifest.tokenizer.ends
    elif manifest.model.vocab == BYTES_VOCABULARY and not has_tokenizer:
        ends = (BYTES_EOS,)
    return tuple(dict.fromkeys([*ends, *(end for end in ends_in(generation) if end < manifest.model.vocab)]))


def _stored_state(signed: SignedManifest, folder: Path, checkpoint: int | None) -> StoredState:
    for attempt in range(ATTEMPTS):
        try:
            run = StoredRun(signed, folder)
            return run.newest() if checkpoint is None else run.checkpoint(checkpoint)
        except NotStored:
            if attempt + 1 == ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def _seeded(signed: SignedManifest, path: Path) -> F32:
    """Return the initial parameters of the run's seed, in a file rather than in memory."""
    manifest = signed.manifest
    values: F32 = np.memmap(path, np.float32, "w+", shape=(manifest.parameters,))
    initial_parameters(TrainingConfig.from_sections(manifest.trainer_sections()).model, manifest.seed, values)
    return values


@contextmanager
def _naming_errors() -> Iterator[None]:
    """Turn a missing state into a sentence with exit code INPUT; `peer.cli.explain` handles errors of the disk."""
    try:
        yield
    except NotStored as error:
        raise PeerError(str(error), ExitCode.INPUT) from error
