"""What a run requires of those who train is checked here before anything is fetched, and told with another role."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from peer.doctor import checks
from peer.resources import requirements
from peer.resources.needs import need_lines
from peer.resources.requirements import Computer, required, requirement_problem, this_computer
from peer.resources.room import DiskRoom
from peer.settings.preferences import Preferences
from protocol.run.manifest import RunManifest
from protocol.run.run_file import RunFileError, dump, parse_run_file
from protocol.wire import canonical
from protocol.wire.identity import Identity
from protocol.wire.presence import Role

ME = Identity.from_seed(bytes(32)).peer_id
GB = 10**9
SMALL = Computer(memory=8 * GB, gpu=None, disk=50 * GB, max_up=None, max_down=None)


def a_run(text: str = "", head: str = "") -> RunManifest:
    section = f"[requires]\n{text}" if text else ""
    return parse_run_file(f'name = "run"\n{head}\n{section}', ME)


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "available_memory", lambda: 1 << 50)
    monkeypatch.setattr(requirements, "free_gpu_memory", lambda: None)


@pytest.mark.parametrize(
    ("text", "computer", "told"),
    [
        ("memory_gb = 8", SMALL, ""),
        ("memory_gb = 16", SMALL, "16 GB of memory (this computer has 8.0 GB)"),
        ("gpu_gb = 24", SMALL, "a GPU of 24 GB (this computer has none that can train)"),
        ("gpu_gb = 24", replace(SMALL, gpu=12 * GB), "a GPU of 24 GB (this computer has 12.0 GB)"),
        ("gpu_gb = 24", replace(SMALL, gpu=25 * GB), ""),
        ("disk_gb = 60.5", SMALL, "60.5 GB on disk (50.0 GB are left here)"),
        ("up_mbit = 20", SMALL, ""),
        ("up_mbit = 20", replace(SMALL, max_up=1.25e6), "20 Mbit/s up (max_up is 10 Mbit/s)"),
        ("down_mbit = 20", replace(SMALL, max_down=1.25e6), "20 Mbit/s down (max_down is 10 Mbit/s)"),
        (
            "memory_gb = 16\ndisk_gb = 99",
            SMALL,
            "16 GB of memory (this computer has 8.0 GB), 99 GB on disk (50.0 GB are left here)",
        ),
    ],
)
def test_what_is_missing_is_told_in_one_sentence_with_a_possible_role(text: str, computer: Computer, told: str) -> None:
    problem = requirement_problem(a_run(text), Role.TRAINER, computer)
    advice = "join with --role seed (keeping and serving the run), which does not need that"
    assert problem == (f"the run requires of those who train {told}; {advice}" if told else "")
    assert not requirement_problem(a_run(text), Role.SEED, computer), "only trainers have to meet them"


def test_the_role_that_is_possible_depends_on_the_run_and_on_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run("memory_gb = 16", head='[rl]\nenvironment = "sort"\nmax_tokens = 256\nrow_tokens = 512')
    assert "--role rollout (generating rollouts)" in requirement_problem(run, Role.TRAINER, SMALL)
    monkeypatch.setattr(requirements, "available_memory", lambda: 1)
    assert requirement_problem(run, Role.TRAINER, SMALL).endswith("; join a smaller run")


def test_requirements_come_back_and_are_not_in_other_manifests() -> None:
    run = a_run("gpu_gb = 24\nup_mbit = 20")
    assert parse_run_file(dump(run), ME) == run
    assert run.requires is not None and required(run.requires) == "a GPU of 24 GB, 20 Mbit/s up"
    assert need_lines(run)[0] == ("requires", "of those who train: a GPU of 24 GB, 20 Mbit/s up")
    assert "requires" not in dict(need_lines(a_run())) and "requires" not in dict(need_lines(a_run("memory_gb = 0")))
    assert "requires" not in canonical.decode(a_run().encode(), max_bytes=1 << 20)


@pytest.mark.parametrize(
    "text", ["memory_gb = -1", "gpu_gb = inf", "disk_gb = nan", "up_mbit = 1e9", 'down_mbit = "9"', "cores = 4"]
)
def test_senseless_requirements_are_refused(text: str) -> None:
    with pytest.raises(RunFileError, match=r"requires\."):
        a_run(text)


def test_the_doctor_says_what_is_missing_and_what_to_do(tmp_path: Path) -> None:
    run, met, preferences = a_run("disk_gb = 1e6"), a_run("disk_gb = 0.000001"), Preferences()
    found = checks.requirements(tmp_path, tmp_path / "run", run, Role.TRAINER, preferences)
    assert found.verdict is checks.CheckResult.FAIL and "1e+06 GB on disk" in found.value and "--role seed" in found.remedy
    assert checks.requirements(tmp_path, tmp_path / "run", met, Role.TRAINER, preferences).verdict is checks.CheckResult.OK
    assert checks.requirements(tmp_path, tmp_path / "run", run, Role.SEED, preferences).verdict is checks.CheckResult.OK


def test_bytes_of_the_run_that_are_here_count_as_room(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    before = this_computer(DiskRoom(tmp_path, lambda: 1 << 30), run, Preferences()).disk
    (run / "state").write_bytes(bytes(1 << 20))
    assert this_computer(DiskRoom(tmp_path, lambda: 1 << 30), run, Preferences()).disk == before == 1 << 30
