"""Small corpora of random tokens, as manifests, blocks and folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from protocol.corpora.manifest import Block, CorpusKind, CorpusManifest, CorpusSource, Shards, Split, shards_of
from protocol.wire.hashes import Hash, chunk_hash, tree_root


@dataclass
class Corpus:
    """A corpus in memory.  data: bytes of each shard.  leaves: hashes of each shard's blocks."""

    manifest: CorpusManifest
    data: dict[Hash, bytes]
    leaves: dict[Hash, list[Hash]]

    @property
    def shards(self) -> Shards:
        return shards_of([self.manifest])

    def bytes_of(self, block: Block) -> bytes:
        return self.data[block.shard][self.shards[block.shard].spans[block.number]]

    def blocks(self, source: int = 0) -> list[Block]:
        """The blocks of a source for training, in order."""
        split = self.manifest.sources[source].train
        return [self.manifest.block(split, number) for number in range(self.manifest.blocks(split))]

    def all_blocks(self) -> list[Block]:
        return [shard.block(number) for shard in self.shards.values() for number in range(len(shard))]

    def write(self, folder: Path) -> None:
        """As a person's build leaves it."""
        (folder / "shards").mkdir(parents=True)
        (folder / "corpus.msgpack").write_bytes(self.manifest.encode())
        for root, data in self.data.items():
            (folder / "shards" / f"{root.hex()}.shard").write_bytes(data)
            (folder / "shards" / f"{root.hex()}.leaves").write_bytes(b"".join(self.leaves[root]))


def a_corpus(
    tokens: Sequence[int] = (40_000,), block_tokens: int = 1024, shard_blocks: int = 8, held_out: int = 0, seed: int = 1
) -> Corpus:
    """A corpus of text with a source for each number of tokens, of two bytes each."""
    random, corpus = Random(seed), Corpus.__new__(Corpus)
    corpus.data, corpus.leaves = {}, {}

    def split(count: int) -> Split:
        data, roots, block_bytes = random.randbytes(2 * count), list[bytes](), 2 * block_tokens
        for at in range(0, len(data), block_bytes * shard_blocks):
            shard = data[at : at + block_bytes * shard_blocks]
            leaves = [chunk_hash(shard[start : start + block_bytes]) for start in range(0, len(shard), block_bytes)]
            root = tree_root(leaves)
            corpus.data[root], corpus.leaves[root] = shard, leaves
            roots.append(root)
        return Split(tokens=count, documents=min(count, 1), text_bytes=count, shards=roots)

    sources = [
        CorpusSource(name=f"source{number}", train=split(count), held_out=split(held_out))
        for number, count in enumerate(tokens)
    ]
    corpus.manifest = CorpusManifest(
        kind=CorpusKind.TEXT,
        tokenizer=bytes(32),
        vocab=1 << 16,
        end=0,
        token_bytes=2,
        row_tokens=0,
        block_tokens=block_tokens,
        shard_blocks=shard_blocks,
        recipe="{}",
        sources=sources,
    )
    return corpus
