"""The environment that a run with rollouts names: whether there is one like that, and the organiser's files of its tasks."""

from __future__ import annotations

from pathlib import Path

from peer.files.atomic import write_atomically
from peer.paths import make_private, run_dir, tasks_dir
from protocol.run.manifest import RunManifest, SignedManifest
from protocol.run.run_file import RunFileError
from trainer.environments.jsonl import read_file
from trainer.environments.registry import check_named, files_of


def environment_problem(manifest: RunManifest) -> str | None:
    """Why no peer could open the environment of a run, as a sentence; None where it could, or there is none."""
    if manifest.rl is None:
        return None
    try:
        check_named(manifest.rl.environment, manifest.rl.problems)
    except ValueError as error:
        return f"[rl] environment: {error}"
    return None


def check_tasks(manifest: RunManifest, path: Path) -> None:
    """Raise `RunFileError` unless the environment of the run file `path` can be opened, with the files beside it."""
    problem = environment_problem(manifest)
    if problem is not None:
        raise RunFileError(f"{path.name}: {problem}")
    try:
        for file, digest in _files(manifest):
            read_file(str(path.parent / file), digest)
    except ValueError as error:
        raise RunFileError(f"{path.name}: [rl] environment: {error}") from error


def keep_tasks(signed: SignedManifest, path: Path, data: Path) -> None:
    """Copy the files of tasks beside the run file `path` to where the run's trainer looks for them.  Blocking."""
    for file, digest in _files(signed.manifest):
        folder = tasks_dir(run_dir(data, signed.run))
        make_private(folder)
        write_atomically(folder / file, read_file(str(path.parent / file), digest))


def _files(manifest: RunManifest) -> list[tuple[str, str]]:
    """Name and digest of each file."""
    return files_of(manifest.rl.environment) if manifest.rl is not None else []
