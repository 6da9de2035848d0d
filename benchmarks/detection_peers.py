"""Peers of `benchmarks.detection`: models built from seeds, honest ways to compute with them, and cheats.

Forgeries, which choose tokens that differ from the noise, are in `benchmarks.detection_forgeries`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from kernels.quantizer import QuantizedMatrix, quantize
from kernels.toploc import prove_all
from kernels.weight_format import WeightFormat
from protocol.formats.adapter import AdapterConfig
from protocol.formats.model import ModelConfig, parameter_layout
from protocol.formats.rl import RlConfig
from trainer.data.tokens import ByteTokenizer
from trainer.environments.environment import Environment, Problem, read_turns
from trainer.generate.engine import Batch, Engine
from trainer.generate.generator import Request, Slots, complete
from trainer.generate.sampling import stream_key
from trainer.models.llama.initial import initial_parameters
from trainer.models.llama.model import Decoder, FrozenBase
from trainer.rl.rollout import Rollout

Choice = Callable[[Tensor, Tensor, Tensor, float], Tensor]

TOKENIZER = ByteTokenizer()
CPU = torch.device("cpu")
SHORT = 48
"""Tokens of outputs that end by themselves; longer ones are conversations that go on up to the limit."""
PROMPT_TOKENS = 96
SHAPE: dict[str, Any] = {"vocab": 256, "dim": 128, "layers": 4, "heads": 4, "kv_heads": 2, "ffn": 384, "norm_eps": 1e-5}
FAMILIES = {
    "llama": ModelConfig(tied=False, rope_base=500_000.0, **SHAPE),
    "qwen2": ModelConfig(tied=True, rope_base=1_000_000.0, qkv_bias=True, **SHAPE),
    "qwen3": ModelConfig(tied=False, rope_base=1_000_000.0, qk_norm=True, head_dim=64, **SHAPE),
}
LONG_LAYERS = 2
"""Layers of the models that write outputs of more than `SHORT` tokens, so that these can be afforded."""
SHARPNESS = 4.0
"""Matrices of a model built from a seed are multiplied with this, so that it has opinions."""
GROUP, MANY_TURNS = 8, 1 << 20
RUN, VERSION, ME, OTHER = b"detection", 3, "12D3KooWworker", "12D3KooWother"
TOKENS_AT_ONCE = 4096
"""Tokens of rollouts that are proven together."""


class Numbers(Environment):
    """Environment of distinct prompts; the reward is the text's share of letters.  endless: every turn is replied to."""

    def __init__(self, endless: bool = False) -> None:
        self._endless, self.max_turns = endless, MANY_TURNS if endless else 1

    @property
    def size(self) -> int:
        return 1 << 20

    def problem(self, index: int) -> Problem:
        return Problem(self._checked(index), f"problem {index * 7919 % 10007}: ", None)

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        text = "".join(turns)
        return sum(letter.isalpha() for letter in text) / max(1, len(text))

    def solution(self, problem: Problem) -> tuple[str, ...]:
        return ("solution",)

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        return "\nGo on: " if self._endless else None


@dataclass(frozen=True)
class Frozen:
    """Frozen model below trained factors.  weights: in bf16, as fp32.  format: of the matrices of its layers."""

    adapter: AdapterConfig
    weights: np.ndarray
    format: WeightFormat = WeightFormat.BF16

    def base(self, config: ModelConfig, dtype: torch.dtype) -> FrozenBase:
        """Return the model for products in this precision."""
        tensors, matrices, largest = dict[str, Tensor](), dict[str, QuantizedMatrix](), 0
        for place in parameter_layout(config):
            values = torch.from_numpy(self.weights[place.offset : place.offset + place.count]).view(place.shape)
            if self.format is not WeightFormat.BF16 and place.name.endswith("_proj.weight"):
                matrices[place.name] = quantize(values.bfloat16(), self.format)
                largest = max(largest, place.count)
            else:
                tensors[place.name] = values.to(dtype)
        return FrozenBase(self.adapter, tensors, matrices, torch.empty(largest, dtype=dtype))


