"""What a trainer's memory is estimated from is what torch really keeps."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.schedule import Place
from protocol.formats.model import ModelConfig
from protocol.formats.rl import RlConfig
from tests.trainer import small
from trainer import memory
from trainer.config import TrainingConfig
from trainer.data.rows import Rows
from trainer.memory import StepPlan, TrainerSetup, cpu_plan, trainer_memory
from trainer.models.llama.model import Decoder
from trainer.optim import InnerLoop, PendingLoss
from trainer.parameters import WholeParameters

SHAPE = ModelConfig.from_mapping(small.MODEL | {"dim": 64, "heads": 4, "kv_heads": 2, "ffn": 160, "layers": 3})
CPU, GPU = TrainerSetup(), TrainerSetup("cuda")


def config(model: ModelConfig = SHAPE, length: int = 64, rows: int = 4) -> TrainingConfig:
    base = small.config()
    return replace(base, model=model, data=base.data.changed(sequence_length=length, sequences_per_step=rows))


def values_kept(model: Decoder) -> float:
    """Values of each token that autograd keeps, of 4 rows of 64 tokens."""
    kept: dict[int, int] = {}
    alive = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() != model.flat.untyped_storage().data_ptr():
            kept[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)  # so that no other one gets its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.zeros(4, 64, dtype=torch.int64))
    return sum(kept.values()) / (4 * 4 * 64)


@pytest.mark.parametrize("change", [{}, {"layers": 7}, {"kv_heads": 4}])
def test_values_kept_for_the_backward_pass(change: dict[str, int]) -> None:
    shape = ModelConfig.from_mapping({**vars(SHAPE), **change})
    assert values_kept(Decoder(shape, small.CPU)) == pytest.approx(memory._saved_bytes(shape, bf16=False) / 4, rel=0.05)


def test_a_cpu_computes_layers_again_only_if_one_sequence_needs_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    one = 64 * memory._saved_bytes(SHAPE, bf16=False)
    monkeypatch.setattr(memory, "ACTIVATION_BYTES", one - 1)
    plans = []
    for limit in (one, one - 1, 0):
        monkeypatch.setattr(memory, "KEPT_BYTES", limit)
        plans.append(cpu_plan(SHAPE, 64))
    assert plans == [StepPlan(1, 0), StepPlan(1, 2), StepPlan(1, 3)], "with one, the values of one layer come on top"


def test_a_cpu_computes_as_many_sequences_at_once_as_were_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelConfig.from_mapping(small.MODEL)
    loop, parts = InnerLoop(WholeParameters(Decoder(model, small.CPU)), small.config().inner), []
    accumulate = loop._accumulate

    def noted(rows: Rows, part: int) -> PendingLoss:
        parts.append(part)
        return accumulate(rows, part)

    monkeypatch.setattr(loop, "_accumulate", noted)
    rows = Rows(np.zeros((8, 17), dtype=np.uint8))
    one = 16 * memory._saved_bytes(model, bf16=False)
    for limit in (100 * one, 3 * one, one - 1):
        monkeypatch.setattr(memory, "ACTIVATION_BYTES", limit)
        loop.step(rows, Place(0, 0.0))
    assert parts == [8, 3, 1]


def test_a_gpu_needs_room_for_one_sequence_and_the_computer_none_for_parameters() -> None:
    large = SHAPE.changed(dim=1024, heads=16, ffn=2816, layers=20)
    need, other = trainer_memory(config(large), GPU), trainer_memory(config(large, rows=64), GPU)
    assert need == other
    assert need.device > 16 * large.parameters
    assert need.host == trainer_memory(config(), GPU).host


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_streamed_run_keeps_a_copy_of_a_fragment(optimizer: str) -> None:
    plain = replace(config(), inner=config().inner.changed(optimizer=optimizer))
    copies = [
        trainer_memory(replace(plain, fragments=fragments, delay=2), CPU).host - trainer_memory(plain, CPU).host
        for fragments in (1, 4)
    ]
    assert copies == [4 * SHAPE.parameters, SHAPE.parameters]
    pairs = replace(plain, data=plain.data.changed(format="preference"))
    for setup in (CPU, GPU):
        needs = [trainer_memory(each, setup) for each in (plain, pairs)]
        assert needs[1].host + needs[1].device >= needs[0].host + needs[0].device, "pairs need room"


def test_the_estimate_needs_no_torch() -> None:
    code = "import sys, trainer.memory; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("device", "bytes_each"), [("cpu", 2), ("cuda", 0)])
def test_reference_weights_take_the_place_of_the_gradient(device: str, bytes_each: int) -> None:
    """On a CPU the pages of their file count."""
    model = SHAPE.changed(dim=1024, heads=16, ffn=2816, layers=20, vocab=256)
    rl = RlConfig(max_tokens=16, row_tokens=32, micro_batch_tokens=32, loss="clip")
    without = trainer_memory(replace(config(model), rl=rl), TrainerSetup(device))
    having = trainer_memory(replace(config(model), rl=rl.changed(kl_weight=0.1)), TrainerSetup(device))
    assert 0 <= having.host - without.host + having.device - without.device <= bytes_each * model.parameters
    assert having == trainer_memory(replace(config(model), rl=rl.changed(loss="tis")), TrainerSetup(device))
    whole, half = (memory._comparing_bytes(config(each), 32, device) for each in (model, model.changed(layers=10)))
    weights = whole - half
    assert weights == bytes_each * (model.parameters - model.changed(layers=10).parameters)
