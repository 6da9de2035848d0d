"""What each check says about a computer that lacks something, and that no check ends another."""

from __future__ import annotations

import shutil
import time
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import trio

from peer.doctor import checks, examination
from peer.doctor.checks import Check, CheckResult
from peer.doctor.examination import Examination, fields, lines, may_take_part
from peer.errors import PeerError
from peer.measurements.speeds import TrainingSpeed
from peer.resources.check import TrainerDivision
from peer.resources.computer import StatePlace, memory_need, sole_process
from peer.resources.pace import keep_pace, kept_pace
from peer.settings.preferences import Preferences
from protocol.run.manifest import demo_manifest
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role

DEMO = demo_manifest().manifest
SPEED = TrainingSpeed(1000.0, "cpu", 2, DEMO.parameters, 10)
ON_CPU = TrainerDivision(sole_process(None))


def verdicts(checks: list[Check]) -> dict[str, CheckResult]:
    return {check.name: check.verdict for check in checks}


@pytest.mark.parametrize(
    ("drivers", "torch", "verdict"),
    [
        ((), "cuda: Optional[str] = None\nhip: Optional[str] = None", CheckResult.OK),
        (("nvidia",), "cuda: Optional[str] = '13.0'", CheckResult.OK),
        (("nvidia",), "cuda: Optional[str] = None", CheckResult.WARN),
        (("amd",), "cuda: Optional[str] = '13.0'", CheckResult.WARN),
        (("nvidia",), "not: python (", CheckResult.OK),
    ],
)
def test_a_build_of_torch_that_does_not_fit_the_gpu_is_told(
    drivers: tuple[str, ...], torch: str, verdict: CheckResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in drivers:
        (tmp_path / name).touch()
    (tmp_path / "version.py").write_text(torch)
    monkeypatch.setattr(checks, "NVIDIA_DRIVER", (tmp_path / "nvidia",))
    monkeypatch.setattr(checks, "AMD_DRIVER", tmp_path / "amd")
    monkeypatch.setattr(checks, "find_spec", lambda name: ModuleSpec(name, None, origin=str(tmp_path / "__init__.py")))
    check = checks.torch()
    assert check.verdict is verdict
    assert ("install" in check.remedy and "torch==" in check.remedy) == (verdict is CheckResult.WARN)


def test_memory_that_suffices_with_the_state_in_files_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    need = {place: memory_need(DEMO, Role.TRAINER, place=place).host for place in StatePlace}
    monkeypatch.setattr(checks, "available_memory", lambda: need[StatePlace.DISK])
    (memory,) = checks.memory(DEMO, Role.TRAINER, ON_CPU)
    assert memory.verdict is CheckResult.FAIL and "--state disk" in memory.remedy
    memory, steps = checks.memory(DEMO, Role.TRAINER, ON_CPU, StatePlace.DISK)
    assert memory.verdict is CheckResult.OK
    assert steps.value.startswith("training takes ") and steps.value.endswith("rows at a time")


def test_a_full_disk_fails_both_of_its_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        raise PeerError("less than 264 MB are free")

    monkeypatch.setattr(checks, "measure_disk", full)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1000}))
    found = checks.disk(tmp_path, DEMO)
    assert verdicts(found) == {"disk space": CheckResult.FAIL, "disk speed": CheckResult.FAIL}
    assert all("make room" in check.remedy for check in found)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 3 * DEMO.stored_bytes}))
    assert verdicts(checks.disk(tmp_path, DEMO))["disk space"] is CheckResult.OK
    assert verdicts(checks.disk(tmp_path, DEMO, 1))["disk space"] is CheckResult.FAIL


def test_a_clock_that_differs_from_others_is_named_with_the_remedy() -> None:
    check = checks.skewed("2 h 3 min behind the clocks of 5 peers")
    assert (check.name, check.verdict, check.value) == ("clock", CheckResult.WARN, "2 h 3 min behind the clocks of 5 peers")
    assert check.remedy == "set this computer's clock, which decides when invitations expire"


def test_a_clock_that_was_never_set_fails() -> None:
    assert checks.clock(0.0).verdict is CheckResult.FAIL


def test_training_is_measured_once_a_week_and_estimates_of_runs_use_the_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured = []

    async def measure() -> TrainingSpeed:
        measured.append(True)
        return SPEED

    def train(*, anew: bool = False) -> Check:
        check, pace = trio.run(lambda: examination.training(tmp_path, anew=anew))
        assert pace is not None and pace.computed_per_s(DEMO) == pytest.approx(SPEED.tokens_per_s)
        assert check.value.startswith("1.0 k tokens/s of the demo's model, ")
        return check

    monkeypatch.setattr(examination, "measure_training", measure)
    assert train().value.endswith("2 threads")
    assert "by `peer doctor`" in train().value and kept_pace(tmp_path) is not None
    assert len(measured) == 1
    train(anew=True)
    keep_pace(tmp_path, SPEED.tokens_per_s, SPEED.parameters, "`peer bench`", lambda: time.time() - examination.KEPT_S - 1)
    train()
    assert len(measured) == 3
    keep_pace(tmp_path, SPEED.tokens_per_s, SPEED.parameters, "an earlier run")
    assert "by an earlier run (--anew measures again)" in train().value


def test_a_wrong_invitation_and_a_check_that_raises_leave_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def measure() -> TrainingSpeed:
        return SPEED

    def broken() -> Check:
        raise RuntimeError("what nobody foresaw")

    def wrong(word: str | None, folder: Path, peer: PeerId) -> None:
        raise PeerError("the invitation is damaged; ask for it again")

    monkeypatch.setattr(examination, "measure_training", measure)
    monkeypatch.setattr(checks, "cores", broken)
    monkeypatch.setattr(checks, "measure_disk", lambda folder: (_ for _ in ()).throw(PeerError("x; y")))
    told = list[str]()
    monkeypatch.setattr(examination, "choose", wrong)
    carried_out = Examination(tmp_path, Preferences(), None, told.append)
    found = trio.run(carried_out.run)
    by_name = {check.name: check for check in found}
    assert by_name["run"].verdict is CheckResult.FAIL and by_name["run"].remedy == "ask for it again"
    assert by_name["cores"].verdict is CheckResult.UNKNOWN and "nobody foresaw" in by_name["cores"].value
    assert by_name["estimate"].verdict is CheckResult.OK
    assert "the swarm" not in told, "without a run nobody is visited"
    assert not may_take_part(found) and fields(found)["ok"] is False
    assert lines(found)[-1].startswith("This computer cannot take part yet: run")
