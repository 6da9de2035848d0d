"""Answers of `peer chat` beside transformers' `generate`: `OMP_WAIT_POLICY=PASSIVE python -m benchmarks.chat`.

`peer chat` sets the same variable for itself.

A model of the demo's shape and one of about 20 M parameters answer a prompt with the most probable tokens, one sequence at a
time, in fp32 and in bf16.  Each repeat measures both programs one after the other, in one process with the same number of
threads, and the ratios are medians of the repeats' ratios: above 1 `peer chat` is faster.  `first_token_ms` is the time from
the prompt to the first token, `tokens_per_s` the rate of the later ones.  The same follows by processor time, which changes
little when other work runs on the computer.
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
from protocol.formats.model import ModelConfig
from trainer.weights.folder import WeightsFolder, write_folder
from trainer.weights.safetensors_file import ExportFormat

PROMPT, TOKENS, CONTEXT = 64, 128, 512
QWEN2 = {
    "vocab": 16384, "dim": 384, "layers": 8, "heads": 6, "kv_heads": 2, "ffn": 1024, "rope_base": 1e6, "norm_eps": 1e-6,
    "tied": True, "qkv_bias": True,
}  # fmt: skip
MODELS = {"demo": demo_model(), "20 M": ModelConfig.from_mapping(QWEN2)}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

CLOCKS: dict[str, Callable[[], float]] = {"clock": time.perf_counter, "processor": time.process_time}


class Stopwatch:
    """Moments by each clock: the beginning, then each token.  It can also serve as a streamer of transformers."""

    def __init__(self) -> None:
        self.at: list[dict[str, float]] = []
        self.tokens: list[int] = []

    def put(self, value: Any) -> None:
        self.at.append({name: read() for name, read in CLOCKS.items()})

    def end(self) -> None:
        pass

    def first_s(self, clock: str) -> float:
        return self.at[1][clock] - self.at[0][clock]

    def rate(self, clock: str) -> float:
        return (len(self.at) - 2) / (self.at[-1][clock] - self.at[1][clock])


def by_chat(model: ChatModel, prompt: list[int], temperature: float) -> Stopwatch:
    watch = Stopwatch()
    watch.put(prompt)
    for piece in model.answer(prompt, TOKENS, temperature, ()):
        watch.put(piece)
        watch.tokens += piece
    return watch


def by_transformers(model: Any, prompt: list[int], temperature: float) -> Stopwatch:
    watch = Stopwatch()
    how = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    asked, length = torch.tensor([prompt]), {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "pad_token_id": 0}
    watch.put(prompt)
    begun = watch.at.pop()
    with torch.no_grad():
        made = model.generate(asked, attention_mask=torch.ones_like(asked), streamer=watch, **length, **how)
    watch.at[0] = begun  # in place of the moment at which it gave the prompt
    watch.tokens = made[0, len(prompt) :].tolist()
    return watch


def compared(ours: Callable[[], Stopwatch], theirs: Callable[[], Stopwatch], repeats: int) -> dict[str, Any]:
    ours(), theirs()
    pairs = [(ours(), theirs()) for _ in range(repeats)]
    median = statistics.median
    row: dict[str, Any] = {"same_tokens": all(one.tokens == other.tokens for one, other in pairs)}
    for clock in CLOCKS:
        row[clock] = {
            name: {
                "first_token_ms": round(1e3 * median(each.first_s(clock) for each in watches), 2),
                "tokens_per_s": round(median(each.rate(clock) for each in watches), 1),
            }
            for name, watches in zip(("chat", "transformers"), zip(*pairs, strict=True), strict=True)
        }
        row[clock]["first_token_ratio"] = round(median(b.first_s(clock) / a.first_s(clock) for a, b in pairs), 2)
        row[clock]["tokens_ratio"] = round(median(a.rate(clock) / b.rate(clock) for a, b in pairs), 2)
    return row


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
    with TemporaryDirectory() as folder:
        for row in measure(Path(folder), arguments.models, arguments.temperature, arguments.repeats):
            if arguments.json:
                print(json.dumps(row), flush=True)
                continue
            for clock in CLOCKS:
                ways = [row[clock]["chat"], row[clock]["transformers"]]
                first, rate = (" ".join(f"{way[name]:8}" for way in ways) for name in ways[0])
                ratios = row[clock]["first_token_ratio"], row[clock]["tokens_ratio"]
                name = f"{row['model']:5}{row['dtype']} {row['threads']} {clock:9}"
                print(f"{name} ms to the first {first} ({ratios[0]}), tokens/s {rate} ({ratios[1]})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
