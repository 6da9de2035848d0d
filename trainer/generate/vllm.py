"""Generator on vLLM (the extra `vllm`), for models and GPUs that gain from vLLM's kernels and paged cache.

The noise is ours: a logits processor adds it, and vLLM takes the arg-max. So a validator sees no difference from the
built-in generator beyond rounding. vLLM documents no access to hidden states after the final norm, so the built-in model
computes them again, in one pass over the finished sequence, as a validator does. This needs a second copy of the weights on
the GPU, and costs about as much as a validator's work on the rollout.

Written for vLLM 0.32 (`LLMEngine`, `reload_weights`, custom logits processors of both model runners). Most tests use a
stand-in with the same interface; a slow test runs the CPU build of vLLM itself. This module has never run on a GPU.

In a run with an adapter vLLM reads the frozen model from its files once, and each version is a LoRA adapter of its own name,
number and folder, because vLLM's cache of prefixes is keyed by them. Only one adapter is loaded at a time.

An honest peer must not depend on vLLM's correctness. So after each change of weights vLLM computes one prompt, and its
log-probabilities are compared with the built-in model's. If vLLM still uses weights that it packed when it started, the
comparison fails with `NotReloaded`; without it, every validator would reject the batches. Factors that have learned little
change log-probabilities too little for that comparison, so the first adapter is one that changes them much.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from protocol.formats.adapter import AdapterConfig
from protocol.formats.model import ModelConfig, parameter_layout
from trainer.extras import install_command
from trainer.generate.engine import PREFILL_TOKENS, Batch, Piece
from trainer.generate.generator import Completion, Generator, ProveAll, Reply, Request, Slots
from trainer.generate.sampling import gumbel
from trainer.models.llama.huggingface import config_json
from trainer.models.llama.model import FrozenBase
from trainer.weights.peft_folder import write_peft_folder
from trainer.weights.safetensors_file import ExportFormat

SHARE = 0.92
"""Share of the GPU's free memory that vLLM may use. vLLM does not start if less than its allowance is free."""
BLOCK_TOKENS = 128
"""Tokens in a block of vLLM's cache on a CPU."""
BF16_BYTES = 2
PROBE_TOKENS = 64
"""Number of tokens in the prompt that checks each change of weights."""
MOST_DEVIATION = 0.2
"""Largest root mean square difference between vLLM's log-probabilities of the check prompt and ours, in units of the
standard deviation of ours. Rounding to bf16 causes about 0.02; a tensor with old weights causes 0.5 and more."""


MOST_DOUBLINGS = 16
"""Most times that the check's factors are doubled until they change our own log-probabilities enough."""
MOST_RANKS = (1, 8, 16, 32, 64, 128, 256)
"""Values of vLLM's `max_lora_rank` up to the largest rank of a run."""


class NotReloaded(RuntimeError):
    """Error raised if vLLM does not use the weights that it was given."""


@dataclass
class _VllmSequence:
    """Request in vLLM, with the output of its earlier turns."""

    request: Request
    output: tuple[int, ...] = ()
    made: tuple[bool, ...] = ()


