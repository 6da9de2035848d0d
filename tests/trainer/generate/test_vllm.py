"""vLLM's generator gives what the built-in one gives, if vLLM keeps to its documented interface (`vllm_stand_in`)."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from protocol.formats.adapter import AdapterConfig, adapter_layout
from protocol.formats.model import parameter_layout
from tests.tiers import crossed
from tests.trainer.generate import vllm_stand_in
from tests.trainer.generate.naive import CPU, FAMILIES, parameters, requests, write
from tests.trainer.weights.models import in_blocks
from trainer.generate.choice import GeneratorName, choose_generator
from trainer.generate.generator import Reply, Request, Slots, complete
from trainer.generate.vllm import NotReloaded, VllmEngine, _memory
from trainer.models.llama.model import FrozenBase
from trainer.weights.folder import write_folder
from trainer.weights.safetensors_file import ExportFormat

LENGTH = 141
ADAPTER = AdapterConfig(rank=8, alpha=16)
CONFIG = FAMILIES["qwen3"]
CLOSE = 2e-4
"""More than the rounding of sums changes logits by."""


def rounded(seed: int = 0, family: str = "qwen3") -> torch.Tensor:
    """Parameters that bf16 holds exactly."""
    return parameters(FAMILIES[family], seed).bfloat16().float()


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_stand_in.install(monkeypatch)


def engine(
    slots: int, family: str = "qwen3", temperature: float = 1.0, reply: Reply | None = None, **settings: Any
) -> VllmEngine:
    made = VllmEngine(FAMILIES[family], CPU, Slots(slots, LENGTH), reply=reply, **settings)
    made.temperature = temperature
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("family", "temperature", "is_v2"), crossed(FAMILIES, [0.8, 0.0], [True, False]))
def test_tokens_are_those_of_full_recomputation_with_our_noise(family: str, temperature: float, is_v2: bool) -> None:
    config, flat = FAMILIES[family], rounded(family=family)
    generator = engine(3, family, temperature, use_v2_model_runner=is_v2)
    generator.load(flat)
    wanted = requests(config, 7, most=20)
    got = {completion.id: completion for completion in complete(generator, wanted)}
    for request in wanted:
        written = write(config, flat, request, temperature)
        assert written.margin > CLOSE
        one = got[request.id]
        assert (one.output, one.made) == (written.output, written.made)
        assert one.hidden is not None and one.hidden.dtype == torch.bfloat16
        errors = (one.hidden.float() - written.hidden.float()).norm(dim=1) / written.hidden.float().norm(dim=1)
        assert errors.mean() < 0.05


@pytest.mark.slow
def test_turns_continue_with_what_the_environment_said() -> None:
    def reply(request: Request, output: tuple[int, ...], made: tuple[bool, ...]) -> tuple[int, ...] | None:
        return (9, 8, 7) if made.count(False) < 6 else None

    flat, ends = rounded(), tuple(range(7, 300, 40))
    wanted = [Request(each.id, each.prompt[:40], each.key, 90, ends) for each in requests(CONFIG, 4, seed=2)]
    generator = engine(2, reply=reply)
    generator.load(flat)
    got = {completion.id: completion for completion in complete(generator, wanted)}
    written = [write(CONFIG, flat, request, reply=reply) for request in wanted]
    assert min(each.margin for each in written) > CLOSE
    assert [(got[n].output, got[n].made) for n in range(4)] == [(each.output, each.made) for each in written]
    assert any(each.made.count(False) == 6 for each in written)


def published(folder: Path, family: str, adapter: AdapterConfig = ADAPTER) -> FrozenBase:
    """A frozen model with its files."""
    config, flat = FAMILIES[family], rounded(family=family)
    folder.mkdir()
    write_folder(folder, config, in_blocks(flat.numpy()), ExportFormat.FP32, context=LENGTH, eos=None)
    places = parameter_layout(config)
    tensors = {each.name: flat[each.offset :][: each.count].view(each.shape) for each in places}
    files = {path.name: path for path in folder.iterdir()}
    return replace(FrozenBase.whole(adapter, tensors), files=files)


def factors(base: FrozenBase, seed: int, family: str = "qwen3") -> torch.Tensor:
    place = adapter_layout(FAMILIES[family], base.adapter)[-1]
    draw = torch.Generator().manual_seed(seed)
    return (torch.randn(place.offset + place.count, generator=draw) / 8).bfloat16().float()


@pytest.mark.slow
@pytest.mark.parametrize(("family", "rank"), [("qwen2", 12), ("qwen3", 1)])
def test_each_version_of_factors_is_an_adapter_of_its_own_beside_the_published_model(
    family: str, rank: int, tmp_path: Path
) -> None:
    base = published(tmp_path / "base", family, AdapterConfig(rank=rank, alpha=2 * rank))
    generator, wanted = engine(2, family, base=base), requests(FAMILIES[family], 3, most=20)
    for seed in (1, 2, 1):
        generator.load(flat := factors(base, seed, family))
        got = {completion.id: completion.output for completion in complete(generator, wanted)}
        written = [write(FAMILIES[family], flat, each, base=base) for each in wanted]
        assert min(each.margin for each in written) > CLOSE
        assert [got[each.id] for each in wanted] == [each.output for each in written], seed
    generator.submit(wanted[0])
    with pytest.raises(ValueError, match="only while no request waits or runs"):
        generator.load(factors(base, 2, family))
    folder = Path(generator._adapters.request.lora_path) if generator._adapters is not None else tmp_path
    generator.close()
    assert not folder.exists()


@pytest.mark.parametrize("stale", ["adapters", "first adapter"])
def test_an_adapter_that_vllm_does_not_compute_with_is_found_before_the_first_version(stale: str, tmp_path: Path) -> None:
    base = published(tmp_path / "base", "qwen3")
    generator = engine(1, base=base, stale=stale)
    with pytest.raises(NotReloaded, match="set generator = builtin"):
        generator.load(factors(base, 1) * 0)  # which changes nothing that could be compared
    with pytest.raises(ValueError, match="needs parameters"):
        generator.advance()
    generator.close()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_tensor_that_keeps_its_old_weights_is_found_at_the_swap(family: str) -> None:
    decoder = engine(1, family)._reference.model
    matrices = [name for name, tensor in decoder.tensors.items() if tensor.dim() == 2]
    assert len(matrices) > 10
    for name in matrices:
        vllm_stand_in.LLMEngine.alive.clear()
        with pytest.raises(NotReloaded, match="set generator = builtin"):
            engine(1, family, stale=name).load(rounded(family=family))


@pytest.mark.slow
def test_an_engine_is_closed_before_the_next_is_made_which_has_each_version_of_the_weights() -> None:
    first = engine(1)
    with pytest.raises(AssertionError, match="parallel group"):
        engine(1)
    first.close()
    config = CONFIG.changed(context=64)  # made for less than is wanted of it
    generator, wanted = VllmEngine(config, CPU, Slots(1, LENGTH)), Request(0, tuple(range(90)), 5, 40, ())
    for seed in (0, 1):
        generator.load(flat := rounded(seed=seed))
        assert [each.output for each in complete(generator, [wanted])] == [write(CONFIG, flat, wanted).output]


@pytest.mark.parametrize(
    ("wanted", "has_gpu", "installed", "chosen"),
    [
        ("auto", True, True, "vllm"),
        ("auto", True, False, "builtin"),
        ("auto", False, True, "builtin"),
        ("builtin", True, True, "builtin"),
        ("vllm", False, True, "vllm"),
        ("vllm", True, False, None),
    ],
)
def test_the_generator_follows_from_the_setting_the_gpu_and_what_is_installed(
    wanted: str, has_gpu: bool, installed: bool, chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.generate.choice.vllm_is_installed", lambda: installed)
    if chosen is None:
        with pytest.raises(ImportError, match="set generator = builtin"):
            choose_generator(GeneratorName(wanted), has_gpu)
    else:
        assert choose_generator(GeneratorName(wanted), has_gpu)[0] == chosen


def test_keys_and_values_of_the_weights_before_are_not_gone_on_with() -> None:
    generator = engine(1)
    generator._vllm.can_reset = False
    with pytest.raises(RuntimeError, match="keys and values of the previous weights"):
        generator.load(rounded())


@pytest.mark.parametrize(("device", "free"), [("cpu", 0), ("cuda", 1 << 30), ("cuda", 1 << 10)])
def test_vllm_takes_the_memory_that_the_sequences_need_and_not_all(
    device: str, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 4 << 30))
    sequence = LENGTH * CONFIG.layers * 2 * CONFIG.kv_width * 2
    memory = _memory(torch.device(device), CONFIG, 2, LENGTH)
    sequences = 1 if free == 1 << 10 else 2
    assert sequences * sequence < memory.pop("kv_cache_memory_bytes") < 4 * sequences * sequence
    assert memory == ({"gpu_memory_utilization": pytest.approx(0.92 * free / (4 << 30))} if device == "cuda" else {})


def test_without_vllm_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError, match=r"set generator = builtin, or run .* install .*'vllm>="):
        engine(1)
