"""What each check says about a computer that lacks something, and that no check ends another."""

from __future__ import annotations

import importlib.util
import shutil
import time
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import trio

from peer.doctor import checks, examination
from peer.doctor.checks import Check, CheckResult, reachable
from peer.doctor.examination import Examination, estimate, fields, lines, may_take_part
from peer.errors import PeerError
from peer.measurements.speeds import TrainingSpeed
from peer.resources.check import TrainerDivision
from peer.resources.computer import StatePlace, memory_need, sole_process
from peer.resources.pace import FLOPS_A_PARAMETER, MeasuredPace, keep_pace, kept_pace
from peer.settings.preferences import Preferences
from protocol.run.manifest import demo_manifest
from protocol.transport.nat.reachability import AddressVerdict as Reached
from protocol.transport.nat.reachability import Reachability
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role
from trainer.environments import registry
from trainer.environments.packages import PackageMissing
from trainer.environments.sandbox import SandboxUnavailable
from trainer.extras import install_command

DEMO = demo_manifest().manifest
SPEED = TrainingSpeed(1000.0, "cpu", 2, DEMO.parameters, 10)
PACE = MeasuredPace(SPEED.tokens_per_s * DEMO.parameters * FLOPS_A_PARAMETER, 0.0, "")
FAR = "/ip4/93.184.216.34/tcp/4001"
ON_CPU = TrainerDivision(sole_process(None))


def verdicts(checks: list[Check]) -> dict[str, CheckResult]:
    return {check.name: check.verdict for check in checks}


def test_a_computer_without_a_gpu_is_told_and_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "free_gpu_memory", lambda: None)
    (check,) = checks.gpu()
    assert check.verdict is CheckResult.WARN and "CPU" in check.value and check.remedy


@pytest.mark.parametrize(
    ("drivers", "torch", "verdict"),
    [
        ((), "cuda: Optional[str] = None\nhip: Optional[str] = None", CheckResult.OK),
        (("nvidia",), "cuda: Optional[str] = '13.0'", CheckResult.OK),
        (("nvidia",), "cuda: Optional[str] = None", CheckResult.WARN),
        (("amd",), "cuda: Optional[str] = None\nhip: Optional[str] = '7.0.1'", CheckResult.OK),
        (("amd",), "cuda: Optional[str] = '13.0'", CheckResult.WARN),
        (("nvidia",), "not: python (", CheckResult.OK),
        ((), "cuda: Optional[str] = '13.0'", CheckResult.OK),
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


def test_memory_that_does_not_suffice_names_what_the_run_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "available_memory", lambda: 1 << 20)
    (memory,) = checks.memory(DEMO, Role.TRAINER, ON_CPU)
    assert memory.verdict is CheckResult.FAIL and memory.limit.startswith("at least") and "smaller run" in memory.remedy
    assert verdicts(checks.memory(DEMO, Role.TRAINER, TrainerDivision(sole_process(1), 1)))["gpu memory"] is CheckResult.FAIL


def test_memory_that_suffices_with_the_state_in_files_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    need = {place: memory_need(DEMO, Role.TRAINER, place=place).host for place in StatePlace}
    monkeypatch.setattr(checks, "available_memory", lambda: need[StatePlace.DISK])
    (memory,) = checks.memory(DEMO, Role.TRAINER, ON_CPU)
    assert memory.verdict is CheckResult.FAIL and "--state disk" in memory.remedy
    memory, steps = checks.memory(DEMO, Role.TRAINER, ON_CPU, StatePlace.DISK)
    assert memory.verdict is CheckResult.OK
    assert steps.value.startswith("training takes ") and steps.value.endswith("rows at a time")


def test_tasks_whose_package_is_missing_are_told_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.tasks("mixture(add, sort)") == Check("tasks", CheckResult.OK, "mixture(add, sort)")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    missing = checks.tasks('mixture(add, reasoning-gym(task="chain_sum"))')
    assert missing.verdict is CheckResult.FAIL and missing.value.endswith(
        "the package reasoning-gym, which is not installed"
    )
    assert missing.remedy == install_command("rl")
    assert "organiser" in checks.tasks("no-such-tasks").remedy


def test_a_package_that_does_not_work_is_told_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise PackageMissing("math-verify 0.9.0 is installed but does not work; ImportError: antlr4", "pip install it")

    monkeypatch.setattr(registry, "check_maths", broken)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    named = f'jsonl(path="tasks.jsonl", digest="{"0" * 32}")'
    for environment in (named, f"mixture(add, {named})"):
        check = checks.tasks(environment)
        assert check.verdict is CheckResult.FAIL and check.remedy == "pip install it"
        assert check.value == "math-verify 0.9.0 is installed but does not work; ImportError: antlr4"
    assert checks.tasks("add").verdict is CheckResult.OK


def test_programs_that_cannot_be_confined_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(environment: str) -> None:
        raise SandboxUnavailable("programs cannot be run safely here")

    monkeypatch.setattr(checks, "check_packages", unavailable)
    check = checks.tasks('verifiers(taskset="x")')
    assert check.verdict is CheckResult.FAIL and "safely" in check.value and "--role seed" in check.remedy


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


@pytest.mark.parametrize(
    ("verdict", "expected", "kind"),
    [(Reached.REACHABLE, CheckResult.OK, "forwards the port"), (Reached.UNREACHABLE, CheckResult.WARN, "lets nobody in")],
)
def test_what_peers_say_tells_the_router(verdict: Reached, expected: CheckResult, kind: str) -> None:
    first, router = reachable(Reachability({FAR: verdict}))
    assert first.verdict is expected and kind in router.value
    assert bool(first.remedy) == (expected is CheckResult.WARN)


def test_without_an_answer_it_is_unknown() -> None:
    assert [check.verdict for check in reachable(Reachability({}))] == [CheckResult.UNKNOWN]


def test_the_estimate_is_this_computers_part_of_all_tokens() -> None:
    alone = estimate(PACE, DEMO, {})
    assert "no other trainer" in alone.value
    among = estimate(PACE, DEMO, {PeerId("a"): 2000.0, PeerId("b"): 1000.0})
    assert "about 25 % of the swarm's tokens" in among.value


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


def test_each_check_has_the_five_fields_of_the_interface() -> None:
    (told,) = fields([checks.python()])["checks"]
    assert list(told) == ["name", "verdict", "value", "limit", "remedy"] and told["verdict"] == "ok"
