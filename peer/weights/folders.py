"""Export of a run's model as a Hugging Face folder, from the data directory, whether or not a peer is running.

`protocol.chain.stored_run` reads the states on disk, `trainer.weights` writes the file formats, and this module makes the
new folder.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np

from peer.errors import ExitCode, PeerError, told_as
from peer.files import sync_folder
from peer.paths import FILES, run_dir
from peer.resources.computer import available_memory, free_gpu_memory
from peer.weights.base_files import base_name
from peer.weights.tokenizer_files import check_files, folder_tokenizer, take_tokenizer, write_tokenizer
from protocol.blobs.store import BlobStore
from protocol.chain.stored_run import F32, NotStored, StoredRun, StoredState
from protocol.disk import Disk
from protocol.formatting import size
from protocol.run.manifest import RunManifest, SignedManifest
from protocol.run.sections import TOKENIZER
from protocol.sync.fetchers import paths_of
from protocol.wire.hashes import HASH_BYTES
from trainer.config import TrainingConfig
from trainer.models.llama.initial import initial_parameters
from trainer.weights.folder import WeightsFolder, json_in, write_folder
from trainer.weights.merging import Linear, Rule, Slerp, Ties, merged_blocks
from trainer.weights.merging import merged as merged_models
from trainer.weights.peft_folder import write_peft_folder
from trainer.weights.safetensors_file import ExportFormat, FolderError

# ------------------------------------------------------------------------------------------------------------------------
# New folder that gets its name once it is complete on disk, so that a folder with the name is never incomplete.


ROOM = 1.05
"""Factor on the size of the numbers, for headers and the file system's own needs."""


def check_target(target: Path) -> None:
    """Raise `PeerError` unless a new folder can be made there."""
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise PeerError(f"{target} exists already; name a new folder, or remove it first", ExitCode.INPUT)
    if not target.parent.is_dir():
        raise PeerError(f"there is no folder {target.parent}; create it first, or name another folder", ExitCode.INPUT)


def check_room(folder: Path, wanted: int) -> None:
    """Raise `PeerError` unless the disk has room for `wanted` bytes of numbers."""
    free = shutil.disk_usage(folder).free
    if free < ROOM * wanted:
        raise PeerError(
            f"the model takes about {size(wanted)} and the disk has {size(free)} free; make room, "
            "or name a folder on another disk",
            ExitCode.RESOURCES,
        )


def check_memory(wanted: int, device: str) -> None:
    """Raise `PeerError` unless the memory of a device has room for `wanted` bytes of numbers.  device: torch's type."""
    free = free_gpu_memory() if device == "cuda" else available_memory()
    if free is not None and free < wanted:
        raise PeerError(
            f"the model takes about {size(wanted)} of memory and {size(free)} are free; close other programs, or use a "
            "smaller model",
            ExitCode.RESOURCES,
        )


