"""A run that does not fit is refused with numbers, for the peer and for its trainer, before anything is allocated."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Literal

import pytest

from peer.errors import ExitCode, PeerError
from peer.joining.purpose import beyond_capacity
from peer.resources import check, computer
from peer.resources.computer import (
    StatePlace,
    memory_need,
    offload_sentence,
    sole_process,
)
from peer.resources.requirements import need_lines
from protocol.events.events import Event, Notice
from protocol.formats.adapter import AdapterConfig
from protocol.formats.model import ModelConfig
from protocol.formatting import size
from protocol.run.manifest import RunManifest, demo_manifest
from protocol.run.run_file import parse_run_file
from protocol.run.sections import BaseFileSection, BaseSection, DataSection
from protocol.wire.identity import Identity
from protocol.wire.presence import Role
from trainer.memory import TrainerSetup

GB = 10**9
LARGE = parse_run_file('name = "large"\n[model]\ndim = 1024\nlayers = 15\n', Identity.from_seed(bytes(32)).peer_id)
"""176 M parameters."""
BILLIONS = parse_run_file(
    'name = "billions"\n[model]\ndim = 2048\nlayers = 33\nheads = 16\nkv_heads = 8\n', Identity.from_seed(bytes(32)).peer_id
)
"""1.5 billion parameters."""
ROLLOUTS = parse_run_file(
    'name = "roles"\n[rl]\nenvironment = "sort"\nmax_tokens = 256\nrow_tokens = 512\nmicro_batch_tokens = 2048\n',
    Identity.from_seed(bytes(32)).peer_id,
)


def test_weights_gradients_and_moments_are_counted() -> None:
    need, parameters = memory_need(LARGE), LARGE.parameters
    assert need.peer > 8.5 * parameters, "parameters and momentum in fp32, contribution in int4"
    assert need.trainer > 20 * parameters, "parameters, gradients, two moments and the residual in fp32"
    assert need.host < 38 * parameters, "and what both share is counted once"


EIGHT_BILLION = ModelConfig(
    vocab=151_936, dim=4096, layers=36, heads=32, kv_heads=8, ffn=12_288, head_dim=128, tied=False, qk_norm=True
)


def adapted(form: Literal["bf16", "int8", "int4"]) -> RunManifest:
    """A run with an adapter of rank 32 beside a model of 8.2 billion parameters, in rows of 2048 tokens."""
    sizes = {"config.json": 700, "model.safetensors": 16_381_470_720}
    files = [BaseFileSection(path=path, size=size, root="0" * 64) for path, size in sizes.items()]
    return RunManifest(
        name="adapted",
        organiser=BILLIONS.organiser,
        founders="anyone",
        model=EIGHT_BILLION,
        adapter=AdapterConfig(),
        base=BaseSection(files=files, format=form),
        data=DataSection(sequence_length=2048, sequences_per_step=4),
        chunk_parameters=1 << 20,
        checkpoint_chunk_bytes=1 << 20,
        total_tokens=200_000_000,
    )


@pytest.mark.parametrize(("form", "gigabytes"), [("bf16", 21.9), ("int4", 11.6)])
def test_an_adapter_beside_8_billion_parameters_fits_the_cards_of_volunteers(
    monkeypatch: pytest.MonkeyPatch, form: Literal["bf16", "int8", "int4"], gigabytes: float
) -> None:
    run = adapted(form)
    need = memory_need(run, setup=TrainerSetup("cuda"))
    assert run.parameters == 87_293_952 and need.gpu == pytest.approx(gigabytes * GB, rel=0.03)
    assert memory_need(run, Role.SEED).host < GB, "a seed holds the factors in memory, and the model as files"
    assert beyond_capacity(run) and not beyond_capacity(run.model_copy(update={"total_tokens": 100_000_000}))


@pytest.mark.parametrize(("form", "gigabytes", "beside"), [("bf16", 7.3, 23.3), ("int4", 6.8, 10.4)])
def test_frozen_layers_wait_in_the_computers_memory_if_a_card_is_too_small(
    monkeypatch: pytest.MonkeyPatch, form: Literal["bf16", "int8", "int4"], gigabytes: float, beside: float
) -> None:
    run, told = adapted(form), list[Event]()
    alone, offloading = (memory_need(run, setup=TrainerSetup("cuda", offload=offload)) for offload in (False, True))
    assert offloading.gpu == pytest.approx(gigabytes * GB, rel=0.01) and alone.gpu > 11 * GB
    assert offloading.host == pytest.approx(beside * GB, rel=0.01)
    monkeypatch.setattr(check, "free_gpu_memories", lambda: [alone.gpu - 1])
    monkeypatch.setattr(check, "available_memory", lambda: offloading.host)
    division = check.check_division(run, Role.TRAINER, None, None)
    check.check_memory(run, Role.TRAINER, "ram", told.append, division)
    assert division.setup.offload and not check.check_division(run, Role.TRAINER, None, None, "off").setup.offload
    (notice,) = (each.text for each in told if isinstance(each, Notice))
    assert notice == offload_sentence(run, alone.gpu - 1, offloading, offloading.host)
    assert notice.startswith("a frozen model of 8.2 G parameters on a GPU with ")
    monkeypatch.setattr(check, "available_memory", lambda: offloading.host - 1)
    with pytest.raises(PeerError, match="lie in the computer's memory, of which"):
        check.check_memory(run, Role.TRAINER, "ram", told.append, division)
    monkeypatch.setattr(check, "free_gpu_memories", lambda: [alone.gpu])
    assert not check.check_division(run, Role.TRAINER, None, None).setup.offload
    assert check.check_division(run, Role.TRAINER, None, None, "on").setup.offload
    (gpus,) = (said for subject, said in need_lines(run) if subject == "GPUs")
    assert f"or, with the layers of the frozen model in the computer's memory (--offload), {size(offloading.gpu)} of" in gpus


def test_validators_copy_frozen_layers_too_and_generators_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    run = adapted("int4").model_copy(update={"rl": ROLLOUTS.rl})
    monkeypatch.setattr(check, "free_gpu_memories", lambda: [GB])
    monkeypatch.setattr(check, "available_memory", lambda: 100 * GB)
    offloads = {role: check.check_division(run, role, None, None).setup.offload for role in Role}
    assert offloads == {Role.TRAINER: True, Role.VALIDATOR: True, Role.ROLLOUT: False, Role.SEED: False}
    with pytest.raises(PeerError, match="reads the whole frozen model for each token"):
        check.check_division(run, Role.ROLLOUT, None, None, "on")
    told, need = list[Event](), memory_need(run, Role.VALIDATOR, TrainerSetup("cuda", offload=True))
    monkeypatch.setattr(check, "free_gpu_memories", lambda: [need.gpu])
    check.check_memory(run, Role.VALIDATOR, "ram", told.append, check.check_division(run, Role.VALIDATOR, None, None, "on"))
    assert [each.text for each in told if isinstance(each, Notice)] == [offload_sentence(run, need.gpu, need, 100 * GB)]
    assert not check.check_division(ROLLOUTS, Role.VALIDATOR, None, None, "on").setup.offload, "it has no frozen layers"


@pytest.mark.parametrize(("form", "offloads"), [("bf16", True), ("int8", False), ("int4", False)])
def test_a_cpu_that_is_short_of_memory_leaves_frozen_layers_in_their_files(
    monkeypatch: pytest.MonkeyPatch, form: Literal["bf16", "int8", "int4"], offloads: bool
) -> None:
    run, told = adapted(form), list[Event]()
    whole, offloading = (memory_need(run, setup=TrainerSetup(offload=offload)).host for offload in (False, True))
    assert not offloads or offloading < whole - 24 * GB
    monkeypatch.setattr(check, "free_gpu_memories", list)
    monkeypatch.setattr(check, "sole_process", lambda gpu: TrainerSetup())
    for available, expected in ((whole - 1, offloads), (whole, False)):
        monkeypatch.setattr(check, "available_memory", lambda available=available: available)
        assert check.check_division(run, Role.TRAINER, None, None).setup.offload is expected
    assert check.check_division(run, Role.TRAINER, None, None, "on").setup.offload is offloads
    if offloads:
        check.check_memory(run, Role.TRAINER, "ram", told.append, check.check_division(run, Role.TRAINER, None, None, "on"))
        (notice,) = (each.text for each in told if isinstance(each, Notice))
        assert notice.endswith("and the frozen layers are read from their files")


def test_refused_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Event] = []
    monkeypatch.setattr(check, "free_gpu_memory", lambda: None)
    monkeypatch.setattr(check, "available_memory", lambda: 3 * GB)
    check.check_memory(demo_manifest().manifest, Role.TRAINER, "auto", told.append)
    with pytest.raises(PeerError, match=r"in the trainer\), with its state in files, and 3.0 GB are free") as refused:
        check.check_memory(LARGE, Role.TRAINER, "auto", told.append)
    assert refused.value.exit_code is ExitCode.RESOURCES
    (notice,) = told
    assert isinstance(notice, Notice) and notice.text.startswith("training takes ")
    assert check.check_memory(LARGE, Role.SEED, "auto", told.append) is StatePlace.RAM
    assert told == [notice]


def test_auto_takes_files_if_memory_is_short_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Event] = []
    need = memory_need(LARGE).host
    monkeypatch.setattr(check, "free_gpu_memory", lambda: None)
    for available, place in ((need, StatePlace.RAM), (need - 1, StatePlace.DISK)):
        monkeypatch.setattr(check, "available_memory", lambda available=available: available)
        assert check.check_memory(LARGE, Role.TRAINER, "auto", told.append) is place
    (notice,) = (each for each in told if isinstance(each, Notice) and "so the state lies in files" in each.text)
    assert 'state = "ram"' in notice.text
    told.clear()
    assert check.check_memory(LARGE, Role.TRAINER, "disk", told.append) is StatePlace.DISK and len(told) == 1
    with pytest.raises(PeerError, match=r"keep the state in files \(--state disk, "):
        check.check_memory(LARGE, Role.TRAINER, "ram", told.append)


def test_peers_that_start_together_must_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "free_gpu_memory", lambda: None)
    monkeypatch.setattr(check, "available_memory", lambda: 3 * memory_need(LARGE).host)
    check.check_together(LARGE, 3)
    with pytest.raises(PeerError, match="4 peers need about") as refused:
        check.check_together(LARGE, 4)
    assert refused.value.exit_code is ExitCode.RESOURCES


@pytest.mark.parametrize(
    ("gpus", "processes", "here", "sentence"),
    [
        ("all", None, [8 * GB] * 4, None),
        ("0,1", None, [80 * GB, GB // 2, GB, 80 * GB], "of the memory of each of 2 GPUs and 500.0 MB are free there"),
        ("4", None, [80 * GB] * 4, "--gpus 4 names GPUs that this computer does not have .it has 4"),
        ("all", None, [], "it has none, numbered from 0"),
        (None, 2, [], None),
        ("0,1", 2, [80 * GB] * 2, "each GPU has one process"),
    ],
)
def test_a_trainer_of_several_processes(
    monkeypatch: pytest.MonkeyPatch, gpus: str | None, processes: int | None, here: list[int], sentence: str | None
) -> None:
    monkeypatch.setattr(check, "free_gpu_memories", lambda: here)
    monkeypatch.setattr(check, "available_memory", lambda: 1000 * GB)
    with nullcontext() if sentence is None else pytest.raises(PeerError, match=sentence):
        division = check.check_division(LARGE, Role.TRAINER, gpus, processes)
        check.check_memory(LARGE, Role.TRAINER, "ram", lambda event: None, division)
    assert check.check_division(LARGE, Role.SEED, gpus, processes) == check.TrainerDivision(sole_process(None))


def test_a_trainer_offloads_what_its_gpu_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, offloading = (memory_need(LARGE, setup=TrainerSetup("cuda", offload=offload)) for offload in (False, True))
    assert offloading.gpu < alone.gpu and offloading.host > alone.host + 16 * LARGE.parameters - GB
    monkeypatch.setattr(check, "free_gpu_memories", lambda: [offloading.gpu, alone.gpu - 1])
    monkeypatch.setattr(check, "available_memory", lambda: offloading.host)
    told: list[Event] = []
    division = check.check_division(LARGE, Role.TRAINER, None, None)
    check.check_memory(LARGE, Role.TRAINER, "ram", told.append, division)
    assert division.setup.offload and division.gpus == "1"
    assert [each.text for each in told if isinstance(each, Notice)] == [
        offload_sentence(LARGE, alone.gpu - 1, offloading, offloading.host)
    ]
    monkeypatch.setattr(check, "available_memory", lambda: offloading.host - 1)
    with pytest.raises(PeerError, match="parameters and optimiser lie in the computer's memory, of which"):
        check.check_memory(LARGE, Role.TRAINER, "ram", told.append, division)
    monkeypatch.setattr(check, "free_gpu_memories", lambda: [alone.gpu])
    for wanted, offloads in (("auto", False), ("on", True), ("off", False)):
        assert check.check_division(LARGE, Role.TRAINER, None, None, wanted).setup.offload is offloads


def test_only_what_trains_has_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "free_gpu_memories", list)
    assert check.check_division(ROLLOUTS, Role.TRAINER, None, 2).setup.ranks == 2
    for role in (Role.ROLLOUT, Role.VALIDATOR):
        with pytest.raises(PeerError, match="has one process"):
            check.check_division(ROLLOUTS, role, None, 2)


class Driver(SimpleNamespace):
    """A stand-in for NVIDIA's library with two GPUs."""

    class NVMLError(Exception):
        pass

    def __init__(self, *free: int, broken: bool = False) -> None:
        def init() -> None:
            if broken:
                raise self.NVMLError("no driver")

        super().__init__(
            nvmlInit=init,
            nvmlShutdown=lambda: None,
            nvmlDeviceGetCount=lambda: len(free),
            nvmlDeviceGetHandleByIndex=lambda index: index,
            nvmlDeviceGetMemoryInfo=lambda index: SimpleNamespace(free=free[index], total=1 << 40),
        )


@pytest.mark.parametrize(
    ("torch", "visible", "driver", "expected"),
    [
        ("2.13.0", None, Driver(3 * GB, 5 * GB), 5 * GB),
        ("2.13.0+cpu", None, Driver(3 * GB), None), ("2.13.0", "", Driver(3 * GB), None),
        ("2.13.0", "1", Driver(3 * GB, 2 * GB), 2 * GB),
        ("2.13.0", None, Driver(), None),
        ("2.13.0", None, Driver(broken=True), None),
    ],
)  # fmt: skip
def test_the_gpu_that_a_trainer_would_use(
    monkeypatch: pytest.MonkeyPatch, torch: str, visible: str | None, driver: Driver, expected: int | None
) -> None:
    monkeypatch.setattr(computer, "version", lambda name: torch)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert computer.free_gpu_memory() == expected
