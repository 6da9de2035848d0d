"""Small corpora on disk, written in a few lines; the manifest is the protocol's, so that both sides agree on the format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from protocol.corpora.manifest import CorpusKind, CorpusManifest, CorpusSource, Split
from protocol.wire.hashes import chunk_hash, tree_root
from trainer.data.corpus import BEGINS, COUNTS, BlockFolders, CorpusFolder, StoredCorpus

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Shape:
    """Numbers of a corpus."""

    kind: CorpusKind = CorpusKind.TEXT
    vocab: int = 256
    end: int = 0
    token_bytes: Literal[1, 2, 4] = 1
    row_tokens: int = 0
    block_tokens: int = 64
    shard_blocks: int = 3


@dataclass(frozen=True)
class Stream:
    """Tokens of a split, and their flags in a corpus of rows."""

    tokens: I64
    flags: U8 | None = None


def write_corpus(folder: Path, shape: Shape, sources: Mapping[str, tuple[Stream, Stream]]) -> Path:
    """Write a corpus of sources, each with its training and its held-out split; return the folder."""
    (folder / "shards").mkdir(parents=True)
    made = [CorpusSource(name=name, train=_split(folder, shape, one), held_out=_split(folder, shape, other))
            for name, (one, other) in sources.items()]  # fmt: skip
    manifest = CorpusManifest(
        kind=shape.kind,
        tokenizer=bytes(32),
        vocab=shape.vocab,
        end=shape.end,
        token_bytes=shape.token_bytes,
        row_tokens=shape.row_tokens,
        block_tokens=shape.block_tokens,
        shard_blocks=shape.shard_blocks,
        recipe="",
        sources=made,
    )
    (folder / "corpus.msgpack").write_bytes(manifest.encode())
    return folder


def _split(folder: Path, shape: Shape, stream: Stream) -> Split:
    blocks = []
    for start in range(0, len(stream.tokens), shape.block_tokens):
        span = slice(start, start + shape.block_tokens)
        flags = b"" if stream.flags is None else stream.flags[span].tobytes()
        blocks.append(stream.tokens[span].astype(f"<u{shape.token_bytes}").tobytes() + flags)
    roots: list[bytes] = []
    for start in range(0, len(blocks), shape.shard_blocks):
        part = blocks[start : start + shape.shard_blocks]
        leaves = [chunk_hash(block) for block in part]
        roots.append(tree_root(leaves))
        (folder / "shards" / f"{roots[-1].hex()}.leaves").write_bytes(b"".join(leaves))
        (folder / "shards" / f"{roots[-1].hex()}.shard").write_bytes(b"".join(part))
    documents = int((stream.tokens == shape.end).sum())
    return Split(tokens=len(stream.tokens), documents=documents, text_bytes=len(stream.tokens) - documents, shards=roots)


def cut_into_blocks(folder: Path, shape: Shape, cache: Path, numbers: Sequence[int] | None = None) -> Path:
    """Lay a corpus's blocks out as a peer's cache does, one file a block; `numbers`: only these of each shard."""
    width = shape.token_bytes + (shape.kind is not CorpusKind.TEXT)
    for shard in (folder / "shards").glob("*.shard"):
        data, size = shard.read_bytes(), shape.block_tokens * width
        (cache / shard.stem).mkdir(parents=True)
        (cache / shard.stem / "leaves").write_bytes(shard.with_suffix(".leaves").read_bytes())
        for number in range(-(-len(data) // size)):
            if numbers is None or number in numbers:
                (cache / shard.stem / str(number)).write_bytes(data[number * size : (number + 1) * size])
    return cache


def opened(folder: Path, *caches: Path) -> CorpusFolder:
    """A corpus that is read from its own folder, or from these."""
    blocks = BlockFolders(caches or (folder / "shards",))
    return CorpusFolder(StoredCorpus.read(folder / "corpus.msgpack"), blocks)


def documents(seed: int, tokens: int, vocab: int = 256, end: int = 0, longest: int = 40) -> I64:
    """Random documents with their end tokens, together `tokens` long."""
    random = np.random.default_rng(seed)
    stream = random.integers(1, vocab, tokens)
    at = -1
    while (at := at + int(random.integers(1, longest))) < tokens:
        stream[at] = end
    return stream


def texts(seed: int, train: int, held_out: int, vocab: int = 256) -> tuple[Stream, Stream]:
    """Both splits of a source of text."""
    return Stream(documents(seed, train, vocab)), Stream(documents(seed + 1000, held_out, vocab))


def preferences(seed: int, pairs: int, row_tokens: int) -> Stream:
    """Pairs that begin alike; the chosen one goes on with even tokens, the rejected one with odd ones, and half counts."""
    random = np.random.default_rng(seed)
    half = row_tokens // 2
    tokens = random.integers(1, 120, (pairs, 2, row_tokens)) * 2
    tokens[:, 1, :half] = tokens[:, 0, :half]
    tokens[:, 1, half:] += 1
    flags = np.zeros(tokens.shape, np.uint8)
    flags[..., 0] = BEGINS
    flags[..., half:] = COUNTS
    return Stream(tokens.reshape(-1), flags.reshape(-1))
