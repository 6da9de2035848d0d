"""Rollouts of a frozen model with factors beside it, which are made, judged and learned from with one base and version."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.quantizer import quantize
from kernels.weight_format import WeightFormat
from protocol.formats.adapter import BASE_PREFIX, AdapterConfig, adapter_layout, adapter_parameters
from protocol.formats.model import ModelConfig, parameter_layout
from protocol.formats.rl import RlConfig
from tests.trainer import small
from tests.trainer.rl.honest import CPU, FAMILIES, TOKENIZER, Letters, parameters
from tests.trainer.weights.models import in_blocks
from trainer.config import TrainingConfig
from trainer.generate.choice import GeneratorName
from trainer.models.llama.initial import initial_parameters
from trainer.models.llama.model import AdaptedLinear, Decoder, FrozenBase
from trainer.rl.learner import Learner
from trainer.rl.verification import Assignment
from trainer.rl.worker import RolloutTasks, RolloutWorker
from trainer.weights.base import load_base
from trainer.weights.folder import write_folder
from trainer.weights.safetensors_file import ExportFormat
from trainer.worker import Done, Task, Worker

RL = RlConfig(max_tokens=24, row_tokens=64, micro_batch_tokens=256, top_k=32, chunk_tokens=8)
ASSIGNED = Assignment(b"run", 5, "12D3KooWworker", (7, 4), 8)
ROLLOUTS = 16
ADAPTER = AdapterConfig(rank=8, alpha=16)
LLAMA = FAMILIES["llama"]
PRECISIONS = (torch.float32, torch.bfloat16)


def factors(config: ModelConfig, strength: float = 0.1, seed: int = 3, adapter: AdapterConfig = ADAPTER) -> np.ndarray:
    """Factors whose B is normal with this standard deviation; at 0.1, their products are a tenth of the base's."""
    values = np.empty(adapter_parameters(config, adapter), np.float32)
    initial_parameters(config, seed, values, adapter)
    draw = np.random.default_rng(seed)
    for place in adapter_layout(config, adapter):
        if place.name.endswith("lora_B.weight"):
            values[place.offset : place.offset + place.count] = strength * draw.standard_normal(place.count)
    return values


@cache
def frozen(config: ModelConfig, dtype: torch.dtype, seed: int = 3) -> FrozenBase:
    flat = torch.from_numpy(parameters(config, seed)).to(dtype)
    places = parameter_layout(config)
    return FrozenBase.whole(ADAPTER, {each.name: flat[each.offset :][: each.count].view(each.shape) for each in places})


def quantised(base: FrozenBase) -> FrozenBase:
    """The same base in int4."""
    matrices = {name: each for name, each in base.tensors.items() if name.endswith("_proj.weight")}
    scratch = torch.empty(max(each.numel() for each in matrices.values()), dtype=base.dtype)
    return replace(
        base,
        tensors={name: each for name, each in base.tensors.items() if name not in matrices},
        matrices={name: quantize(each.float(), WeightFormat.INT4) for name, each in matrices.items()},
        scratch=scratch,
    )


def worker(base: FrozenBase, values: np.ndarray, config: ModelConfig = LLAMA) -> RolloutWorker:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.rl.worker.default_dtype", lambda device: base.dtype)
        made = RolloutWorker(RL, config, RolloutTasks(Letters(), TOKENIZER), CPU, base=base)
    made.keep_version(ASSIGNED.version, values)
    return made


