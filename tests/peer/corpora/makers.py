"""Inputs of builds for tests, and the documents of a finished corpus."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import tokenizers
import zstandard
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from peer.corpora.folder import FinishedCorpus
from peer.corpora.options import TokenFormat

END = "<|im_end|>"
SPECIAL = (END, "<|im_start|>")


def tokenizer_file(path: Path) -> Path:
    """A byte-level BPE with two merges, an end token and the marks of chatml."""
    letters = sorted(ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate([*letters, "ab", "er"])}
    made = tokenizers.Tokenizer(BPE(vocabulary, [("a", "b"), ("e", "r")]))
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([*SPECIAL])
    made.save(str(path))
    return path


def chat_tokens(path: Path) -> TokenFormat:
    return TokenFormat(tokenizer=tokenizer_file(path), ends=(258,), template="chatml")


def jsonl(rows: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write_rows(path: Path, rows: Sequence[Any]) -> Path:
    """Write rows in the format that the path's ending names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".zst":
        path.write_bytes(zstandard.compress(jsonl(rows)))
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(jsonl(rows)))
    else:
        path.write_bytes(jsonl(rows))
    return path


def mixed_folder(folder: Path, count: int = 60) -> Path:
    """A folder with documents in all formats, some of them in two files."""
    rows = [{"id": f"{number}", "text": f"document {number} " + "aberration " * (number % 7)} for number in range(count)]
    for name, start in (("a.jsonl", 0), ("b/c.jsonl.zst", 1), ("b/d.jsonl.gz", 2), ("e.parquet", 3)):
        write_rows(folder / name, rows[start::5])
    for row in rows[4::5]:
        (folder / f"{row['id']}.md").write_text(row["text"])
    (folder / "again.md").write_text(rows[0]["text"])
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0")
    (folder / ".hidden").write_text("hidden")
    return folder


def texts_of(folder: Path) -> dict[tuple[str, str], list[str]]:
    """The texts of each split of a corpus, in their order."""
    corpus = FinishedCorpus(folder)
    tokenizer = corpus.tokenizer()
    return {
        (source, which): [tokenizer.decode(each.tokens.tolist()) for each in corpus.documents(split)]
        for source, which, split in corpus.splits
    }


def content_of(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
