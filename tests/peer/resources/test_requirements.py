"""What a run requires of those who train is checked here before anything is fetched, and told with another role."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from peer.doctor import checks
from peer.doctor.examination import known_lines
from peer.joining.purpose import run_definition
from peer.resources import requirements
from peer.resources.computer import memory_need
from peer.resources.pace import LINE_KEPT_S, LINE_NAME, MBIT, MeasuredLine, keep_line, kept_line
from peer.resources.requirements import (
    Computer,
    need_lines,
    required,
    requirement_problem,
    slow_line,
    this_computer,
    training_needs,
)
from peer.resources.room import DiskRoom
from peer.settings.preferences import Preferences
from protocol.formatting import size
from protocol.run.manifest import RunManifest
from protocol.run.run_file import RunFileError, dump, parse_run_file
from protocol.version import NOT_INSTALLED
from protocol.wire import canonical
from protocol.wire.identity import Identity
from protocol.wire.presence import Role
from trainer.memory import TrainerSetup

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
    assert problem == (f"training in this run requires {told}; {advice}" if told else "")
    assert not requirement_problem(a_run(text), Role.SEED, computer), "only trainers have to meet them"


@pytest.mark.parametrize(
    ("least", "here", "met"),
    [
        ("0.1", "0.1.0", True),
        ("0.1.0", "0.1", True),
        ("0.2", "0.1.9", False),
        ("0.10", "0.9.3", False),
        ("1", "0.99.1", False),
        ("0.2.1", "0.2.1rc1", True),
        ("0.2.1", "0.2.0+local.9", False),
        ("0.1", NOT_INSTALLED, False),
    ],
)
def test_an_older_version_than_the_run_requires_does_not_train(
    monkeypatch: pytest.MonkeyPatch, least: str, here: str, met: bool
) -> None:
    monkeypatch.setattr(requirements, "version", lambda: here)
    problem = requirement_problem(a_run(f'version = ">={least}"'), Role.TRAINER, SMALL)
    assert problem == (
        ""
        if met
        else f"training in this run requires manyhands {least} or later (this is {here}); install manyhands {least}, "
        "or join with --role seed (keeping and serving the run), which does not need that"
    )


@pytest.mark.parametrize(
    ("text", "starts", "ends"),
    [
        ("", "about {cpu} of memory on a CPU, or {gpu} of a GPU's and {host} of the computer's, ", "{disk} on disk"),
        (
            "memory_gb = 16",
            "16 GB of memory; its model needs about {gpu} of a GPU's memory if there is one, ",
            "{disk} on disk",
        ),
        ("gpu_gb = 24", "a GPU of 24 GB; its model needs about {host} of memory, ", "{disk} on disk"),
        ("disk_gb = 60", "60 GB on disk; its model needs about {cpu} of memory on a CPU, or ", "{host} of the computer's"),
        ('memory_gb = 16\ngpu_gb = 24\ndisk_gb = 60\nversion = ">=0.2"', "16 GB of memory, a GPU of 24 GB", "0.2 or later"),
    ],
)
def test_what_the_organiser_does_not_state_follows_from_the_model(text: str, starts: str, ends: str) -> None:
    run = a_run(text)
    on_cpu, on_gpu = memory_need(run), memory_need(run, setup=TrainerSetup("cuda"))
    numbers = {
        "cpu": size(on_cpu.host),
        "host": size(on_gpu.host),
        "gpu": size(on_gpu.gpu),
        "disk": size(3 * run.stored_bytes),
    }
    told = training_needs(run)
    assert told.startswith(starts.format(**numbers)) and told.endswith(ends.format(**numbers))
    assert run_definition(run).requires == told


# ------------------------------------------------------------------------------------------------------------------------
# The measured line.


def test_a_line_that_was_measured_to_be_slower_is_a_warning(tmp_path: Path) -> None:
    run = a_run("up_mbit = 20\ndown_mbit = 50")
    for up, down, slow in ((20.0, 50.0, []), (3.25, 50.0, ["up"]), (3.25, 1.0, ["up", "down"]), (0.0, 90.0, [])):
        keep_line(tmp_path, up * MBIT, down * MBIT)
        computer = this_computer(DiskRoom(tmp_path), tmp_path / "run", Preferences())
        told = slow_line(run, Role.TRAINER, computer)
        assert [name for name in ("up", "down") if f"Mbit/s {name} (at least " in told] == slow
        assert not requirement_problem(run, Role.TRAINER, computer) and not slow_line(run, Role.SEED, computer)
    assert "20 Mbit/s up (at least 3.2 Mbit/s were measured on " in slow_line(
        run, Role.TRAINER, replace(SMALL, line=MeasuredLine(3.25 * MBIT, 0.0, 0.0))
    )
    assert not slow_line(a_run(), Role.TRAINER, replace(SMALL, line=MeasuredLine(1.0, 1.0, 0.0)))


def test_the_doctor_warns_of_a_slow_line_and_shows_what_was_measured(tmp_path: Path) -> None:
    assert known_lines(tmp_path).verdict is checks.CheckResult.UNKNOWN
    keep_line(tmp_path, 2 * MBIT, 0.0)
    shown = known_lines(tmp_path)
    assert shown.verdict is checks.CheckResult.OK and shown.value.startswith(
        "down not known yet, up 2.0 Mbit/s (measured on "
    )
    found = checks.requirements(tmp_path, tmp_path / "run", a_run("up_mbit = 20"), Role.TRAINER, Preferences())
    assert found.verdict is checks.CheckResult.WARN and "2.0 Mbit/s were measured" in found.value
    assert "--role seed" in found.remedy


def test_a_measurement_counts_for_a_month_and_only_if_something_was_measured(tmp_path: Path) -> None:
    keep_line(tmp_path, 0.0, 0.0)
    assert kept_line(tmp_path) is None
    keep_line(tmp_path, 1.0, 2.0, lambda: 1000.0)
    assert kept_line(tmp_path, lambda: 1000.0 + LINE_KEPT_S - 1) == MeasuredLine(1.0, 2.0, 1000.0)
    assert kept_line(tmp_path, lambda: 1000.0 + LINE_KEPT_S) is kept_line(tmp_path, lambda: 999.0) is None


@pytest.mark.parametrize(
    "damage",
    [
        *(b"", b"{", b"[]", b"null", b'{"up":1}', b'{"up":"x","down":1,"at":1}', b'{"up":NaN,"down":1,"at":1}'),
        *(b'{"up":-1,"down":1,"at":1}', b'{"up":1e999,"down":1,"at":1}', b'{"up":1,"down":1,"at":NaN}', b"[" * 100_000),
    ],
)
def test_a_damaged_measurement_does_not_count(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / LINE_NAME).write_bytes(damage)
    assert kept_line(tmp_path, lambda: 1.0) is None


# ------------------------------------------------------------------------------------------------------------------------


def test_the_role_that_is_possible_depends_on_the_run_and_on_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run("memory_gb = 16", head='[rl]\nenvironment = "sort"\nmax_tokens = 256\nrow_tokens = 512')
    assert "--role rollout (generating rollouts)" in requirement_problem(run, Role.TRAINER, SMALL)
    monkeypatch.setattr(requirements, "available_memory", lambda: 1)
    assert requirement_problem(run, Role.TRAINER, SMALL).endswith("; join a smaller run")


def test_requirements_come_back_and_are_not_in_other_manifests() -> None:
    run = a_run("gpu_gb = 24\nup_mbit = 20")
    assert parse_run_file(dump(run), ME) == run
    assert run.requires is not None and required(run.requires) == "a GPU of 24 GB, 20 Mbit/s up"
    assert need_lines(run)[0][1].startswith("a GPU of 24 GB, 20 Mbit/s up; its model needs about ")
    assert "requires" not in canonical.decode(a_run().encode(), max_bytes=1 << 20)
    told = canonical.decode(run.encode(), max_bytes=1 << 20)
    assert isinstance(told, dict) and "version" not in told["requires"], "runs from before the field keep their IDs"


@pytest.mark.parametrize(
    "text",
    [
        "memory_gb = -1",
        "gpu_gb = inf",
        "disk_gb = nan",
        "up_mbit = 1e9",
        'down_mbit = "9"',
        "cores = 4",
        "version = 1",
        *(f'version = "{text}"' for text in ("0.2", "==0.2", ">=", ">=1.2.3.4", ">=0.2rc1", ">=٢", ">=0.2 ", "\\n>=0.2")),
    ],
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