@dataclass(frozen=True)
class Run:
    """A model, its weights, and the length of outputs.  frozen: the model beside which the weights are factors, if any."""

    config: ModelConfig
    theta: np.ndarray
    length: int = SHORT
    frozen: Frozen | None = None

    def base(self, dtype: torch.dtype) -> FrozenBase | None:
        return None if self.frozen is None else self.frozen.base(self.config, dtype)

    def model(self, dtype: torch.dtype) -> Decoder:
        """Return the model with its weights."""
        return Decoder(self.config, CPU, torch.from_numpy(self.theta).to(dtype), self.base(dtype))

    @property
    def environment(self) -> Numbers:
        return Numbers(endless=self.length > SHORT)

    @property
    def rl(self) -> RlConfig:
        return RlConfig(max_tokens=self.length, row_tokens=self.length + PROMPT_TOKENS, micro_batch_tokens=4096)


class Choosing(Batch):
    """A batch with a choice of tokens of its own; `choice` has the arguments of `trainer.generate.sampling.choose`."""

    choice: Choice

    def choose(self, logits_bv: Tensor, keys_b: Tensor, positions_b: Tensor, temperature: float) -> Tensor:
        return self.choice(logits_bv, keys_b, positions_b, temperature)


class ChoosingEngine(Engine):
    """The engine of a peer that chooses tokens by its own rule."""

    def __init__(
        self, choice: Choice, config: ModelConfig, slots: Slots, *, dtype: torch.dtype, base: FrozenBase | None, **rest: Any
    ) -> None:
        super().__init__(config, CPU, slots, dtype=dtype, base=base, **rest)
        batch = Choosing(config, CPU, dtype, slots, base)
        batch.choice = choice
        self._batch = batch


def _engine_with(prefill: int) -> type[Engine]:
    class Other(Engine):
        prefill_tokens = prefill

    return Other


