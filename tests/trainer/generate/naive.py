"""Generation without a cache, one sequence at a time: every token from a forward pass over all before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from protocol.formats.model import ModelConfig, parameter_layout
from tests.trainer.weights.models import LLAMA3, QWEN2, QWEN3, SHAPE
from trainer.generate.generator import Reply, Request
from trainer.generate.sampling import choose, gumbel, stream_key
from trainer.models.llama.model import Decoder, FrozenBase

CPU = torch.device("cpu")
FAMILIES = {
    "llama3": ModelConfig.from_mapping(LLAMA3 | {"tied": False}),
    "llama, a key head for each query head": ModelConfig.from_mapping(SHAPE | {"kv_heads": 4, "tied": True}),
    "qwen2": ModelConfig.from_mapping(QWEN2 | {"tied": True}),
    "qwen3": ModelConfig.from_mapping(QWEN3 | {"kv_heads": 2, "tied": False}),
}
END = (3, 250)


@dataclass(frozen=True)
class Written:
    """What naive generation wrote.  margin: by how much, at least, a chosen token was better than the second."""

    output: tuple[int, ...]
    made: tuple[bool, ...]
    hidden: torch.Tensor
    margin: float


def parameters(config: ModelConfig, seed: int = 0) -> torch.Tensor:
    """(n,): norms and biases matter, and attention is sharp enough that positions do."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(config.parameters) * 0.15
    for place in parameter_layout(config):
        if place.name.endswith("norm.weight"):
            values[place.offset : place.offset + place.count] += 1.0
    return torch.from_numpy(values.astype(np.float32))


def requests(config: ModelConfig, count: int, seed: int = 0, most: int = 40) -> list[Request]:
    """Prompts of 1 to 100 tokens, 1 to `most` tokens to make."""
    random = np.random.default_rng(seed)
    return [
        Request(
            number,
            tuple(random.integers(0, config.vocab, random.integers(1, 100)).tolist()),
            stream_key(b"run", 1, "peer", 0, number, 0),
            int(random.integers(1, most)),
            END,
        )
        for number in range(count)
    ]


def write(
    config: ModelConfig,
    flat: torch.Tensor,
    request: Request,
    temperature: float = 1.0,
    reply: Reply | None = None,
    device: torch.device = CPU,
    base: FrozenBase | None = None,
) -> Written:
    """Complete one request."""
    model = Decoder(config, device, flat, base)
    prompt, output, made, margin = list(request.prompt), list[int](), list[bool](), float("inf")
    while True:
        position = len(prompt) + len(output)
        with torch.no_grad():
            hidden = model(torch.tensor([prompt + output]))[0]
            logits = F.linear(hidden[-1:].to(flat.dtype), model.output_weight)
        key, at = torch.tensor([request.key]), torch.tensor([position])
        token = int(choose(logits, key, at, temperature))
        scores = logits.float() / temperature + gumbel(key, at, config.vocab) if temperature else logits.float()
        best, second = scores[0].topk(2).values.tolist()
        margin = min(margin, best - second)
        output, made = [*output, token], [*made, True]
        ends = token in request.end_tokens
        asks = reply and ends and request.max_tokens - len(output) >= 2
        said = reply(request, tuple(output), tuple(made)) if reply and asks else None
        if ends and said is not None and len(output) + len(said) < request.max_tokens:
            output, made = [*output, *said], [*made, *[False] * len(said)]
        elif ends or len(output) == request.max_tokens:
            break
    with torch.no_grad():
        hidden = model(torch.tensor([prompt + output[:-1]]))[0, len(prompt) - 1 :]
    return Written(tuple(output), tuple(made), hidden.bfloat16(), margin)
