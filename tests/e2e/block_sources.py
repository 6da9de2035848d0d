"""Where a joiner's blocks come from: `python -m tests.e2e.block_sources --gigabytes 2`.

A corpus of random letters, in four sources, is made with numpy and `peer data import`.  The organiser has it, a web server
on loopback mirrors it, and a joiner trains beside the organiser for some rounds.  Printed are the blocks that the joiner
read and downloaded, and the bytes by their origin.

Blocks read are those of the rows that the joiner's chain says it consumed, and of the held-out rows that its trainer asked
for.  Blocks downloaded are all files in its cache; they include the blocks of the next round, which it fetches ahead.

The other swarms have a mirror that lies, stalls, redirects to a private address, or vanishes in the middle, and no other
source than the organiser.  For these, the sentence about the mirror is printed.

Exits with 1 if the joiner downloaded more than 1.1 times the blocks that it read, or a mirror that lies, redirects or
vanishes was not set aside.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from protocol.chain.base import round_settings
from protocol.chain.history import History
from protocol.chain.leases import RowRange, stretches_in
from protocol.chain.store import Store
from protocol.corpora.manifest import Block, CorpusManifest, blocks_needed, read_manifest, splits_of
from protocol.events import events as ev
from protocol.run.manifest import open_manifest
from protocol.wire.identity import PeerId
from tests.e2e.mirror_server import MIRRORS, MirrorServer
from tests.e2e.swarm import PATIENCE_S, Peer, Swarm

BAR = 1.1
"""Most bytes downloaded, over the bytes of the blocks read."""
SOURCES = ("one", "two", "three", "four")
"""Several, because a peer asks peers and mirrors for blocks of different shards at the same time."""
DOCUMENT_BYTES, PIECE_DOCUMENTS = 5_000, 4_000
BUILD_PATIENCE_S = 3600.0
RUN = """
name = "block sources"
admission = "open"
total_rounds = 100000
[model]
dim = 16
layers = 1
heads = 1
kv_heads = 1
ffn = 32
[data]
from = "corpus"
sequence_length = 1024
sequences_per_step = {sequences}
mirrors = {mirrors}
[inner]
lr = 1e-3
warmup_steps = 10
[rounds]
inner_steps = {steps}
min_members = 2
grace_s = 3.0
eviction_s = 10.0
stall_s = 4.0
"""


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class BlockSources:
    """A joiner's blocks in one swarm.

    mirrors: their manners.  read, downloaded: numbers of blocks.  ratio: downloaded bytes over read ones.  held_out: of
    both, the blocks of held-out rows.  block_bytes: of needed blocks by origin, as `peer status` says.  sent: bytes that
    each mirror sent.  sentences: of the joiner about each mirror; "" if there is none.  seconds: of the rounds.
    """

    mirrors: list[str]
    corpus_bytes: int
    block_size: int
    rounds: int
    read: int
    downloaded: int
    held_out: int
    read_bytes: int
    downloaded_bytes: int
    ratio: float
    block_bytes: dict[str, int]
    sent: list[int]
    sentences: list[str]
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether it downloaded little, and said why it sets each bad mirror aside."""
        expected = [MIRRORS[mirror][1] for mirror in self.mirrors]
        told = zip(self.mirrors, expected, self.sentences, strict=True)
        return self.ratio <= BAR and all(
            part in sentence and not (mirror == "honest" and sentence) for mirror, part, sentence in told
        )


