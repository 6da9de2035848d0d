"""A run whose environment nobody could open is told so when it is created, and to who would join it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from peer.cli import main
from peer.errors import ExitCode, PeerError
from peer.joining.run_source import create_run, find_run, known_runs, store_manifest
from peer.joining.standing import find_standing
from peer.paths import run_dir
from peer.trainer_process.process import TrainerPlaces, TrainerSettings
from protocol.blobs.store import BlobStore
from protocol.disk import Disk
from protocol.run.manifest import RunManifest, SignedManifest, demo_manifest, run_id
from protocol.run.run_file import RunFileError, dump, parse_run_file
from protocol.run.sections import FILE_CHUNK_BYTES
from protocol.sync.fetchers import paths_of
from protocol.wire.identity import Identity, PeerId
from protocol.wire.presence import Role
from tests.protocol.chains import a_run
from tests.protocol.peers import ANN
from trainer.config import TrainingConfig
from trainer.environments.registry import open_named
from trainer.environments.task_file import RecordedTasks, digest_of
from trainer.reading import environment_of

# ------------------------------------------------------------------------------------------------------------------------
# The runs that a data directory keeps.


def test_runs_are_listed_the_last_one_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--data-dir", str(tmp_path)]) == ExitCode.OK
    assert "`peer join` joins the demo run" in capsys.readouterr().out
    old, new = a_run(ANN), demo_manifest()
    for signed, at in ((old, 1000.0), (new, 2000.0)):
        store_manifest(signed, tmp_path)
        records = run_dir(tmp_path, signed.run) / "records"
        records.mkdir()
        for round in range(3):
            (records / f"{round:08}").write_bytes(bytes(10))
        (records / "00000001.corrupt").write_bytes(bytes(5))
        for path in run_dir(tmp_path, signed.run).rglob("*"):
            os.utime(path, (at, at))
    damaged = tmp_path / "runs" / ("ab" * 32)
    damaged.mkdir()
    (damaged / "manifest").write_bytes(b"torn")
    os.utime(damaged / "manifest", (500.0, 500.0))
    found = known_runs(tmp_path)
    assert [(each.name, each.rounds, each.last, each.running) for each in found] == [
        (new.manifest.name, 3, 2000.0, False),
        (old.manifest.name, 3, 1000.0, False),
        ("", 0, 500.0, False),
    ]
    assert found[0].disk_bytes == 35 + len(new.raw) and found[2].problem and not found[0].problem
    assert main(["runs", "--json", "--data-dir", str(tmp_path)]) == ExitCode.OK
    told = json.loads(capsys.readouterr().out)
    assert [each["run"] for each in told["runs"]] == [new.run.hex(), old.run.hex(), "ab" * 32]


# ------------------------------------------------------------------------------------------------------------------------


TASK = b'{"problem_id": "one", "task_type": "exact_answer", "prompt": "1+1", "verification_info": {"ground_truth": "2"}}\n'
TASKS = f'jsonl(path=\\"tasks.jsonl\\", digest=\\"{digest_of(TASK)}\\")'


def run_file(folder: Path, environment: str, problems: int = 8) -> Path:
    path = folder / "run.toml"
    path.write_text(f'name = "a run"\n[rl]\nenvironment = "{environment}"\nproblems = {problems}\nprompts_per_batch = 1\n')
    return path


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ("adds", "run.toml: [rl] environment: there is no environment 'adds': did you mean 'add'?"),
        ("add(letters=3)", "it takes: digits"),
        (TASKS, "no file"),
    ],
)
def test_a_wrong_environment_is_told_when_the_run_is_created(environment: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(RunFileError) as told:
        create_run(run_file(tmp_path, environment), tmp_path / "data")
    assert sentence in str(told.value)


def test_the_tasks_are_files_of_the_run_which_the_organiser_has_and_a_trainer_reads(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_bytes(TASK)
    path, data = run_file(tmp_path, TASKS, 1), tmp_path / "data"
    assert isinstance(find_run(str(path), data), SignedManifest) and not (data / "runs").exists()
    signed = create_run(path, data)
    folder = run_dir(data, signed.run)
    files = BlobStore(Disk(), folder / "files")
    files.load()
    assert [*signed.manifest.files] == ["corpora/0", "tasks/tasks.jsonl"]
    tasks = signed.manifest.files["tasks/tasks.jsonl"]
    assert files.is_right(tasks.name, tasks.size, FILE_CHUNK_BYTES)
    settings = TrainerSettings.for_run(
        signed.manifest, folder / "trainer.log", TrainerPlaces(paths_of(signed.manifest, files))
    )
    config = TrainingConfig.from_sections(settings.sections)
    assert open_named(config.environment, config.files).problem(0).prompt == "1+1"
    assert parse_run_file(dump(signed.manifest), PeerId(signed.manifest.organiser)) == signed.manifest
    (tmp_path / "tasks.jsonl").write_bytes(TASK + TASK.replace(b"one", b"two"))
    with pytest.raises(RunFileError, match="other tasks than this run's"):
        create_run(path, data)


NAMELESS = b'\xef\xbb\xbf{"task_type": "numeric_answer", "prompt": "1+1", "verification_info": {"ground_truth": 2}}\r\n'


@pytest.mark.parametrize(
    ("environment", "of", "problems"),
    [
        ('mixture(add, jsonl(path="tasks.jsonl"))', 'mixture(add(), jsonl(path="tasks.jsonl", digest="DIGEST"))', 6),
        ('jsonl(digest="DIGEST", path="tasks.jsonl")', 'jsonl(digest="DIGEST", path="tasks.jsonl")', 3),
    ],
)
def test_digest_count_and_ids_of_tasks_are_worked_out_when_the_run_is_created(
    environment: str, of: str, problems: int, tmp_path: Path
) -> None:
    tasks, run = tmp_path / "tasks.jsonl", tmp_path / "run.toml"
    tasks.write_bytes(NAMELESS * 3 + b"\r\n" + json.dumps(json.loads(TASK) | {"solve_rate": 1.0}).encode())
    environment, of = (text.replace("DIGEST", digest_of(tasks.read_bytes())) for text in (environment, of))
    run.write_text(f"name = \"a run\"\n[rl]\nenvironment = '{environment}'\nprompts_per_batch = 1\n")
    signed = create_run(run, tmp_path / "data")
    assert signed.manifest.rl is not None
    assert signed.manifest.rl.environment == of.replace("add()", "add") and signed.manifest.rl.problems == problems
    files = {"tasks/tasks.jsonl": str(tasks)}
    opened = environment_of(TrainingConfig.from_sections({**signed.manifest.trainer_sections(), "files": files}))
    assert opened.size == problems
    assert parse_run_file(dump(signed.manifest), PeerId(signed.manifest.organiser)) == signed.manifest


@pytest.mark.parametrize("role", [Role.TRAINER, Role.VALIDATOR])
def test_a_joiner_is_told_of_tasks_that_only_another_version_knows(role: Role, tmp_path: Path) -> None:
    organiser = Identity.from_seed(bytes(32)).peer_id
    run = {"name": "later", "organiser": organiser, "founders": "anyone", "total_rounds": 9, "rl": {"environment": "chess"}}
    manifest = RunManifest.model_validate(run)
    found = find_standing(manifest, run_id(manifest), organiser, b"", 0, role, tmp_path)
    assert found.problem is not None and "'chess'" in found.problem and "install the version" in found.problem
    assert find_standing(manifest, run_id(manifest), organiser, b"", 0, Role.SEED, tmp_path).problem is None


def test_a_manifest_whose_environment_reads_a_file_that_it_does_not_name_is_refused(tmp_path: Path) -> None:
    organiser = Identity.from_seed(bytes(32)).peer_id
    environment = TASKS.replace("\\", "")
    manifest = RunManifest.model_validate(
        {
            "name": "no file",
            "organiser": organiser,
            "founders": "anyone",
            "total_rounds": 9,
            "rl": {"environment": environment},
        }
    )
    found = find_standing(manifest, run_id(manifest), organiser, b"", 0, Role.TRAINER, tmp_path)
    assert found.problem is not None and "tasks.jsonl" in found.problem


def test_more_problems_than_tasks_and_lines_that_are_no_tasks_are_told_when_the_run_is_created(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_bytes(TASK)
    with pytest.raises(PeerError, match=r"jsonl\(.* has 1 problems, not 8; set problems = 1"):
        create_run(run_file(tmp_path, TASKS), tmp_path / "data")
    with pytest.raises(PeerError, match=r"mixture\(.* has 2 problems, not 8; set problems = 2"):
        create_run(run_file(tmp_path, f"mixture(sort, {TASKS})"), tmp_path / "data")
    wrong = TASK + b"[]\n"
    (tmp_path / "tasks.jsonl").write_bytes(wrong)
    with pytest.raises(PeerError, match="tasks.jsonl: line 2"):
        create_run(run_file(tmp_path, TASKS.replace(digest_of(TASK), digest_of(wrong)), 1), tmp_path / "data")


def test_how_many_tasks_stay_by_their_solve_rates_is_told_when_the_run_is_created(tmp_path: Path) -> None:
    def rated(*rates: float) -> str:
        lines = [{**json.loads(TASK), "problem_id": str(at), "solve_rate": rate} for at, rate in enumerate(rates)]
        (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, lines)))
        return TASKS.replace(digest_of(TASK), digest_of((tmp_path / "tasks.jsonl").read_bytes()))

    told: list[tuple[str, str]] = []
    run = run_file(tmp_path, rated(0, 0.5, 0.25), 2)
    signed = create_run(run, tmp_path / "data", lambda *remark: told.append(remark))
    left = "tasks.jsonl: 2 of 3, 1 left out by a solve_rate outside 0.1 to 0.8"
    assert told[0] == ("tasks", left)
    files = {"tasks/tasks.jsonl": str(tmp_path / "tasks.jsonl")}
    tasks = environment_of(TrainingConfig.from_sections({**signed.manifest.trainer_sections(), "files": files}))
    assert isinstance(tasks, RecordedTasks) and [tasks.problem(at).answer.problem_id for at in range(2)] == ["1", "2"]
    assert tasks.size == 2, "in a trainer process, too"
    with pytest.raises(PeerError, match=f"has 2 problems, not 3; set problems = 2; {left}"):
        create_run(run_file(tmp_path, rated(0, 0.5, 0.25), 3), tmp_path / "data")
    with pytest.raises(PeerError, match="none of the 2 tasks has a solve_rate"):
        create_run(run_file(tmp_path, rated(0, 1), 1), tmp_path / "data")
