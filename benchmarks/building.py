"""Building of a corpus beside the tokenizers library alone: `python -m benchmarks.building`.

Speed: documents of shuffled lines of the program's own text, in .jsonl.zst, .parquet and .txt files, are built into a
corpus with as many workers as cores.  `encode_batch` of the library encodes the same texts with as many threads, from
memory, in batches of 1000 texts.  Both are measured in turn, and the median of the ratios counts.  Beside the elapsed time
stands the processor time of all processes, which other work on the computer changes less.

Memory: builds of growing inputs, of bytes, with two workers.  The kernel says the peak of the build and of a worker.  Inputs
and corpora are removed after each build; together they take about two and a half times the size of the largest input.

Identity: one worker and two give the same digest.  Prints tables, or with --json one object; asserts nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow
import pyarrow.parquet
import tokenizers
import zstandard
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from peer.corpora.build import cores
from peer.corpora.builtin import read_text

END = "<|endoftext|>"
VOCABULARY = 16_000
LINES = 100
"""Lines of a document, 4 kB on the average."""
BATCH = 1000
POOL_MB = 20.0
FILES = ("a.jsonl.zst", "b.parquet", "c")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def documents(megabytes: float, seed: int = 0) -> Iterator[str]:
    """Yield documents of this many bytes together."""
    lines = [line for document in read_text() for line in document.text.splitlines(keepends=True)]
    draw, left = random.Random(seed), megabytes * 1e6
    while left > 0:
        text = "".join(draw.choices(lines, k=LINES))
        left -= len(text.encode())
        yield text


def numbered_documents(megabytes: float) -> Iterator[str]:
    """Yield documents that are made fast: a few thousand texts again and again, each time with another first line."""
    texts, left = list(documents(min(megabytes, POOL_MB))), megabytes * 1e6
    for number, text in enumerate(itertools.cycle(texts)):
        if left <= 0:
            return
        left -= len(text)
        yield f"{number}\n{text}"


def write_inputs(folder: Path, texts: Iterator[str], *, small_files: bool = True) -> None:
    """Write documents in turn to a .jsonl.zst, a .parquet, and files of text."""
    (folder / "c").mkdir(parents=True)
    schema = pyarrow.schema([("text", pyarrow.string())])
    rows: list[str] = []
    with (
        (folder / "a.jsonl.zst").open("wb") as raw,
        zstandard.ZstdCompressor().stream_writer(raw) as lines,
        pyarrow.parquet.ParquetWriter(folder / "b.parquet", schema) as table,
    ):
        for number, text in enumerate(texts):
            kind = number % (10 if small_files else 2)
            if kind == 2:
                (folder / "c" / f"{number:08}.txt").write_text(text)
            elif kind % 2:
                rows.append(text)
                if len(rows) == BATCH:
                    table.write_batch(pyarrow.record_batch([rows], schema=schema))
                    rows = []
            else:
                lines.write(json.dumps({"text": text}).encode() + b"\n")
        if rows:
            table.write_batch(pyarrow.record_batch([rows], schema=schema))


def train_tokenizer(path: Path) -> None:
    made = tokenizers.Tokenizer(BPE())
    made.pre_tokenizer, made.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=ByteLevel.alphabet(), special_tokens=[END], show_progress=False
    )
    made.train_from_iterator(documents(3, seed=1), trainer)
    made.save(str(path))


@dataclass(frozen=True)
class Spent:
    """Tokens of a run, and its elapsed seconds and processor seconds of all its processes.  peaks: peak memory in bytes."""

    tokens: int
    elapsed_s: float
    processor_s: float
    peak_bytes: int = 0
    worker_peak_bytes: int = 0
    digest: str = ""


BUILD = "import sys; from benchmarks.building import built; built(sys.argv[1:])"
BASELINE = "import sys; from benchmarks.building import encoded; encoded(sys.argv[1:])"


def processor_s() -> float:
    return sum(
        resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )


def built(words: list[str]) -> None:
    """Build a corpus in a process of its own, and print what it took."""
    from peer.corpora.build import build
    from peer.corpora.folder import FinishedCorpus
    from peer.corpora.inputs import BuildInput
    from peer.corpora.options import BuildOptions, TokenFormat

    folder, tokenizer, out, workers = Path(words[0]), words[1], Path(words[2]), int(words[3])
    tokens = TokenFormat() if tokenizer == "bytes" else TokenFormat(tokenizer=Path(tokenizer), ends=(0,))
    inputs = [BuildInput("all", folder / name) for name in FILES]
    start, before = time.perf_counter(), processor_s()
    manifest = build(inputs, BuildOptions(tokens, workers=workers), out).manifest
    elapsed, spent = time.perf_counter() - start, processor_s() - before
    own, workers_own = (1024 * resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    count = sum(split.tokens for source in manifest.sources for split in (source.train, source.held_out))
    print(json.dumps(asdict(Spent(count, elapsed, spent, own, workers_own, FinishedCorpus(out).digest.hex()))))


def encoded(words: list[str]) -> None:
    """Encode the same documents with the library alone, in a process of its own."""
    texts = list(documents(float(words[1])))
    tokenizer = tokenizers.Tokenizer.from_file(words[0])
    tokenizer.encode_special_tokens = True
    start, before, count = time.perf_counter(), processor_s(), 0
    for place in range(0, len(texts), BATCH):
        some = tokenizer.encode_batch(texts[place : place + BATCH], add_special_tokens=False)
        count += sum(len(each.ids) for each in some)
    print(json.dumps(asdict(Spent(count, time.perf_counter() - start, processor_s() - before))))


def in_process(code: str, *words: str) -> Spent:
    environment = {**os.environ, "RAYON_NUM_THREADS": str(cores()), "TOKENIZERS_PARALLELISM": "true"}
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    return Spent(**json.loads(done.stdout))


def build_once(folder: Path, tokenizer: str, workers: int) -> Spent:
    out = folder.parent / "out"
    try:
        return in_process(BUILD, str(folder), tokenizer, str(out), str(workers))
    finally:
        shutil.rmtree(out, ignore_errors=True)


def speed(folder: Path, megabytes: float, rounds: int) -> dict[str, object]:
    """Measure the build and the library in turn."""
    inputs, tokenizer = folder / "speed", folder / "tokenizer.json"
    write_inputs(inputs, documents(megabytes))
    train_tokenizer(tokenizer)
    library, ours = [], []
    for number in range(rounds):
        say(f"speed, round {number + 1} of {rounds}")
        library.append(in_process(BASELINE, str(tokenizer), str(megabytes)))
        ours.append(build_once(inputs, str(tokenizer), cores()))
    say("one worker")
    alone = build_once(inputs, str(tokenizer), 1)
    pairs = list(zip(ours, library, strict=True))
    return {
        "megabytes": megabytes,
        "cores": cores(),
        "library": [asdict(each) for each in library],
        "build": [asdict(each) for each in ours],
        "elapsed_ratio": statistics.median(
            (one.tokens / one.elapsed_s) / (other.tokens / other.elapsed_s) for one, other in pairs
        ),
        "processor_ratio": statistics.median(
            (one.tokens / one.processor_s) / (other.tokens / other.processor_s) for one, other in pairs
        ),
        "workers_are_identical": alone.digest == ours[0].digest,
    }


def memory(folder: Path, sizes: list[float]) -> list[dict[str, object]]:
    """Measure the peaks of builds of bytes."""
    found: list[dict[str, object]] = []
    for megabytes in sizes:
        inputs = folder / "memory"
        say(f"memory, writing {megabytes:g} MB")
        write_inputs(inputs, numbered_documents(megabytes), small_files=False)
        say(f"memory, building {megabytes:g} MB")
        spent = build_once(inputs, "bytes", 2)
        shutil.rmtree(inputs)
        found.append({"megabytes": megabytes, **asdict(spent)})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=20, help="input of the measurement of speed (20)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each (3)")
    parser.add_argument("--memory", default="20,100,500", metavar="MB,MB,…", help="inputs of the measurement of memory")
    parser.add_argument("--json", action="store_true", help="one object")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *anything: sys.exit(1))  # so that the folder goes
    with tempfile.TemporaryDirectory(prefix="building-") as name:
        result: dict[str, object] = {
            "speed": speed(Path(name), args.megabytes, args.rounds) if args.rounds else None,
            "memory": memory(Path(name), [float(part) for part in args.memory.split(",") if part]),
        }
    if args.json:
        print(json.dumps(result))
    else:
        show(result)


def show(result: dict[str, object]) -> None:
    found = result["speed"]
    if isinstance(found, dict):
        print(f"speed, {found['megabytes']:g} MB, {found['cores']} cores      tokens/s   tokens/processor-s")
        for heading in ("library", "build"):
            for each in found[heading]:
                spent = Spent(**each)
                rates = spent.tokens / spent.elapsed_s, spent.tokens / spent.processor_s
                print(f"  {heading:<28}{rates[0]:>12,.0f}{rates[1]:>12,.0f}")
        print(f"  build / library             {found['elapsed_ratio']:>12.2f}{found['processor_ratio']:>12.2f}")
        print(f"  1 and {found['cores']} workers: {'the same' if found['workers_are_identical'] else 'other'} bytes")
    rows = result["memory"]
    assert isinstance(rows, list)
    print("memory, bytes         build's peak   worker's peak    MB/s")
    for row in rows:
        peaks = f"{row['peak_bytes'] / 1e6:>9.0f} MB{row['worker_peak_bytes'] / 1e6:>13.0f} MB"
        print(f"  {row['megabytes']:>8,.0f} MB       {peaks}{row['megabytes'] / row['elapsed_s']:>9.1f}")


if __name__ == "__main__":
    main()