def merged(base: FrozenBase, values: np.ndarray, dtype: torch.dtype) -> RolloutWorker:
    """A worker whose model is one matrix for each projection: the base plus the factors, rounded to bf16."""
    model = Decoder(LLAMA, CPU, torch.from_numpy(values).bfloat16().to(base.dtype), base)
    sums = {name: tensor.detach().float() for name, tensor in base.tensors.items()}
    for name, module in model.named_modules():
        if isinstance(module, AdaptedLinear):
            added = module.lora_B.weight.float() @ module.lora_A.weight.float()
            sums[f"{name}.weight"] = sums[f"{name}.weight"] + ADAPTER.scale * added.detach()
    whole = np.concatenate([sums[each.name].bfloat16().float().numpy().ravel() for each in parameter_layout(LLAMA)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.rl.worker.default_dtype", lambda device: dtype)
        made = RolloutWorker(RL, LLAMA, RolloutTasks(Letters(), TOKENIZER), CPU)
    made.keep_version(ASSIGNED.version, whole)
    return made


def refused(author: RolloutWorker, judge: RolloutWorker, path: Path) -> int:
    author.generate(ASSIGNED, path)
    verdicts = judge.verify(ASSIGNED, path)
    assert len(verdicts) == ROLLOUTS
    return sum(each.reason is not None for each in verdicts)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("making", PRECISIONS, ids=str)
def test_rollouts_are_accepted_by_those_with_the_same_base_and_factors(
    family: str, making: torch.dtype, tmp_path: Path
) -> None:
    config = FAMILIES[family]
    author = worker(frozen(config, making), factors(config), config)
    for judging in PRECISIONS:
        assert refused(author, worker(frozen(config, judging), factors(config), config), tmp_path / "batch") == 0, judging


@pytest.mark.slow
@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
def test_rollouts_of_another_base_or_of_factors_that_have_since_changed_much_are_refused(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    values = factors(LLAMA, 0.3)
    judge, path = worker(frozen(LLAMA, dtype), values), tmp_path / "batch"
    others = {
        "another base": worker(frozen(LLAMA, dtype, seed=4), values),
        "another version": worker(frozen(LLAMA, dtype), factors(LLAMA, 0.3, seed=4)),
        "no factors": worker(frozen(LLAMA, dtype), factors(LLAMA, 0.0)),
    }
    assert {name: refused(author, judge, path) for name, author in others.items()} == dict.fromkeys(others, ROLLOUTS)


def test_rollouts_of_a_base_in_another_format_are_refused(tmp_path: Path) -> None:
    whole, values, path = frozen(LLAMA, torch.float32), factors(LLAMA, 0.3), tmp_path / "batch"
    author = worker(quantised(whole), values)
    assert refused(author, worker(quantised(frozen(LLAMA, torch.bfloat16)), values), path) == 0
    assert refused(author, worker(whole, values), path), "and one sets the author aside; how many depends on the noise"


@pytest.mark.parametrize("making", PRECISIONS, ids=str)
def test_factors_merged_into_a_bf16_model_are_within_the_tolerance_of_rounding(making: torch.dtype, tmp_path: Path) -> None:
    """So a peer can generate with them, and nobody finds it."""
    base, values = frozen(LLAMA, torch.float32), factors(LLAMA, 0.3)
    assert refused(merged(base, values, making), worker(base, values), tmp_path / "batch") == 0


# -- of a run ------------------------------------------------------------------------------------------------------------


SHORT = RlConfig(
    max_tokens=6,
    row_tokens=64,
    micro_batch_tokens=512,
    optimizer_steps=1,
    lr=1e-2,
    warmup_steps=0,
    kl_weight=0.1,
    drop_zero_advantage=False,
)
SORTED = Assignment(b"run", 5, "12D3KooWme", (5, 9), 3)


@pytest.fixture
def config(tmp_path: Path) -> TrainingConfig:
    """Of a run whose base was published in fp32, with values that bf16 does not have."""
    model, folder = ModelConfig.from_mapping(small.MODEL), tmp_path / "base"
    folder.mkdir()
    write_folder(folder, model, in_blocks(small.theta()), ExportFormat.FP32, context=64, eos=None)
    files = {f"{BASE_PREFIX}{path.name}": str(path) for path in folder.iterdir()}
    shape = small.config(environment="sort", adapter=ADAPTER.model_dump(), files=dict(small.SECTIONS["files"]) | files)
    return replace(shape, rl=SHORT)


def learnt_from(trainer: Worker, run: RolloutWorker, theta: np.ndarray, path: Path, ahead: float = 1.0) -> Done:
    """What factors `ahead` times a version's learn from a batch that is made with the version."""
    run.keep_version(SORTED.version, theta)
    run.generate(SORTED, path)
    assert [each.reason for each in run.verify(SORTED, path)] == [None] * 6
    out = memoryview(bytearray(trainer.layout.payload_bytes))
    task = Task(SORTED.version + 1, [], 1, 0, [path.name], str(path.parent), versions=[SORTED.version])
    return run.learn(task, Learner(run.config, trainer.work), theta * np.float32(ahead), out, lambda *_: False)


def test_a_version_learns_factors_alone_and_is_compared_with_the_base_without_a_file(
    config: TrainingConfig, tmp_path: Path
) -> None:
    trainer = Worker(config, CPU, dtype=torch.float32)
    base = trainer.model.base
    assert base is not None
    run, before = RolloutWorker.of(config, CPU, base=base), {name: each.clone() for name, each in base.tensors.items()}
    initial = factors(config.model, 0.0)
    first = learnt_from(trainer, run, initial, tmp_path / "first")
    assert first.kl == 0.0, "B is 0, so the factors change nothing"
    moved = trainer.model.flat.numpy().copy()
    assert not np.array_equal(moved, initial) and len(moved) == config.parameters < config.model.parameters
    assert all(torch.equal(base.tensors[name], each) for name, each in before.items())
    later = [learnt_from(trainer, run, factors(config.model, 0.5), tmp_path / "later", ahead) for ahead in (1.0, 1.2)]
    assert later[0].kl is not None and later[0].kl > 0.0
    stale = [each.policy.behaviour_kl for each in later if each.policy is not None]
    assert stale[0] is not None and stale[1] is not None and 0.0 < stale[0] < stale[1] < later[0].kl, "bf16 moves less"


def test_vllm_is_refused_for_weights_that_it_does_not_have(config: TrainingConfig) -> None:
    quantised = replace(config, base_format="int8")
    with pytest.raises(ValueError, match="int8 weights; set generator = builtin"):
        RolloutWorker.of(quantised, CPU, generator=GeneratorName.VLLM, base=load_base(config, CPU, torch.float32))