class VllmEngine(Generator):
    """Generator on vLLM."""

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device,
        slots: Slots,
        *,
        prove_all: ProveAll | None = None,
        reply: Reply | None = None,
        base: FrozenBase | None = None,
        **settings: Any,
    ) -> None:
        """Make an engine in bf16 from the arguments of `Engine`.

        settings: more of vLLM's `EngineArgs`, such as gpu_memory_utilization.

        Raises ImportError with one sentence if vLLM is not installed.
        """
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # parameters are passed within the process, not pickled
        vllm = _vllm()
        super().__init__(config, slots, prove_all, reply)
        count, length = slots.count, slots.length
        self._begun = 0
        self._sequences: dict[str, _VllmSequence] = {}
        self._turns: deque[tuple[_VllmSequence, tuple[int, ...]]] = deque()  # written turns, not yet continued or ended
        if base is not None and base.dtype != torch.bfloat16:  # a CPU's, whose values bf16 has too
            base = replace(base, tensors={name: tensor.bfloat16() for name, tensor in base.tensors.items()})
        self._reference = Batch(config, device, torch.bfloat16, Slots(1, length), base)
        self._adapters = None if base is None else _Adapters(config, base.adapter)
        with tempfile.TemporaryDirectory() as folder:
            described = config_json(config, "bfloat16", context=length, eos=None)
            described["max_position_embeddings"] = length  # limits vLLM, regardless of the model's context
            (Path(folder) / "config.json").write_text(json.dumps(described))
            arguments: dict[str, Any] = {
                "model": folder,
                "skip_tokenizer_init": True,
                "dtype": "bfloat16",
                "max_model_len": length,
                "max_num_seqs": count,
                "disable_log_stats": True,
                "enforce_eager": device.type != "cuda",  # compiling for a CPU takes minutes
                "async_scheduling": False,  # the noise at a position needs all tokens before it
                **_memory(device, config, count, length),
            }
            if base is None:
                arguments["load_format"] = "dummy"  # placeholder weights until `load`
            else:
                for name, path in base.files.items():
                    if name.endswith((".safetensors", ".safetensors.index.json")):
                        (Path(folder) / name).symlink_to(path.resolve())
                arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": _most_rank(base.adapter.rank)}
            plan = vllm.EngineArgs(**arguments | settings).create_engine_config()
            noise = noise_of_v2() if plan.use_v2_model_runner else noise_of_v1()
            plan.model_config.logits_processors = [noise]
            self._vllm = vllm.LLMEngine.from_vllm_config(plan, disable_log_stats=True)

    def load(self, flat: Tensor) -> None:
        """Load parameters as `Generator.load` does.  Raises `NotReloaded`."""
        self._check_idle()
        if self._adapters is not None and not self._loaded:
            self._use(self._strong_factors())
        self._use(flat)
        self._loaded = True

    def _use(self, flat: Tensor) -> None:
        """Have both models compute with these parameters, and compare them."""
        if self._adapters is None:
            self._vllm.collective_rpc("reload_weights", kwargs={"weights_iterator": self._named(flat)})
        else:
            self._adapters.write(flat)
            if not self._vllm.add_lora(self._adapters.request):
                raise NotReloaded("vLLM does not load the run's adapter; set generator = builtin")
        if not self._vllm.reset_prefix_cache():
            raise RuntimeError("vLLM holds keys and values of the previous weights; restart it")
        self._reference.fill([flat])
        self._compare()

    def _strong_factors(self) -> Tensor:
        """Return factors that change the log-probabilities of the check prompt much more than rounding does."""
        model = self._reference.model
        flat, draw = torch.zeros(model.count), torch.Generator().manual_seed(1)
        self._reference.fill([flat])
        before = self._own_probe()
        for place in model.layout:
            part = flat[place.offset : place.offset + place.count].view(place.shape)
            part.normal_(std=place.shape[1] ** -0.5, generator=draw)
        for _ in range(MOST_DOUBLINGS):
            self._reference.fill([flat])
            if _deviation(self._own_probe(), before) > 2 * MOST_DEVIATION:
                return flat
            flat *= 2**0.5  # twice the products
        raise NotReloaded("nothing can show that vLLM uses an adapter beside this model; set generator = builtin")

    @torch.no_grad()
    def advance(self) -> list[Completion]:
        """Run one step of vLLM; return ended completions."""
        self._check_loaded()
        while self._waiting and self._running < self._capacity.count:
            self._begin(_VllmSequence(self._waiting.popleft()))
        if self._sequences:
            for ended in self._vllm.step():
                if ended.finished:
                    self._turns.append((self._sequences.pop(ended.request_id), tuple(ended.outputs[0].token_ids)))
        while self._turns:
            self._turn(*self._turns[0])
            self._turns.popleft()
        return self._proven()

    def close(self) -> None:
        """Free vLLM's memory and its process group.

        Call this before making another engine, because it would otherwise end that engine's group.
        """
        self._vllm.engine_core.shutdown()
        if self._adapters is not None:
            self._adapters.close()
        del self._vllm, self._reference

    @property
    def _running(self) -> int:
        """Number of requests that have begun."""
        return len(self._sequences) + len(self._turns)

    def _compare(self) -> None:
        """Compute one prompt with both models; raise NotReloaded if vLLM's log-probabilities come from other weights."""
        vllm, tokens = _vllm(), self._probe
        parameters = vllm.SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False, ignore_eos=True)
        self._add("probe", tokens.tolist(), parameters)
        while not (ended := [each for each in self._vllm.step() if each.finished]):
            continue
        said = ended[0].prompt_logprobs[1:]
        theirs = torch.tensor([place[int(token)].logprob for place, token in zip(said, tokens[1:], strict=True)])
        if not (deviation := _deviation(theirs, self._own_probe())) <= MOST_DEVIATION:
            raise NotReloaded(
                f"vLLM computes with other weights than it was given (its log-probabilities are off by {deviation:.2g} of "
                "their spread), so its rollouts would be rejected; set generator = builtin"
            )

    @property
    def _probe(self) -> Tensor:
        """Tokens of the check prompt."""
        return torch.arange(min(PROBE_TOKENS, self._capacity.length - 1)).mul(7919).remainder(self._config.vocab)

    def _own_probe(self) -> Tensor:
        """Return our log-probabilities of the tokens of the check prompt after the first, on the host."""
        tokens = self._probe
        logits = F.linear(self._hidden(tokens.tolist()), self._reference.model.output_weight).float()
        return logits.log_softmax(dim=1).cpu().gather(1, tokens[1:, None])[:, 0]

    def _add(self, name: str, tokens: list[int], parameters: Any) -> None:
        """Queue a prompt in vLLM, with the adapter if there is one."""
        lora = None if self._adapters is None else self._adapters.request
        prompt = {"type": "token", "prompt_token_ids": tokens}  # see `vllm.inputs.tokens_input`
        self._vllm.add_request(name, prompt, parameters, lora_request=lora)

    def _named(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield each tensor after its name in Hugging Face files."""
        for place in parameter_layout(self._config):
            yield place.name, flat[place.offset : place.offset + place.count].view(place.shape).bfloat16()

    def _begin(self, sequence: _VllmSequence) -> None:
        """Queue the next turn in vLLM. Its prompt is the conversation so far, which is in vLLM's prefix cache."""
        vllm, request = _vllm(), sequence.request
        noise = {"key": request.key, "temperature": self.temperature} if self.temperature else None
        parameters = vllm.SamplingParams(
            temperature=0.0,  # the arg-max, after the noise
            max_tokens=request.turn_room(len(sequence.output)),
            stop_token_ids=list(request.end_tokens),
            ignore_eos=True,
            detokenize=False,
            extra_args=noise,
        )
        self._begun += 1
        self._sequences[str(self._begun)] = sequence
        self._add(str(self._begun), [*request.prompt, *sequence.output], parameters)

    def _turn(self, sequence: _VllmSequence, tokens: tuple[int, ...]) -> None:
        """Continue or end a sequence after a turn of the model."""
        request = sequence.request
        output, made = sequence.output + tokens, sequence.made + (True,) * len(tokens)
        said = self._continuation(request, output, made)
        if said is None:
            hidden = self._hidden(request.prompt + output)[len(request.prompt) - 1 :]
            self._hold(request, output, made, hidden)
        else:
            self._begin(_VllmSequence(request, output + tuple(said), made + (False,) * len(said)))

    def _hidden(self, tokens: Sequence[int]) -> Tensor:
        """Return the final hidden states of all tokens but the last, bf16."""
        rows = len(tokens) - 1
        self._reference.append(0, 0, tokens, 0)
        for first in range(0, rows, PREFILL_TOKENS):
            self._reference.feed([Piece(0, first, min(first + PREFILL_TOKENS, rows))])
        return self._reference.hidden[0, :rows]


class _Adapters:
    """Adapter that vLLM computes with, in a folder of PEFT.  request: its name, number and folder, new with each `write`.

    vLLM multiplies B with the scale in bf16 when it reads an adapter; that is exact if alpha / rank is a power of two.
    """

    def __init__(self, model: ModelConfig, adapter: AdapterConfig) -> None:
        self._model, self._adapter, self._number = model, adapter, 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.request: Any = None

    def write(self, flat: Tensor) -> None:
        """Write factors (n) into a new folder; vLLM may read it until the next call."""
        from vllm.lora.request import LoRARequest

        self.close()
        self._folder, self._number = tempfile.TemporaryDirectory(), self._number + 1
        folder = Path(self._folder.name)
        values = [flat.float().cpu().numpy()]
        write_peft_folder(folder, self._model, self._adapter, values, ExportFormat.BF16, base_name="")
        self.request = LoRARequest(f"version-{self._number}", self._number, str(folder))

    def close(self) -> None:
        """Delete the folder."""
        if self._folder is not None:
            self._folder.cleanup()


def _deviation(theirs: Tensor, ours: Tensor) -> float:
    """Return the root mean square difference of log-probabilities, in units of the standard deviation of `ours`."""
    return float((theirs - ours).square().mean().sqrt()) / max(float(ours.std()), 1e-6)


def _most_rank(rank: int) -> int:
    """Return the least number that vLLM takes as its largest rank, and that is at least `rank`."""
    return next(each for each in MOST_RANKS if each >= rank)


def _vllm() -> Any:
    try:
        import vllm
    except ImportError as error:
        command = install_command("vllm", again=True)
        raise ImportError(f"vLLM cannot be used ({error}); set generator = builtin, or run {command}") from error
    return vllm


def _memory(device: torch.device, config: ModelConfig, slots: int, length: int) -> dict[str, Any]:
    """Return vLLM's memory settings: room for keys and values of `slots` sequences, in bytes, as in the built-in engine.

    By default vLLM takes nearly all memory, and leaves nothing for the versions with which batches are verified. On a GPU
    with less room the cache is smaller, but holds at least one sequence; vLLM then runs fewer sequences at a time.
    """
    tokens = (math.ceil(length / BLOCK_TOKENS) + 1) * BLOCK_TOKENS
    sequence_bytes = 2 * BF16_BYTES * tokens * config.layers * config.kv_width
    if device.type != "cuda":
        return {"kv_cache_memory_bytes": slots * sequence_bytes}
    free, total = torch.cuda.mem_get_info(device)
    room = int(SHARE * free) - BF16_BYTES * config.parameters
    return {
        "kv_cache_memory_bytes": max(sequence_bytes, min(slots * sequence_bytes, room)),
        "gpu_memory_utilization": SHARE * free / total,
    }


def noise_of_v1() -> type:
    """Return the class of the logits processor for vLLM's first model runner, which vLLM uses if Triton is missing."""
    from vllm.v1.sample.logits_processor import LogitsProcessor, MoveDirectionality

    class NoiseOfV1(LogitsProcessor):  # type: ignore[misc]
        """Logits processor: logits / temperature + the noise of each row's request.  Rows move within vLLM's batch."""

        def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
            self.rows: dict[int, tuple[dict[str, Any], int, list[int]]] = {}

        def is_argmax_invariant(self) -> bool:
            return False

        def update_state(self, batch_update: Any) -> None:
            if batch_update is None:
                return
            for row in batch_update.removed:
                self.rows.pop(row, None)
            for row, parameters, prompt, output in batch_update.added:
                self.rows.pop(row, None)
                if parameters.extra_args:
                    self.rows[row] = (parameters.extra_args, len(prompt), output)  # `output` grows with each token
            for one, other, direction in batch_update.moved:
                first, second = self.rows.pop(one, None), self.rows.pop(other, None)
                if first is not None:
                    self.rows[other] = first
                if second is not None and direction == MoveDirectionality.SWAP:
                    self.rows[one] = second

        def apply(self, logits: Tensor) -> Tensor:
            for row, (noise, prompt, output) in self.rows.items():
                key, place = torch.tensor([noise["key"]]), torch.tensor([prompt + len(output)])
                added = gumbel(key.to(logits.device), place.to(logits.device), logits.shape[1])
                logits[row] = logits[row] / noise["temperature"] + added[0]
            return logits

    return NoiseOfV1


def noise_of_v2() -> type:
    """Return the class of the logits processor for Model Runner V2."""
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

    class NoiseOfV2(LogitsProcessor):  # type: ignore[misc]
        """Logits processor: logits / temperature + each row's noise. The state is indexed by vLLM's slot numbers."""

        def __init__(self, vllm_config: Any, req_states: Any) -> None:
            self.keys = torch.zeros(req_states.max_num_reqs, dtype=torch.int64)
            self.temperatures = torch.ones(req_states.max_num_reqs)
            self.keys_there, self.temperatures_there = (
                self.keys.to(req_states.device),
                self.temperatures.to(req_states.device),
            )

        def add_request(self, req_idx: int, sampling_params: Any) -> bool:
            noise = sampling_params.extra_args
            if noise:
                self.keys[req_idx], self.temperatures[req_idx] = noise["key"], noise["temperature"]
            return bool(noise)

        def apply_staged_writes(self) -> None:
            self.keys_there.copy_(self.keys)
            self.temperatures_there.copy_(self.temperatures)

        def apply(self, logits: Tensor, ctx: Any) -> Tensor:
            slots = ctx.expanded_idx_mapping.long()
            logits.div_(self.temperatures_there[slots, None])
            return logits.add_(gumbel(self.keys_there[slots], ctx.pos.long() + 1, logits.shape[1]))

    return NoiseOfV2