@contextmanager
def published_as(target: Path) -> Iterator[Path]:
    """Yield a new folder beside `target`, which is renamed to `target` on success and removed on an error."""
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".new", dir=target.parent))
    try:
        yield unfinished
        unfinished.chmod(0o777 & ~umask())
        sync_folder(unfinished)
        os.rename(unfinished, target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def told(blocks: Iterable[F32], count: int, on_progress: Callable[[float], None]) -> Iterator[F32]:
    """Yield the blocks of `count` values; call `on_progress` with the yielded share, from 0 to 1."""
    done = 0
    for block in blocks:
        yield block
        done += len(block)
        on_progress(done / count)


def umask() -> int:
    """Return this process's umask."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


# ------------------------------------------------------------------------------------------------------------------------
# Merge of several Hugging Face folders into one.  The arithmetic is in `trainer.weights.merging`.


CONTEXT = 2048
"""Context that transformers assumes for a Llama if its config.json gives none."""


@dataclass(frozen=True)
class MergeOptions:
    """Options of a merge; None for the default.  weights: one weight for each model."""

    rule: str = "linear"
    weights: tuple[float, ...] | None = None
    t: float | None = None
    base: Path | None = None
    density: float | None = None
    scale: float | None = None


@dataclass(frozen=True)
class Merged:
    """Result of a merge.  tokenizer: true if the folder has a tokenizer."""

    parameters: int
    size_bytes: int
    tokenizer: bool


def merge(
    models: Sequence[Path],
    target: Path,
    options: MergeOptions,
    dtype: str,
    on_progress: Callable[[float], None] = lambda share: None,
) -> Merged:
    """Write the merge of `models` to the new folder `target`.  dtype: "bf16" or "fp32".  Raises `PeerError`.

    The first model's tokenizer, end of text and context are used; with the rule ties, those of the base are used.
    """
    check_target(target)
    form = ExportFormat(dtype)
    rule = _rule(len(models), options)
    sources = list(models) if options.base is None else [options.base, *models]
    with told_as(ExitCode.INPUT, FolderError):
        folders = [WeightsFolder(source) for source in sources]
        first = folders[0]
        check_files(first.folder)
        folder_tokenizer(first.folder, first.config.vocab)
        with published_as(target) as unfinished:
            has_tokenizer = take_tokenizer(first.folder, unfinished)
            check_room(unfinished, form.width * first.config.parameters)
            write_folder(
                unfinished,
                first.config,
                told(merged_models(folders, rule), first.config.parameters, on_progress),
                form,
                context=first.config.context or CONTEXT,
                eos=first.ends,
                generation=first.generation,
            )
            total = sum(path.stat().st_size for path in unfinished.iterdir())
    return Merged(first.config.parameters, total, has_tokenizer)


RULES_OF = {"weights": ("linear", "ties"), "t": ("slerp",), "base": ("ties",), "density": ("ties",), "scale": ("ties",)}
"""Rules to which each option applies."""


def _rule(models: int, options: MergeOptions) -> Rule:
    """Return the rule for this number of models, not counting a base; raises `PeerError`."""
    for name in RULES_OF:
        if getattr(options, name) is not None and options.rule not in RULES_OF[name]:
            raise PeerError(
                f"{options.rule} has no --{name}, which belongs to {' and '.join(RULES_OF[name])}; leave it out, or "
                "name another --rule",
                ExitCode.USAGE,
            )
    weights = options.weights or (1.0,) * models
    if len(weights) != models:
        raise PeerError(
            f"{len(weights)} weights are given for {models} models; give one weight for each model", ExitCode.USAGE
        )
    if options.rule == "ties" and options.base is None:
        raise PeerError("the rule ties starts from a base; name the base with --base", ExitCode.USAGE)
    if (models < 2 and options.rule != "ties") or (options.rule == "slerp" and models != 2):
        raise PeerError(
            f"{options.rule} takes two models{' or more' * (options.rule != 'slerp')}; give that number of models",
            ExitCode.USAGE,
        )
    try:
        match options.rule:
            case "slerp":
                return Slerp(_or(options.t, 0.5))
            case "ties":
                return Ties(weights, _or(options.density, 0.2), _or(options.scale, 1.0))
            case _:
                return Linear(weights)
    except ValueError as error:
        raise PeerError(f"{error}; change the weights or options", ExitCode.USAGE) from error


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


# ------------------------------------------------------------------------------------------------------------------------


ATTEMPTS = 3
"""Number of tries, because a running peer may remove a checkpoint after its folder was listed."""
BYTES_VOCABULARY, BYTES_EOS = 256, 0
"""Vocabulary and end token of a run without a tokenizer: it reads bytes, and a zero byte separates files of its corpus."""


ORIGIN = "manyhands.json"
"""File of an exported folder that names the state in it."""
MOST_NAME = 200


@dataclass(frozen=True)
class ExportedState:
    """State of a run in an exported folder.

    run: the run's ID.  rounds: rounds that the model has learned from.  is_final: true if the run has ended with this state.
    """

    run: str
    name: str
    rounds: int
    is_final: bool

    def write(self, folder: Path) -> None:
        """Write the file that names this state, and sync it to disk."""
        with (folder / ORIGIN).open("w", encoding="utf-8") as file:
            file.write(json.dumps(asdict(self), indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def of_folder(cls, folder: Path) -> Self | None:
        """Return the state that a folder names, which a stranger may have written; None if it does not name one."""
        with suppress(FolderError):
            match json_in(folder / ORIGIN, "copy it again"):
                case {"run": str(run), "name": str(name), "rounds": int(rounds), "is_final": bool(is_final)} if (
                    len(name) <= MOST_NAME and len(run) == 2 * HASH_BYTES and 0 <= rounds < 1 << 53
                ):
                    return cls(run, name, rounds, is_final)
        return None


@dataclass(frozen=True)
class Exported:
    """Result of an export.  tokenizer: true if the folder has a tokenizer.  remark: a sentence on its loading, or empty."""

    state: ExportedState
    parameters: int
    size_bytes: int
    tokenizer: bool
    remark: str


def export(
    signed: SignedManifest,
    data: Path,
    target: Path,
    dtype: str,
    checkpoint: int | None,
    on_progress: Callable[[float], None] = lambda share: None,
    *,
    merged: bool = False,
) -> Exported:
    """Write the model after `checkpoint` rounds, or the newest one, to the new folder `target`.  Raises `PeerError`.

    A run with an adapter gives a folder of PEFT.  merged: the factors are added to the frozen model, with the values that
    the run computes with, in fp32, and the sum is rounded once.  dtype: "bf16" or "fp32".  on_progress: called repeatedly
    with the share written, from 0 to 1.
    """
    check_target(target)
    manifest, form = signed.manifest, ExportFormat(dtype)
    merged = merged and manifest.adapter is not None
    folder = run_dir(data, signed.run)
    with told_as(ExitCode.INPUT, NotStored, FolderError):
        state = _stored_state(signed, folder, checkpoint)
        with published_as(target) as unfinished:
            files = paths_of(manifest, BlobStore(Disk(), folder / FILES))
            sections = manifest.trainer_sections() | {"files": {name: str(path) for name, path in files.items()}}
            config = TrainingConfig.from_sections(sections)
            count = config.model.parameters if merged else config.parameters
            seeded: F32 | None = None
            check_room(unfinished, form.width * count + (4 * manifest.parameters if state.start is None else 0))
            if state.start is None:  # the parameters of the run's seed, in a file rather than in memory
                seeded = np.memmap(unfinished / ".initial", np.float32, "w+", shape=(manifest.parameters,))
                initial_parameters(config.model, manifest.seed, seeded, config.adapter)
            fetched = files.get(TOKENIZER)
            has_tokenizer = fetched is not None and fetched.is_file()
            remark = write_tokenizer(manifest, fetched, unfinished) if fetched is not None and has_tokenizer else ""
            _write_weights(
                unfinished, config, manifest, told(state.parameters(seeded), manifest.parameters, on_progress), form, merged
            )
            del seeded
            (unfinished / ".initial").unlink(missing_ok=True)
            is_final = StoredRun(signed, folder).is_final(state.rounds)
            exported = ExportedState(signed.run.hex(), manifest.name, state.rounds, is_final)
            exported.write(unfinished)
            total = sum(path.stat().st_size for path in unfinished.iterdir())
    return Exported(exported, count, total, has_tokenizer, remark)


def _write_weights(
    folder: Path, config: TrainingConfig, manifest: RunManifest, values: Iterator[F32], form: ExportFormat, merged: bool
) -> None:
    """Write the trained values as the files of a model, or of an adapter that is not merged into its frozen model."""
    if config.adapter is not None:
        if not merged:
            assert manifest.base is not None
            name = base_name(manifest.base)
            return write_peft_folder(folder, config.model, config.adapter, values, form, base_name=name)
        from trainer.weights.base import BaseFolder  # loads torch

        values = merged_blocks(BaseFolder(config), config.adapter, values)
    ends: Sequence[int] = (BYTES_EOS,) if manifest.model.vocab == BYTES_VOCABULARY else ()
    if manifest.tokenizer is not None:
        ends = manifest.tokenizer.ends
    length = max(manifest.data.sequence_length, manifest.rl.row_tokens if manifest.rl is not None else 0)
    write_folder(folder, config.model, values, form, context=length, eos=ends)


def _stored_state(signed: SignedManifest, folder: Path, checkpoint: int | None) -> StoredState:
    for attempts_left in reversed(range(ATTEMPTS)):
        try:
            run = StoredRun(signed, folder)
            return run.newest() if checkpoint is None else run.checkpoint(checkpoint)
        except NotStored:
            if not attempts_left:
                raise
    raise AssertionError("the last attempt returns or raises")
