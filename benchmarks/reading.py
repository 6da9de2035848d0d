"""The share of reading in a training step, and the speed with and without document masks: `python -m benchmarks.reading`.

Writes a corpus of two sources, with documents of random lengths, into a temporary folder, and takes training steps on its
rows: read from whole shards, and from one file for each block as a peer's cache holds them.  Prints a table, or with --json
one object; asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kernels.mixture import MixturePhase, RowMixture
from kernels.schedule import Place
from protocol.formats.model import ModelConfig
from protocol.formats.training import InnerConfig
from tests.trainer.data.corpora import Shape, Stream, cut_into_blocks, documents, opened, write_corpus
from trainer.data.corpus import CorpusReading, DocumentLayout, MixedSource
from trainer.device import pick_device
from trainer.models.llama.initial import initial_parameters
from trainer.models.llama.model import Decoder
from trainer.optim import InnerLoop
from trainer.parameters import WholeParameters

SHARED: dict[str, Any] = {"rope_base": 10_000.0, "norm_eps": 1e-5, "tied": True}
MODELS = {
    "tiny": SHARED | {"vocab": 2048, "dim": 64, "layers": 2, "heads": 2, "kv_heads": 1, "ffn": 172},
    "10M": SHARED | {"vocab": 8192, "dim": 320, "layers": 6, "heads": 5, "kv_heads": 5, "ffn": 864},
}
INNER = InnerConfig(
    lr=1e-3,
    beta1=0.9,
    beta2=0.95,
    eps=1e-8,
    weight_decay=0.1,
    clip_norm=1.0,
    z_loss=0.0,
    schedule="wsd",
    warmup_steps=1,
    cooldown=0.2,
    joiner_warmup_steps=0,
)
CORPUS_TOKENS = 1 << 22


def median_seconds(work: Callable[[int], object], times: int) -> float:
    taken = []
    for number in range(times + 1):  # the first one warms up
        began = time.perf_counter()
        work(number)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


class Subject:
    """A model, and the readings of one corpus.  length: predicted tokens of a row.  rows: rows of a step."""

    def __init__(self, name: str, folder: Path, arguments: argparse.Namespace) -> None:
        shape = ModelConfig.from_mapping(MODELS[name])
        self.length, self.rows, self.steps = arguments.length, arguments.rows, arguments.steps
        form = Shape(vocab=shape.vocab, token_bytes=2, block_tokens=1 << 19, shard_blocks=4)
        streams = [documents(seed, CORPUS_TOKENS, shape.vocab, longest=2 * arguments.document) for seed in range(2)]
        held_out = Stream(streams[0][: 1 << 16])
        corpus = write_corpus(
            folder / name, form, {str(seed): (Stream(each), held_out) for seed, each in enumerate(streams)}
        )
        self.places = {"shards": corpus / "shards", "blocks": cut_into_blocks(corpus, form, folder / f"{name}-blocks")}
        self.corpus = corpus
        self.model = Decoder(shape, pick_device(arguments.device))
        values = torch.empty(shape.parameters)
        initial_parameters(shape, 0, values.numpy())
        self.model.flat.copy_(values)
        self.loop = InnerLoop(WholeParameters(self.model), INNER)

    def reading(self, place: str, layout: DocumentLayout) -> CorpusReading:
        folder = opened(self.corpus, self.places[place])
        return CorpusReading(
            [MixedSource(name, folder, name) for name in "01"], RowMixture([MixturePhase(0, (3, 1))]), self.length, layout
        )

    def numbers(self, step: int) -> range:
        return range(step * self.rows, (step + 1) * self.rows)

    def step_seconds(self, layout: DocumentLayout) -> float:
        reading = self.reading("shards", layout)
        batches = [reading.rows(self.numbers(step)) for step in range(self.steps + 1)]

        def step(number: int) -> None:
            self.loop.step(batches[number], Place(number, 0.0))

        return median_seconds(step, self.steps)

    def reading_seconds(self, place: str, layout: DocumentLayout) -> float:
        reading = self.reading(place, layout)
        return median_seconds(lambda step: reading.rows(self.numbers(step)), 50)


def measure(name: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    subject = Subject(name, folder, arguments)
    joined, masked = (subject.step_seconds(layout) for layout in (DocumentLayout.JOINED, DocumentLayout.MASKED))
    shards, blocks = (subject.reading_seconds(place, DocumentLayout.MASKED) for place in ("shards", "blocks"))
    tokens = subject.length * subject.rows
    return {
        "model": name,
        "parameters": len(subject.model.flat),
        "tokens_per_step": tokens,
        "step_ms": 1000 * joined,
        "reading_shards_ms": 1000 * shards,
        "reading_blocks_ms": 1000 * blocks,
        "share": max(shards, blocks) / joined,
        "joined_tokens_per_s": tokens / joined,
        "masked_tokens_per_s": tokens / masked,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reading", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--length", type=int, default=512, help="predicted tokens of a row")
    parser.add_argument("--rows", type=int, default=8, help="rows of a step")
    parser.add_argument("--document", type=int, default=256, help="mean tokens of a document")
    parser.add_argument("--steps", type=int, default=5, help="steps that are measured")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reading-") as folder:
        rows = [measure(name, Path(folder), arguments) for name in arguments.models]
    if arguments.json:
        print(json.dumps({"threads": torch.get_num_threads(), "device": arguments.device, "models": rows}))
        return
    print(
        "| model | parameters | step, ms | reading from shards, ms | from blocks, ms | share | joined, tokens/s | masked |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['model']} | {row['parameters'] / 1e6:.1f} M | {row['step_ms']:.1f} | {row['reading_shards_ms']:.2f} | "
            f"{row['reading_blocks_ms']:.2f} | {100 * row['share']:.2f} % | {row['joined_tokens_per_s']:.0f} | "
            f"{row['masked_tokens_per_s']:.0f} |"
        )


if __name__ == "__main__":
    main()
