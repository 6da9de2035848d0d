"""What stands in vLLM's place in tests: as much of its documented interface as is used, over our decoder in fp32.

Like vLLM it numbers requests by slots that are used again, computes the rows of a step in an order of its own, keeps a
request's end token in its output, and hands the requests of the logits processor over before the step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from protocol.formats.adapter import PROJECTIONS, AdapterConfig, adapter_layout
from protocol.formats.model import ModelConfig
from tests.trainer.generate.naive import CPU
from trainer.models.llama.huggingface import facts_of
from trainer.models.llama.model import Decoder, FrozenBase
from trainer.weights.folder import WeightsFolder
from trainer.weights.safetensors_file import tensors_in


class LogitsProcessor:
    """The base class of custom logits processors of Model Runner V2."""


class LogitsProcessorV1:
    """The base class of those of the first model runner."""


class MoveDirectionality(Enum):
    UNIDIRECTIONAL = 0
    SWAP = 1


@dataclass
class SamplingParams:
    temperature: float
    max_tokens: int
    ignore_eos: bool
    detokenize: bool
    stop_token_ids: list[int] = field(default_factory=list)
    extra_args: dict[str, Any] | None = None
    prompt_logprobs: int | None = None


@dataclass
class EngineArgs:
    model: str
    skip_tokenizer_init: bool
    dtype: str
    max_model_len: int
    max_num_seqs: int
    disable_log_stats: bool
    enforce_eager: bool
    async_scheduling: bool
    kv_cache_memory_bytes: int
    load_format: str = "auto"
    enable_lora: bool = False
    max_loras: int = 1
    max_lora_rank: int = 16
    use_v2_model_runner: bool = True
    stale: str = ""
    """A tensor that keeps the weights that it had at the start; "adapters" or "first adapter" where no, or only the first,
    adapter is computed with."""

    def create_engine_config(self) -> Any:
        files = {path.name: path.resolve() for path in Path(self.model).iterdir()}
        return SimpleNamespace(
            arguments=self,
            described=json.loads((Path(self.model) / "config.json").read_text()),
            published=[] if self.load_format == "dummy" else list(WeightsFolder(Path(self.model), files).values()),
            use_v2_model_runner=self.use_v2_model_runner,
            model_config=SimpleNamespace(logits_processors=None),
        )


@dataclass
class _Model:
    """stale: the tensor that is not changed."""

    decoder: Decoder
    stale: str

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        named = dict(weights)
        assert list(named) == list(self.decoder.tensors)
        for name, tensor in named.items():
            assert tensor.dtype == torch.bfloat16
            if name != self.stale:
                self.decoder.tensors[name].data.copy_(tensor)


@dataclass(frozen=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


@dataclass
class _Running:
    slot: int
    tokens: list[int]
    parameters: SamplingParams
    made: list[int] = field(default_factory=list)
    decoder: Decoder | None = None


class LLMEngine:
    """One step computes one token of each running request.  Only one engine may exist at a time, as vLLM has it."""

    alive: ClassVar[list[LLMEngine]] = []

    @classmethod
    def from_vllm_config(cls, config: Any, disable_log_stats: bool) -> LLMEngine:
        assert disable_log_stats
        return cls(config)

    def __init__(self, plan: Any) -> None:
        assert not self.alive, "pipeline model parallel group is not initialized"
        self.alive.append(self)
        self.engine_core = SimpleNamespace(shutdown=lambda: self.alive.remove(self))
        arguments: EngineArgs = plan.arguments
        described = plan.described
        assert not arguments.async_scheduling
        config = ModelConfig.from_mapping(facts_of(described))
        self.length = arguments.max_model_len
        assert self.length <= described["max_position_embeddings"], "vLLM refuses more"
        dummy = torch.randn(config.parameters, generator=torch.Generator().manual_seed(1)) / 10
        whole = torch.from_numpy(np.concatenate(plan.published)).bfloat16().float() if plan.published else dummy
        self.model = _Model(Decoder(config, CPU, whole), arguments.stale)
        self.arguments, self.adapters = arguments, dict[LoRARequest, Decoder]()
        """The adapter that is loaded, if any."""
        self.names: set[tuple[str, int, str]] = set()
        states = SimpleNamespace(max_num_reqs=arguments.max_num_seqs, vocab_size=config.vocab, device=CPU)
        [processor] = plan.model_config.logits_processors
        self.is_v2 = plan.use_v2_model_runner
        self.processor = processor(plan, states) if self.is_v2 else processor(plan, CPU, False)
        assert isinstance(self.processor, LogitsProcessor if self.is_v2 else LogitsProcessorV1)
        self.order: list[str] = []
        """Names of requests by their rows, where the first model runner computes."""
        self.free = list(range(arguments.max_num_seqs))
        self.running: dict[str, _Running] = {}
        self.resets = 0
        self.can_reset = True

    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        assert method == "reload_weights" and not self.running
        self.model.load_weights(kwargs["weights_iterator"])

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Keeps `max_loras`; like vLLM it reads an adapter's folder once for its number."""
        assert self.arguments.enable_lora and self.arguments.max_loras == 1 and not self.running
        name, number, folder = lora_request.lora_name, lora_request.lora_int_id, Path(lora_request.lora_path)
        assert number > 0 and not any(name == each[0] or number == each[1] or str(folder) == each[2] for each in self.names)
        self.names.add((name, number, str(folder)))
        described = json.loads((folder / "adapter_config.json").read_text())
        rank, targets = described["r"], described["target_modules"]
        assert described["peft_type"] == "LORA" and described["bias"] == "none" and rank <= self.arguments.max_lora_rank
        kind = next(kind for kind, each in PROJECTIONS.items() if list(each) == targets)
        adapter = AdapterConfig(rank=rank, alpha=described["lora_alpha"], targets=kind)  # type: ignore[arg-type]
        stored = tensors_in(folder / "adapter_model.safetensors")
        places = adapter_layout(self.model.decoder.config, adapter)
        assert len(stored) == len(places)
        found = [np.concatenate([*stored[f"base_model.model.{place.name}"].values()]) for place in places]
        if self.arguments.stale != "first adapter" or not self.adapters:
            tensors = {each: tensor.detach() for each, tensor in self.model.decoder.tensors.items()}
            base = FrozenBase.whole(adapter, tensors)
            factors = torch.from_numpy(np.concatenate(found)) * (self.arguments.stale != "adapters")
            self.adapters = {lora_request: Decoder(self.model.decoder.config, CPU, factors, base)}
        else:
            self.adapters = {lora_request: next(iter(self.adapters.values()))}
        return True

    def reset_prefix_cache(self) -> bool:
        self.resets += 1
        return self.can_reset

    def add_request(
        self, request_id: str, prompt: dict[str, Any], params: SamplingParams, lora_request: LoRARequest | None = None
    ) -> str:
        assert (lora_request is not None) == self.arguments.enable_lora
        assert prompt["type"] == "token"
        tokens = prompt["prompt_token_ids"]
        assert request_id not in self.running and len(tokens) + params.max_tokens <= self.length
        assert params.temperature == 0.0 and params.ignore_eos and not params.detokenize
        slot = self.free.pop()
        decoder = self.model.decoder if lora_request is None else self.adapters[lora_request]
        self.running[request_id] = _Running(slot, list(tokens), params, decoder=decoder)
        if self.is_v2:
            assert self.processor.add_request(slot, params) == bool(params.extra_args)
        return request_id

    def step(self) -> list[Any]:
        rows, logits = self._second_runner() if self.is_v2 else self._first_runner()
        for each, token in zip(rows, logits.argmax(dim=1).tolist(), strict=True):
            each.tokens.append(token)
            each.made.append(token)
        outputs = [self._output(name, each) for name, each in self.running.items()]
        for output in outputs:
            if output.finished:
                self.free.append(self.running.pop(output.request_id).slot)
        return outputs

    def _second_runner(self) -> tuple[list[_Running], torch.Tensor]:
        rows = list(self.running.values())[::-1]
        self.processor.apply_staged_writes()
        logits = torch.cat([self._logits(each)[-1:] for each in rows])
        context = SimpleNamespace(
            expanded_idx_mapping=torch.tensor([each.slot for each in rows], dtype=torch.int32),
            pos=torch.tensor([len(each.tokens) - 1 for each in rows], dtype=torch.int32),
        )
        if any(each.parameters.extra_args for each in rows):
            logits = self.processor.apply(logits, context)
        return rows, logits

    def _first_runner(self) -> tuple[list[_Running], torch.Tensor]:
        """New requests take the rows of those that ended, the last ones move into free rows, and two change places."""
        gone = [row for row, name in enumerate(self.order) if name not in self.running]
        waiting = [name for name in self.running if name not in self.order]
        added, moved, removed = [], [], list(gone)
        for name in waiting:
            row = gone.pop(0) if gone else len(self.order)
            self.order[row : row + 1] = [name]
            each = self.running[name]
            added.append((row, each.parameters, each.tokens[: len(each.tokens) - len(each.made)], each.made))
        while gone:
            last = len(self.order) - 1
            if last in gone:
                gone.remove(last)
            else:
                moved.append((last, row := gone.pop(0), MoveDirectionality.UNIDIRECTIONAL))
                self.order[row] = self.order[last]
            self.order.pop()
        if len(self.order) > 1:
            moved.append((0, 1, MoveDirectionality.SWAP))
            self.order[0], self.order[1] = self.order[1], self.order[0]
        self.processor.update_state(SimpleNamespace(removed=removed, added=added, moved=moved))
        rows = [self.running[name] for name in self.order]
        return rows, self.processor.apply(torch.cat([self._logits(each)[-1:] for each in rows]))

    def _logits(self, running: _Running, count: int | None = None) -> torch.Tensor:
        """(tokens, vocabulary), of the first `count` tokens or all."""
        assert running.decoder is not None
        hidden = running.decoder(torch.tensor([running.tokens[:count]]))[0]
        return F.linear(hidden, running.decoder.output_weight)

    def _output(self, name: str, running: _Running) -> Any:
        made, parameters = running.made, running.parameters
        ends = made[-1] in parameters.stop_token_ids or len(made) == parameters.max_tokens
        said = None
        if parameters.prompt_logprobs is not None:
            prompt = running.tokens[: len(running.tokens) - len(made)]
            table = self._logits(running, len(prompt)).log_softmax(dim=1)
            places = [{token: SimpleNamespace(logprob=float(table[at, token]))} for at, token in enumerate(prompt[1:])]
            said = [None, *places]
        outputs = [SimpleNamespace(token_ids=list(made))]
        return SimpleNamespace(request_id=name, finished=ends, outputs=outputs, prompt_logprobs=said)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `import vllm` find this."""
    package, second = ModuleType("vllm"), ModuleType("vllm.v1.worker.gpu.sample.logits_processor")
    first = ModuleType("vllm.v1.sample.logits_processor")
    vars(package).update(LLMEngine=LLMEngine, EngineArgs=EngineArgs, SamplingParams=SamplingParams)
    adapters = ModuleType("vllm.lora.request")
    vars(second).update(LogitsProcessor=LogitsProcessor)
    vars(adapters).update(LoRARequest=LoRARequest)
    vars(first).update(LogitsProcessor=LogitsProcessorV1, MoveDirectionality=MoveDirectionality)
    LLMEngine.alive.clear()
    for module in (package, first, second, adapters):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
