"""Answers of `peer chat` beside transformers' `generate`, on the same models: `python -m benchmarks.chat`.

A model of the demo's shape and one of about 20 M parameters answer a prompt with the most probable tokens, one sequence at a
time, in fp32 and in bf16.  Each repeat measures both programs one after the other, in one process with the same number of
threads, and the ratios are medians of the repeats' ratios: above 1 `peer chat` is faster.  `first_token_ms` is the time from
the prompt to the first token, `tokens_per_s` the rate of the later ones.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.generation import demo_model, parameters
from peer.chat.model import AnswerCores, ChatModel
from peer.resources.core_share import chosen_threads
from trainer.models.llama.config import ModelConfig
from trainer.weights.folder import WeightsFolder, write_folder
from trainer.weights.safetensors_file import ExportFormat

PROMPT, TOKENS, CONTEXT = 64, 128, 512
QWEN2 = {
    "vocab": 16384, "dim": 384, "layers": 8, "heads": 6, "kv_heads": 2, "ffn": 1024, "rope_base": 1e6, "norm_eps": 1e-6,
    "tied": True, "qkv_bias": True,
}  # fmt: skip
MODELS = {"demo": demo_model(), "20 M": ModelConfig.from_mapping(QWEN2)}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

Timed = tuple[float, float, list[int]]
"""Seconds until the first token, tokens a second after it, and the tokens."""


def times(started: float, at: Sequence[float], tokens: Sequence[int]) -> Timed:
    return at[0] - started, (len(at) - 1) / (at[-1] - at[0]), list(tokens)


def by_chat(model: ChatModel, prompt: list[int], temperature: float) -> Timed:
    at, tokens = list[float](), list[int]()
    started = time.perf_counter()
    for piece in model.answer(prompt, TOKENS, temperature, ()):
        at.append(time.perf_counter())
        tokens += piece
    return times(started, at, tokens)


class Stopwatch:
    """A streamer of transformers, which is given the prompt and then each token."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def put(self, value: Any) -> None:
        self.at.append(time.perf_counter())

    def end(self) -> None:
        pass


def by_transformers(model: Any, prompt: list[int], temperature: float) -> Timed:
    stopwatch = Stopwatch()
    how = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    asked = torch.tensor([prompt])
    started = time.perf_counter()
    with torch.no_grad():
        made = model.generate(
            asked,
            attention_mask=torch.ones_like(asked),
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            streamer=stopwatch,
            pad_token_id=0,
            **how,
        )
    return times(started, stopwatch.at[1:], made[0, len(prompt) :].tolist())


def compared(ours: Callable[[], Timed], theirs: Callable[[], Timed], repeats: int) -> dict[str, Any]:
    ours(), theirs()
    pairs = [(ours(), theirs()) for _ in range(repeats)]
    median = statistics.median
    return {
        "chat": {
            "first_token_ms": round(1e3 * median(each[0] for each, _ in pairs), 2),
            "tokens_per_s": round(median(each[1] for each, _ in pairs), 1),
        },
        "transformers": {
            "first_token_ms": round(1e3 * median(each[0] for _, each in pairs), 2),
            "tokens_per_s": round(median(each[1] for _, each in pairs), 1),
        },
        "first_token_ratio": round(median(other[0] / each[0] for each, other in pairs), 2),
        "tokens_ratio": round(median(each[1] / other[1] for each, other in pairs), 2),
        "same_tokens": pairs[0][0][2] == pairs[0][1][2],
    }


def measure(folder: Path, names: Sequence[str], temperature: float, repeats: int) -> Iterator[dict[str, Any]]:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in names:
        config, place = MODELS[name], folder / name
        place.mkdir()
        write_folder(place, config, iter([parameters(config).numpy()]), ExportFormat.FP32, context=CONTEXT, eos=None)
        prompt = np.random.default_rng(0).integers(1, config.vocab, PROMPT).tolist()
        for dtype, form in DTYPES.items():
            chat = ChatModel(WeightsFolder(place), "cpu", AnswerCores(), form)
            theirs = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=form).eval()
            row = compared(
                lambda chat=chat, prompt=prompt: by_chat(chat, prompt, temperature),  # type: ignore[misc]
                lambda theirs=theirs, prompt=prompt: by_transformers(theirs, prompt, temperature),  # type: ignore[misc]
                repeats,
            )
            facts = {"model": name, "parameters": config.parameters, "dtype": dtype, "threads": torch.get_num_threads()}
            yield facts | {"temperature": temperature} | row


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.chat", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(chosen_threads(0) or torch.get_num_threads())
    if not arguments.json:
        print("milliseconds to the first token, tokens a second after it: chat, transformers, and how much better chat is")
    with TemporaryDirectory() as folder:
        for row in measure(Path(folder), arguments.models, arguments.temperature, arguments.repeats):
            if arguments.json:
                print(json.dumps(row), flush=True)
                continue
            first, rate = (
                " ".join(f"{row[way][name]:8}" for way in ("chat", "transformers")) + f" {row[ratio]:5}"
                for name, ratio in (("first_token_ms", "first_token_ratio"), ("tokens_per_s", "tokens_ratio"))
            )
            print(f"{row['model']:5} {row['dtype']}  {first}   {rate}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