class Peer:
    """A rollout peer with some habits.

    flat: its weights; the run's unless given.  choice: its choice of tokens, if not the noise's.
    """

    def __init__(self, run: Run, flat: np.ndarray | None = None, choice: Choice | None = None, **engine: Any) -> None:
        self._run, self._choice = run, choice
        self.config, self.flat = run.config, torch.from_numpy(run.theta if flat is None else flat)
        self._options: dict[str, Any] = {
            "slots": 32,
            "dtype": torch.float32,
            "prefill_tokens": Engine.prefill_tokens,
            **engine,
        }
        self._prefill_tokens = self._options.pop("prefill_tokens")
        self.spent_s = 0.0
        """Processor time of generating."""

    def rollouts(
        self,
        count: int,
        peer: str = ME,
        *,
        prompt: Callable[[str], str] = lambda text: text,
        first: int = 0,
        temperature: float = 1.0,
        version: int = VERSION,
    ) -> list[Rollout]:
        """Generate `GROUP` completions of each of the first problems.

        prompt: the text that the model reads instead of the prompt.
        """
        options = self._options | {
            "slots": Slots(self._options["slots"], PROMPT_TOKENS + self._run.length),
            "prove_all": prove_all,
            "reply": self._reply,
            "base": self._run.base(self._options["dtype"]),
        }
        if self._choice is None:
            engine = _engine_with(self._prefill_tokens)(self.config, CPU, **options)
        else:
            engine = ChoosingEngine(self._choice, self.config, **options)
        engine.temperature = temperature
        engine.load(self.flat.to(self._options["dtype"]))
        texts = [Numbers().problem(first + number // GROUP).prompt for number in range(count)]
        began = time.process_time()
        done = {each.id: each for each in complete(engine, self._requests(texts, peer, prompt, first, version))}
        self.spent_s += time.process_time() - began
        return [
            Rollout(
                first + number // GROUP,
                number % GROUP,
                tuple(TOKENIZER.encode(text)),
                done[number].output,
                done[number].made,
                done[number].proofs,
            )
            for number, text in enumerate(texts)
        ]

    def _requests(
        self, texts: Sequence[str], peer: str, prompt: Callable[[str], str], first: int, version: int
    ) -> Iterator[Request]:
        for number, text in enumerate(texts):
            key = stream_key(RUN, version, peer, 0, first + number // GROUP, number % GROUP)
            yield Request(number, tuple(TOKENIZER.encode(prompt(text))), key, self._run.length, (TOKENIZER.end,))

    def _reply(self, request: Request, output: tuple[int, ...], made: tuple[bool, ...]) -> Sequence[int] | None:
        environment = self._run.environment
        reply = environment.reply(environment.problem(0), ())
        return None if reply is None else TOKENIZER.reply(reply)


def model_of(name: str, length: int) -> ModelConfig:
    """Return the model of a family that writes outputs of this length."""
    return FAMILIES[name] if length <= SHORT else FAMILIES[name].model_copy(update={"layers": LONG_LAYERS})


def parameters(config: ModelConfig, seed: int = 1) -> np.ndarray:
    """Return a model's weights in bf16, as fp32."""
    theta = np.empty(config.parameters, np.float32)
    initial_parameters(config, seed, theta)
    theta[np.abs(theta) != 1.0] *= SHARPNESS
    return rounded(theta)


def rounded(theta: np.ndarray) -> np.ndarray:
    """Round to bf16."""
    whole: np.ndarray = torch.from_numpy(theta).bfloat16().float().numpy()
    return whole


def quantised(theta: np.ndarray, levels: int, block: int = 128) -> np.ndarray:
    """Round to `levels` steps on each side of 0, with a scale for each block of weights."""
    padded = np.zeros(-(-len(theta) // block) * block, np.float32)
    padded[: len(theta)] = theta
    blocks = padded.reshape(-1, block)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / levels
    whole = np.rint(np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0)) * scale
    return rounded(np.ascontiguousarray(whole.reshape(-1)[: len(theta)]))


@dataclass(frozen=True)
class Honest:
    """Rollouts of an honest peer that computes in its own way, and the validator's way to compute.

    precision: the precision of the products of both, or "mixed".  spent_s: the processor time of generating; None if another
    variant generated the rollouts.  validator: the options of `benchmarks.detection.judge`.
    """

    name: str
    precision: str
    rollouts: list[Rollout]
    spent_s: float | None = None
    validator: dict[str, Any] = field(default_factory=dict)


def honest(run: Run, count: int) -> Iterator[Honest]:
    """Yield each variant with `count` rollouts."""
    made: dict[str, list[Rollout]] = {}
    for name, precision, options in (
        ("as the reference", "float32", {}),
        ("another batch size", "float32", {"slots": 5 if run.length <= SHORT else max(5, -(-count // 2))}),
        ("prompt in pieces of 7", "float32", {"prefill_tokens": 7}),
        ("products in bf16", "mixed", {"dtype": torch.bfloat16}),
    ):
        peer = Peer(run, **options)
        made[name] = peer.rollouts(count)
        yield Honest(name, precision, made[name], peer.spent_s)
    plain, coarse = made["as the reference"], made["products in bf16"]
    yield Honest("whole sequences in padded rows, no cache", "float32", with_proofs_of(run, plain))
    yield Honest("validator without padding", "float32", plain, None, {"alone": True})
    yield Honest("validator's products in bf16", "mixed", plain, None, {"dtype": torch.bfloat16})
    yield Honest("products in bf16, of both", "bfloat16", coarse, None, {"dtype": torch.bfloat16})


@torch.no_grad()
def with_proofs_of(run: Run, rollouts: list[Rollout]) -> list[Rollout]:
    """Return the rollouts with proofs that the model makes of them, in rows that are padded at their ends."""
    model, proven = run.model(torch.float32), []
    at_once = max(1, TOKENS_AT_ONCE // (run.length + PROMPT_TOKENS))
    for some in (rollouts[start : start + at_once] for start in range(0, len(rollouts), at_once)):
        sequences = [torch.tensor(each.prompt + each.output[:-1]) for each in some]
        hidden_bth = model(pad_sequence(sequences, batch_first=True))
        states = [hidden_bth[row, len(each.prompt) - 1 :][: len(each.output)].bfloat16() for row, each in enumerate(some)]
        for each, proofs in zip(some, prove_all(states), strict=True):
            proven.append(replace(each, proofs=b"".join(proofs)))
    return proven


def coarse_cheats(run: Run, count: int) -> Iterator[tuple[str, list[Rollout]]]:
    """Yield the cheats that could remain hidden in a run in which everybody computes in bf16."""
    for name, levels in (("int8", 127), ("int4", 7)):
        peer = Peer(run, quantised(run.theta, levels), dtype=torch.bfloat16)
        yield f"weights rounded to {name}, all in bf16", peer.rollouts(count)


def cheats(run: Run, count: int) -> Iterator[tuple[str, list[Rollout]]]:
    """Yield the rollouts of dishonest peers whose outputs end by themselves."""
    true = Peer(run)
    good = true.rollouts(count)

    def by_the_right_model(rollouts: list[Rollout]) -> list[Rollout]:
        return with_proofs_of(run, rollouts)

    yield "other weights", Peer(run, parameters(run.config, seed=2)).rollouts(count)
    yield "another prompt", true.rollouts(count, prompt=lambda text: "Be brief. " + text)
    yield "truncated output, proofs cut", [_cut(each, len(each.output) // 2) for each in good]
    yield "truncated output, proven anew", by_the_right_model([_cut(each, len(each.output) // 2) for each in good])
    early = [_cut(each, len(each.output) // 3, end=True) for each in good]
    yield "early end token, proven anew", by_the_right_model(early)
    yield "text of a smaller model, proofs of the right one", by_the_right_model(_smaller(run).rollouts(count))
    yield "proofs of another rollout (replayed)", _replayed(good)
    yield "another peer's rollout (copied)", true.rollouts(count, peer=OTHER)
    yield (
        "one completion for all copies",
        [_as_copy(good[number - number % GROUP], each) for number, each in enumerate(good) if number % GROUP],
    )
    yield "an older version's rollout", true.rollouts(count, version=VERSION - 1)
    yield "forged sampling: temperature 0.5", true.rollouts(count, temperature=0.5)
    yield "forged sampling: always the likeliest token", true.rollouts(count, temperature=0.0)
    best = [
        max(some, key=worth)
        for some in zip(*(true.rollouts(count, peer=f"{ME}{number}") for number in range(4)), strict=True)
    ]
    yield "inflated reward: the best of four draws", best
    yield "inflated reward: a solution written in", by_the_right_model([_solved(each) for each in good])


def _smaller(run: Run) -> Peer:
    """Return a peer with a model without the last layer."""
    config, theta = run.config, run.theta
    last = f"layers.{config.layers - 1}."
    kept = [place for place in parameter_layout(config) if last not in place.name]
    shorter = np.concatenate([theta[place.offset : place.offset + place.count] for place in kept])
    return Peer(replace(run, config=ModelConfig(**{**vars(config), "layers": config.layers - 1}), theta=shorter))


def worth(rollout: Rollout) -> float:
    """Return the reward of a rollout."""
    problem = Numbers().problem(rollout.problem)
    return Numbers().score(problem, read_turns(Numbers(), problem, rollout.output, rollout.made, TOKENIZER))


def _solved(rollout: Rollout) -> Rollout:
    """Replace the last half of the output with the most rewarded letter."""
    half = len(rollout.output) // 2
    return replace(rollout, output=rollout.output[:half] + (ord("a"),) * (len(rollout.output) - half))


def _as_copy(rollout: Rollout, of: Rollout) -> Rollout:
    return replace(rollout, copy=of.copy)


def _cut(rollout: Rollout, length: int, end: bool = False) -> Rollout:
    length = max(1, length)
    output = rollout.output[: length - end] + (TOKENIZER.end,) * end
    return replace(rollout, output=output, made=(True,) * len(output), proofs=rollout.proofs[: 258 * -(-len(output) // 32)])


def _replayed(rollouts: list[Rollout]) -> list[Rollout]:
    by_size: dict[int, Rollout] = {}
    changed = []
    for each in rollouts:
        before = by_size.get(len(each.proofs))
        if before is not None:
            changed.append(replace(each, proofs=before.proofs))
        by_size[len(each.proofs)] = each
    return changed
