"""Somebody's own data, made by a script: texts of three kinds in the formats that people have, and a tokenizer for them.

The texts are sentences of a small grammar, different for each kind, so that a small model can learn them within minutes.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from pathlib import Path

import zstandard
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
VOCABULARY = 2048
DOCUMENT_SENTENCES = 40
KINDS = ("stories", "reports", "code")
_NAMES = "Ada Grace Alan Edsger Barbara Donald Frances John Hedy Kurt".split()
_VERBS = "opens closes measures repairs forgets remembers paints counts follows teaches".split()
_THINGS = "door engine river garden letter clock bridge lamp ticket window harbour ledger".split()
_WORDS = "total mean index limit offset weight height width depth margin".split()


def sentence(kind: str, draw: random.Random) -> str:
    """One sentence, or one line of code."""
    if kind == "stories":
        name, other = draw.sample(_NAMES, 2)
        return f"{name} {draw.choice(_VERBS)} the {draw.choice(_THINGS)}, and {other} {draw.choice(_VERBS)} it again. "
    if kind == "reports":
        thing, number = draw.choice(_THINGS), draw.randrange(1000)
        return f"Item {number}: the {thing} was checked by {draw.choice(_NAMES)}; result {number % 7}. "
    one, other = draw.sample(_WORDS, 2)
    return f"    {one} = {other} * {draw.randrange(10)} + {draw.randrange(10)}\n"


def documents(kind: str, size: int, seed: int = 0) -> Iterator[str]:
    """Documents of a kind with about `size` bytes in all."""
    draw, made = random.Random(f"{kind} {seed}"), 0
    while made < size:
        text = "".join(sentence(kind, draw) for _ in range(draw.randrange(1, 2 * DOCUMENT_SENTENCES)))
        text = f"def calculate_{made}():\n{text}" if kind == "code" else text
        made += len(text)
        yield text


def write_inputs(folder: Path, size: int) -> dict[str, Path]:
    """Write `size` bytes of the three kinds: a folder of .txt files, a .jsonl.zst and a .parquet; their paths by kind."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    stories, reports, code = folder / "stories", folder / "reports.jsonl.zst", folder / "code.parquet"
    stories.mkdir()
    for number, text in enumerate(_joined(documents("stories", size // 3), max(1, size // 3 // 500))):
        (stories / f"{number:06}.txt").write_text(text)
    with (
        reports.open("wb") as file,
        zstandard.ZstdCompressor().stream_writer(file) as writer,
        io.TextIOWrapper(writer, encoding="utf-8") as lines,
    ):
        for number, text in enumerate(documents("reports", size // 3)):
            lines.write(json.dumps({"id": f"report-{number}", "text": text, "language": "en"}) + "\n")
    schema, rows = pa.schema([("text", pa.string()), ("licence", pa.string())]), list[str]()
    with pq.ParquetWriter(code, schema) as table:
        for text in documents("code", size // 3):
            rows.append(text)
            if len(rows) == 1000:
                table.write_table(pa.table({"text": rows, "licence": ["mit"] * len(rows)}, schema))
                rows.clear()
        table.write_table(pa.table({"text": rows, "licence": ["mit"] * len(rows)}, schema))
    return {"stories": stories, "reports": reports, "code": code}


def _joined(texts: Iterator[str], size: int) -> Iterator[str]:
    """Join texts to files of at least `size` bytes, so that there are at most some 500."""
    held = ""
    for text in texts:
        held += text
        if len(held) >= size:
            yield held
            held = ""
    if held:
        yield held


def write_tokenizer(path: Path, size: int = 1 << 20) -> Path:
    """Train a byte-pair tokenizer on such texts; return the tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for kind in KINDS for text in documents(kind, size // 3, seed=1)), trainer)
    tokenizer.save(str(path))
    return path
