"""The environment that a run with rollouts names: whether there is one like that, with the files that it reads."""

from __future__ import annotations

from protocol.run.manifest import RunManifest
from trainer.environments.registry import check_named, files_of


def environment_problem(manifest: RunManifest) -> str | None:
    """Why no peer could open the environment of a run, as a sentence; None where it could, or there is none."""
    rl = manifest.rl
    if rl is None:
        return None
    try:
        check_named(rl.environment, rl.problems)
    except ValueError as error:
        return f"[rl] environment: {error}"
    unknown = {path for path, _ in files_of(rl.environment)} ^ {file.path for file in rl.files}
    if unknown:
        told = ", ".join(sorted(unknown))
        return f"[rl] files are not those that the environment reads ({told}); remove files, which follow from it"
    return None
