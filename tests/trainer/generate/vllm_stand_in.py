"""What stands in vLLM's place in tests: as much of its documented interface as is used, over our decoder in fp32.

Like vLLM it numbers requests by slots that are used again, computes the rows of a step in an order of its own, keeps a
request's end token in its output, and hands the requests of the logits processor over before the step.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.trainer.generate.naive import CPU
from trainer.models.llama.config import ModelConfig
from trainer.models.llama.huggingface import facts_of
from trainer.models.llama.model import Decoder


class LogitsProcessor:
    """The base class of custom logits processors."""


@dataclass
class SamplingParams:
    temperature: float
    max_tokens: int
    stop_token_ids: list[int]
    ignore_eos: bool
    detokenize: bool
    extra_args: dict[str, Any] | None


@dataclass
class EngineArgs:
    model: str
    load_format: str
    skip_tokenizer_init: bool
    dtype: str
    max_model_len: int
    max_num_seqs: int
    logits_processors: list[Any]
    disable_log_stats: bool


@dataclass
class _Model:
    """What `apply_model` hands over."""

    decoder: Decoder

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        assert [name for name, _ in weights] == list(self.decoder.tensors)
        for name, tensor in weights:
            assert tensor.dtype == torch.bfloat16
            self.decoder.tensors[name].data.copy_(tensor)


@dataclass
class _Running:
    slot: int
    tokens: list[int]
    parameters: SamplingParams
    made: list[int] = field(default_factory=list)


class LLMEngine:
    """One step computes one token of each running request."""

    @classmethod
    def from_engine_args(cls, arguments: EngineArgs) -> LLMEngine:
        return cls(arguments)

    def __init__(self, arguments: EngineArgs) -> None:
        described = json.loads((Path(arguments.model) / "config.json").read_text())
        config = ModelConfig.from_mapping(facts_of(described))
        self.length = arguments.max_model_len
        assert self.length <= described["max_position_embeddings"], "vLLM refuses more"
        self.model = _Model(Decoder(config, CPU, torch.zeros(config.parameters)))
        states = SimpleNamespace(max_num_reqs=arguments.max_num_seqs, vocab_size=config.vocab, device=CPU)
        self.processor = arguments.logits_processors[0](arguments, states)
        assert isinstance(self.processor, LogitsProcessor)
        self.free = list(range(arguments.max_num_seqs))
        self.running: dict[str, _Running] = {}
        self.resets = 0
        self.can_reset = True

    def apply_model(self, func: Any) -> list[Any]:
        assert not self.running
        return [func(self.model)]

    def reset_prefix_cache(self) -> bool:
        self.resets += 1
        return self.can_reset

    def add_request(self, request_id: str, prompt: dict[str, Any], params: SamplingParams) -> str:
        assert prompt["type"] == "token"
        tokens = prompt["prompt_token_ids"]
        assert request_id not in self.running and len(tokens) + params.max_tokens <= self.length
        assert params.temperature == 0.0 and params.ignore_eos and not params.detokenize
        slot = self.free.pop()
        self.running[request_id] = _Running(slot, list(tokens), params)
        assert self.processor.add_request(slot, params) == bool(params.extra_args)
        return request_id

    def step(self) -> list[Any]:
        rows = list(self.running.values())[::-1]
        self.processor.apply_staged_writes()
        logits = torch.cat([self._logits(each.tokens) for each in rows])
        context = SimpleNamespace(
            expanded_idx_mapping=torch.tensor([each.slot for each in rows], dtype=torch.int32),
            pos=torch.tensor([len(each.tokens) - 1 for each in rows], dtype=torch.int32),
        )
        if any(each.parameters.extra_args for each in rows):
            logits = self.processor.apply(logits, context)
        for each, token in zip(rows, logits.argmax(dim=1).tolist(), strict=True):
            each.tokens.append(token)
            each.made.append(token)
        outputs = [self._output(name, each) for name, each in self.running.items()]
        for output in outputs:
            if output.finished:
                self.free.append(self.running.pop(output.request_id).slot)
        return outputs

    def _logits(self, tokens: list[int]) -> torch.Tensor:
        hidden = self.model.decoder(torch.tensor([tokens]))[:, -1]
        return F.linear(hidden, self.model.decoder.output_weight)

    def _output(self, name: str, running: _Running) -> Any:
        made = running.made
        ends = made[-1] in running.parameters.stop_token_ids or len(made) == running.parameters.max_tokens
        return SimpleNamespace(request_id=name, finished=ends, outputs=[SimpleNamespace(token_ids=list(made))])


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `import vllm` find this."""
    package, processors = ModuleType("vllm"), ModuleType("vllm.v1.worker.gpu.sample.logits_processor")
    vars(package).update(LLMEngine=LLMEngine, EngineArgs=EngineArgs, SamplingParams=SamplingParams)
    vars(processors).update(LogitsProcessor=LogitsProcessor)
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, processors.__name__, processors)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