def write_corpus(swarm: Swarm, size: int, block: int) -> Path:
    """Make a corpus of `size` bytes in all its sources, beside the run file of a swarm."""
    random, documents = np.random.default_rng(0), max(2, size // len(SOURCES) // DOCUMENT_BYTES)
    files = {source: swarm.folder / f"{source}.npy" for source in SOURCES}
    for file in files.values():
        tokens = np.lib.format.open_memmap(file, "w+", np.dtype(np.uint8), (documents, DOCUMENT_BYTES))
        for start in range(0, documents, PIECE_DOCUMENTS):
            piece = tokens[start : start + PIECE_DOCUMENTS]
            piece[:] = random.integers(ord("a"), ord("z"), piece.shape, np.uint8, endpoint=True)
        tokens.flush()
    words = ["data", "import", str(swarm.folder / "corpus"), *(f"{source}={file}" for source, file in files.items())]
    swarm.command(
        swarm.place("organiser"), *words, "--tokenizer", "bytes", "--block", str(block), patience_s=BUILD_PATIENCE_S
    )
    for file in files.values():
        file.unlink()
    return swarm.folder / "corpus"


def run_folder(peer: Peer) -> Path:
    (folder,) = (peer.folder / "runs").iterdir()
    return folder


def blocks_consumed(swarm: Swarm, peer: Peer, corpus: CorpusManifest) -> set[Block]:
    """The blocks of all rows that a peer consumed, according to its own chain; it must have ended."""
    signed = open_manifest(swarm.manifest.read_bytes())
    manifest, rows = signed.manifest, list[RowRange]()
    history = History(round_settings(signed.run, manifest), Store(run_folder(peer)))
    me = PeerId(peer.peer_id)
    roster = history.roster_at(0)
    for round in range(history.length):
        commit = history.commit_at(round)
        base = history.base_on(round, history.tip_at(round), roster)
        for member in commit.record.members:
            if member.peer == me:
                rows += base.rows_read(manifest, me, member.steps, stretches_in(member.stretches))
        roster = roster.after(commit)
    return set(blocks_needed(splits_of(manifest, [corpus]), manifest.mixture, rows, manifest.data.sequence_length))


def blocks_cached(peer: Peer, corpus: CorpusManifest) -> set[Block]:
    """The blocks in a peer's cache."""
    splits = [split for source in corpus.sources for split in (source.train, source.held_out)]
    known = [corpus.block(split, number) for split in splits for number in range(corpus.blocks(split))]
    folder = run_folder(peer) / "blocks"
    return {block for block in known if (folder / block.shard.hex() / str(block.number)).is_file()}


def sentence_about(peer: Peer, mirror: MirrorServer, expected: str) -> str:
    """The first warning of a peer about a mirror that has these words; "" if there is none."""
    texts = (each.text for each in peer.heard(ev.Notice) if each.level == "warning" and mirror.host in each.text)
    return next((text for text in texts if expected in text), "")


@dataclass(frozen=True)
class SwarmSize:
    """Sizes of a swarm.  corpus, block: bytes.  sequences: rows of a step."""

    corpus: int
    block: int
    rounds: int
    steps: int = 8
    sequences: int = 16


def measure(folder: Path, manners: Sequence[str], size: SwarmSize) -> BlockSources:
    """Let a joiner train for some rounds beside the organiser, with mirrors of these manners."""
    expected = [MIRRORS[manner][1] for manner in manners]
    say(f"mirrors: {'; '.join(manners)}")
    with Swarm(folder, RUN) as swarm, ExitStack() as stack:
        corpus = write_corpus(swarm, size.corpus, size.block)
        manifest = read_manifest((corpus / "corpus.msgpack").read_bytes())
        mirrors = [stack.enter_context(MIRRORS[manner][0](corpus)) for manner in manners]
        urls = json.dumps([mirror.url for mirror in mirrors])
        swarm.run_file.write_text(RUN.format(mirrors=urls, steps=size.steps, sequences=size.sequences))
        swarm.create_run()
        say("the corpus and the run are made")
        organiser, joiner = swarm.peer("organiser").start(), swarm.peer("joiner")
        joiner.start("--mirror-networks", "127.0.0.0/8", "--keep-blocks", "0")
        first, begun, told = swarm.whole(organiser, joiner), time.monotonic(), set[int]()

        def sentences() -> list[str]:
            return [sentence_about(joiner, *each) for each in zip(mirrors, expected, strict=True)]

        def has_trained() -> bool:
            if joiner.committed not in told:
                told.add(joiner.committed)
                say(f"{joiner.committed} rounds, {sum(map(bool, sentences()))} sentences")
            is_told = all(sentence for sentence, words in zip(sentences(), expected, strict=True) if words)
            return joiner.committed >= first + size.rounds - 1 and is_told

        swarm.until("rounds, and a sentence about each bad mirror", has_trained, max(PATIENCE_S, 60.0 * size.rounds))
        seconds, block_bytes, heard = time.monotonic() - begun, joiner.status()["block_bytes"], sentences()
        swarm.equal(joiner.committed, organiser, joiner)
        assert joiner.leave() == 0, joiner.log[-2000:]
    cached, consumed = blocks_cached(joiner, manifest), blocks_consumed(swarm, joiner, manifest)
    splits = [source.held_out for source in manifest.sources]
    held_out = cached & {manifest.block(split, number) for split in splits for number in range(manifest.blocks(split))}
    read = consumed | held_out
    read_bytes, downloaded_bytes = (sum(block.size for block in blocks) for blocks in (read, cached))
    tokens = sum(split.tokens for source in manifest.sources for split in (source.train, source.held_out))
    return BlockSources(
        mirrors=list(manners),
        corpus_bytes=tokens * manifest.token_bytes,
        block_size=manifest.block_tokens * manifest.token_bytes,
        rounds=joiner.committed - first + 1,
        read=len(read),
        downloaded=len(cached),
        held_out=len(held_out),
        read_bytes=read_bytes,
        downloaded_bytes=downloaded_bytes,
        ratio=downloaded_bytes / read_bytes,
        block_bytes=block_bytes,
        sent=[mirror.site.sent for mirror in mirrors],
        sentences=heard,
        seconds=seconds,
    )


def show(each: BlockSources) -> None:
    sizes = f"corpus of {each.corpus_bytes / 1e6:,.0f} MB in blocks of {each.block_size / 1e3:,.0f} kB"
    print(f"{'; '.join(each.mirrors)}: {sizes}")
    ratio = f"{each.ratio:.3f} of the bytes read (at most {BAR})"
    print(f"  {each.rounds} rounds, {each.read} blocks read, {each.held_out} of them held out")
    print(f"  {each.downloaded} blocks downloaded, {each.downloaded_bytes / 1e6:.1f} MB, {ratio}")
    print("  from: " + ", ".join(f"{origin} {count / 1e6:.1f} MB" for origin, count in each.block_bytes.items()))
    print(f"  mirrors sent {sum(each.sent) / 1e6:.1f} MB; rounds took {each.seconds / max(1, each.rounds):.1f} s each")
    print("".join(f"  {sentence}\n" for sentence in each.sentences if sentence), end="", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.block_sources", description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=0.02, help="size of the corpus beside the honest mirror (0.02)")
    parser.add_argument("--rounds", type=int, default=12, help="rounds of the joiner (12)")
    parser.add_argument("--steps", type=int, default=8, help="inner steps of a round, of 16 rows of 1024 tokens (8)")
    parser.add_argument("--block", type=int, default=1 << 20, help="largest block, in bytes (1048576)")
    parser.add_argument("--mirrors", nargs="+", default=list(MIRRORS), choices=list(MIRRORS), metavar="MANNER")
    parser.add_argument("--json", action="store_true", help="one JSON object for each swarm")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *anything: sys.exit(1))  # so that the folder and the peers go
    large = SwarmSize(int(arguments.gigabytes * 1e9), arguments.block, arguments.rounds, arguments.steps)
    small = SwarmSize(20_000_000, 1 << 20, min(arguments.rounds, 12))
    is_right = True
    for manner in arguments.mirrors:
        with tempfile.TemporaryDirectory(prefix="block-sources-") as name:
            found = measure(Path(name), [manner], large if manner == "honest" else small)
        is_right &= found.is_right
        if arguments.json:
            print(json.dumps({**asdict(found), "is_right": found.is_right}), flush=True)
        else:
            show(found)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
