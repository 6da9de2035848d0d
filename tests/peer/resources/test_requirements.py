"""What a run requires of those who train is checked here before anything is fetched, and told with another role."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from peer.resources import requirements
from peer.resources.pace import LINE_KEPT_S, LINE_NAME, MBIT, MeasuredLine, keep_line, kept_line
from peer.resources.requirements import (
    Computer,
    need_lines,
    required,
    requirement_problem,
    slow_line,
    this_computer,
)
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
        ("gpu_gb = 24", replace(SMALL, gpu=25 * GB), ""),
        ("up_mbit = 20", replace(SMALL, max_up=1.25e6), "20 Mbit/s up (max_up is 10 Mbit/s)"),
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
        ("0.2", "0.1.9", False),
        ("0.10", "0.9.3", False),
        ("0.2.1", "0.2.1rc1", True),
        ("0.2.1", "0.2.0+local.9", False),
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
        'down_mbit = "9"',
        "cores = 4",
        *(f'version = "{text}"' for text in ("0.2", "==0.2", ">=", ">=1.2.3.4", ">=0.2rc1", ">=٢", ">=0.2 ", "\\n>=0.2")),
    ],
)
def test_senseless_requirements_are_refused(text: str) -> None:
    with pytest.raises(RunFileError, match=r"requires\."):
        a_run(text)
