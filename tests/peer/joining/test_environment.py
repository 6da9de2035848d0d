"""A run whose environment nobody could open is told so when it is created, and to who would join it."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.joining.run_source import create_run, find_run
from peer.joining.standing import find_standing
from peer.paths import run_dir, tasks_dir
from peer.trainer_process.process import TrainerSettings
from protocol.run.manifest import RunManifest, SignedManifest, run_id
from protocol.run.run_file import RunFileError
from protocol.wire.identity import Identity
from protocol.wire.presence import Role
from trainer.config import TrainingConfig
from trainer.environments.jsonl import digest_of

TASK = b'{"problem_id": "one", "task_type": "exact_answer", "prompt": "1+1", "verification_info": {"ground_truth": "2"}}\n'
TASKS = f'jsonl(path=\\"tasks.jsonl\\", digest=\\"{digest_of(TASK)}\\")'


def run_file(folder: Path, environment: str) -> Path:
    path = folder / "run.toml"
    path.write_text(f'name = "a run"\n[rl]\nenvironment = "{environment}"\nproblems = 8\n')
    return path


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ("adds", "run.toml: [rl] environment: there is no environment 'adds': did you mean 'add'?"),
        ("add(letters=3)", "it takes: digits"),
        ("mixture(add, sort", "a comma or a closing parenthesis"),
        (TASKS, "no file"),
    ],
)
def test_a_wrong_environment_is_told_when_the_run_is_created(environment: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(RunFileError) as told:
        create_run(run_file(tmp_path, environment), tmp_path / "data")
    assert sentence in str(told.value)


def test_the_organisers_tasks_are_copied_to_where_its_trainer_reads_them(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_bytes(TASK)
    path, data = run_file(tmp_path, TASKS), tmp_path / "data"
    assert isinstance(find_run(str(path), data), SignedManifest) and not (data / "runs").exists()
    signed = create_run(path, data)
    folder = run_dir(data, signed.run)
    assert (tasks_dir(folder) / "tasks.jsonl").read_bytes() == TASK
    config = TrainingConfig.from_sections(TrainerSettings.for_run(signed.manifest, folder / "trainer.log").sections)
    assert config.tasks == str(tasks_dir(folder))
    (tmp_path / "tasks.jsonl").write_bytes(TASK + TASK.replace(b"one", b"two"))
    with pytest.raises(RunFileError, match="other tasks than this run's"):
        create_run(path, data)


@pytest.mark.parametrize("role", [Role.TRAINER, Role.ROLLOUT, Role.VALIDATOR])
def test_a_joiner_is_told_of_tasks_that_only_another_version_knows(role: Role, tmp_path: Path) -> None:
    organiser = Identity.from_seed(bytes(32)).peer_id
    run = {"name": "later", "organiser": organiser, "founders": "anyone", "rl": {"environment": "chess"}}
    manifest = RunManifest.model_validate(run)
    found = find_standing(manifest, run_id(manifest), organiser, b"", 0, role, tmp_path)
    assert found.problem is not None and "'chess'" in found.problem and "install the version" in found.problem
    assert find_standing(manifest, run_id(manifest), organiser, b"", 0, Role.SEED, tmp_path).problem is None
