"""Strict check of a file of tasks: the same one before a file is published and before a fetched file is admitted."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kernels.outside_files import named_file, read_outside
from peer.errors import ExitCode, PeerError
from peer.paths import FILES, make_private, run_dir
from protocol.blobs.store import BlobStore
from protocol.disk import Disk
from protocol.run.manifest import SignedManifest
from protocol.sync.fetchers import paths_of
from protocol.wire.rollouts import MAX_SET_BYTES, MAX_SET_TASKS
from trainer.config import TrainingConfig
from trainer.data.templates import TemplatedTokenizer
from trainer.environments.records import SolveRates, TaskRecord, told
from trainer.environments.registry import FILE_NAME
from trainer.environments.task_file import MAX_COMPRESSED_BYTES, read_task_set
from trainer.reading import tokenizer_of
from trainer.rl.groups import most_prompt_bytes, prompt_flaw


@dataclass(frozen=True)
class Checked:
    """File of a valid set of tasks.

    tasks: the tasks within the run's bounds on solve rates; only these count.  kinds: types of the tasks' verification, with
    counts.  told: sentence for a person about the number of these tasks.  file: its name in the run's folder of tasks.
    """

    tasks: tuple[TaskRecord, ...]
    kinds: dict[str, int]
    told: str
    file: str = ""


def check(signed: SignedManifest, source: Path, data: Path) -> Checked:
    """Check the tasks in a fetched file.  Raises `PeerError` with the faulty line and the remedy.

    data: the data directory, which contains the run's files.
    """
    given = _given(source)
    plain, checked = _read(signed, source, given, data)
    if plain != given:
        raise PeerError(
            f"{source} is compressed, and trainers read plain lines; ask its publisher to use "
            "`peer tasks publish FILE`, which unpacks it",
            ExitCode.INPUT,
        )
    return checked


@contextmanager
def prepared(signed: SignedManifest, source: Path, data: Path) -> Iterator[Checked]:
    """Check the tasks in `source`, and keep a copy in the run's folder of tasks within the block.

    A compressed file is unpacked, so that a set has one name.  Raises `PeerError`.
    """
    plain, checked = _read(signed, source, _given(source), data)
    folder = make_private(make_private(run_dir(data, signed.run)) / "tasks")
    target = folder / f".given-{os.getpid()}.new"
    try:
        target.write_bytes(plain)
        yield replace(checked, file=target.name)
    finally:
        target.unlink(missing_ok=True)


def _given(source: Path) -> bytes:
    """Return the content of the file that the person named."""
    try:
        return read_outside(named_file(source), max(MAX_SET_BYTES, MAX_COMPRESSED_BYTES))
    except OSError as error:
        raise PeerError(f"cannot read {source}: {error.strerror}; name a file of JSON lines", ExitCode.INPUT) from error


def _read(signed: SignedManifest, source: Path, given: bytes, data: Path) -> tuple[bytes, Checked]:
    rl = signed.manifest.rl
    if rl is None:
        raise PeerError("this run learns from text, not from rollouts, so nobody solves tasks in it", ExitCode.INPUT)
    rates = SolveRates(rl.min_solve_rate, rl.max_solve_rate)
    try:
        read = read_task_set(given)
        tasks = rates.left(read.tasks)
    except ValueError as error:
        raise PeerError(
            f"{source}: {error}; docs/guides/environments.md describes the format of a line", ExitCode.INPUT
        ) from error
    size = len(read.plain)
    if size > MAX_SET_BYTES or len(tasks) > MAX_SET_TASKS:
        raise PeerError(
            f"{source} has {len(tasks)} tasks in {size} bytes, more than {MAX_SET_TASKS} in {MAX_SET_BYTES}; split the file",
            ExitCode.INPUT,
        )
    most = most_prompt_bytes(rl.row_tokens, rl.max_tokens, rl.length_targets)
    longest = max(tasks, key=lambda task: len(task.prompt.encode()))
    if len(longest.prompt.encode()) > most:
        raise PeerError(
            f"{source}: the prompt of {longest.problem_id!r:.80} has {len(longest.prompt.encode())} bytes, and this run "
            f"learns from prompts of at most {most} (row_tokens + 1 - max_tokens, less the naming of a length); "
            "shorten the prompt, or leave the task out",
            ExitCode.INPUT,
        )
    tokenizer = _tokenizer(signed, data)
    for task in tasks:
        if tokenizer is None:
            break
        if flaw := prompt_flaw(task.prompt, tokenizer, rl.row_tokens, rl.max_tokens, rl.length_targets):
            raise PeerError(
                f"{source}: the prompt of {task.problem_id!r:.80} {flaw}; change the prompt, or leave the task out",
                ExitCode.INPUT,
            )
    kinds = Counter(type(task.verification).__name__ for task in tasks)
    return read.plain, Checked(tasks, dict(kinds), told(len(tasks), len(read.tasks), rates))


def _tokenizer(signed: SignedManifest, data: Path) -> TemplatedTokenizer | None:
    """Return the run's tokenizer; None if its file is missing or damaged, because trainers check the prompts in any case."""
    paths = paths_of(signed.manifest, BlobStore(Disk(), run_dir(data, signed.run) / FILES))
    here = {name: str(path) for name, path in paths.items() if path.is_file()}
    try:
        return tokenizer_of(TrainingConfig.from_sections(signed.manifest.trainer_sections() | {"files": here}))
    except ValueError:
        return None


def check_file_name(target: Path) -> None:
    """Raise PeerError if a run could not read a file of this name."""
    if not FILE_NAME.fullmatch(target.name):
        raise PeerError(
            f"a run cannot read a file named {target.name!r}; give another --out, of at most 100 letters, digits, dots, "
            "dashes and underscores",
            ExitCode.INPUT,
        )
