"""Blocks of a joiner whose mirrors are all bad: they come from the organiser, and none that was not leased to the joiner."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from protocol.chain.base import round_settings
from protocol.chain.history import History
from protocol.chain.leases import Ranges
from protocol.chain.store import Store
from protocol.corpora.manifest import Block, CorpusManifest, blocks_needed, read_manifest, splits_of
from protocol.events import events as ev
from protocol.run.manifest import open_manifest
from protocol.wire.identity import PeerId
from tests.e2e.mirror_server import MIRRORS, MirrorServer
from tests.e2e.swarm import Peer, Swarm

pytestmark = pytest.mark.slow

SOURCES = ("one", "two", "three", "four")
"""Several, because a peer asks peers and mirrors for blocks of different shards at the same time."""
SOURCE_BYTES, DOCUMENT_BYTES, BLOCK_BYTES, ROUNDS = 2_500_000, 5_000, 1 << 20, 12
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
sequences_per_step = 16
mirrors = {mirrors}
[inner]
lr = 1e-3
warmup_steps = 10
[rounds]
inner_steps = 4
min_members = 2
grace_s = 3.0
eviction_s = 10.0
stall_s = 4.0
"""
BAD = {manner: (make, words) for manner, (make, words) in MIRRORS.items() if words}


def write_corpus(swarm: Swarm) -> Path:
    """Make a corpus of random letters beside the run file of a swarm."""
    random, shape = np.random.default_rng(0), (SOURCE_BYTES // DOCUMENT_BYTES, DOCUMENT_BYTES)
    words = ["data", "import", str(swarm.folder / "corpus"), "--tokenizer", "bytes", "--block", str(BLOCK_BYTES)]
    for source in SOURCES:
        np.save(swarm.folder / f"{source}.npy", random.integers(ord("a"), ord("z"), shape, np.uint8, endpoint=True))
        words.append(f"{source}={swarm.folder / source}.npy")
    swarm.command(swarm.place("organiser"), *words)
    return swarm.folder / "corpus"


def run_folder(peer: Peer) -> Path:
    (folder,) = (peer.folder / "runs").iterdir()
    return folder


def blocks_leased(swarm: Swarm, peer: Peer, corpus: CorpusManifest) -> set[Block]:
    """Return the blocks of the rows that a peer's own chain leases to it; the peer must have ended.

    In each round these are its lease, and the lease that it expects for the next round and fetches ahead.  If a peer does
    not finish its lease, as happens on a busy computer, the next lease is another than expected, and what was fetched
    ahead may never be read.  So the blocks that are read do not bound those that are downloaded.
    """
    signed = open_manifest(swarm.manifest.read_bytes())
    manifest, rows, me = signed.manifest, list[Ranges](), PeerId(peer.peer_id)
    history = History(round_settings(signed.run, manifest), Store(run_folder(peer)))
    roster = history.roster_at(0)
    for round in range(history.length + 1):
        base = history.base_on(round, history.tip_at(round), roster)
        rows += [base.lease(manifest, me), base.next_lease(manifest, me)]
        roster = roster.after(history.commit_at(round)) if round < history.length else roster
    splits, length = splits_of(manifest, [corpus]), manifest.data.sequence_length
    return {block for lease in rows for block in blocks_needed(splits, manifest.mixture, lease, length)}


def blocks_cached(peer: Peer, corpus: CorpusManifest, *, held_out: bool) -> set[Block]:
    """Return the blocks in a peer's cache of one part of all sources."""
    splits = [source.held_out if held_out else source.train for source in corpus.sources]
    known = [corpus.block(split, number) for split in splits for number in range(corpus.blocks(split))]
    folder = run_folder(peer) / "blocks"
    return {block for block in known if (folder / block.shard.hex() / str(block.number)).is_file()}


def test_training_goes_on_beside_bad_mirrors_which_are_set_aside_with_a_sentence(tmp_path: Path) -> None:
    with Swarm(tmp_path, RUN) as swarm, ExitStack() as stack:
        folder = write_corpus(swarm)
        corpus = read_manifest((folder / "corpus.msgpack").read_bytes())
        mirrors = [stack.enter_context(make(folder)) for make, _ in BAD.values()]
        swarm.run_file.write_text(RUN.format(mirrors=json.dumps([mirror.url for mirror in mirrors])))
        swarm.create_run()
        organiser, joiner = swarm.peer("organiser").start(), swarm.peer("joiner")
        joiner.start("--mirror-networks", "127.0.0.0/8", "--keep-blocks", "0")
        first = swarm.whole(organiser, joiner)

        def told(mirror: MirrorServer, words: str) -> list[str]:
            texts = [each.text for each in joiner.heard(ev.Notice) if each.level == "warning" and mirror.host in each.text]
            return [text for text in texts if words in text]

        about = [(mirror, words) for mirror, (_, words) in zip(mirrors, BAD.values(), strict=True)]
        swarm.until("a sentence about each mirror", lambda: all(told(*each) for each in about))
        swarm.until("rounds", lambda: joiner.committed >= first + ROUNDS - 1)
        for each in about:
            assert told(*each)[0].startswith("the mirror 127.0.0.1:")
            assert "it is asked again in" in told(*each)[0] or "please tell the organiser" in told(*each)[0]
        block_bytes = joiner.status()["block_bytes"]
        swarm.equal(joiner.committed, organiser, joiner)
        assert joiner.leave() == 0, joiner.log[-2000:]
    trained_on = blocks_cached(joiner, corpus, held_out=False)
    assert trained_on and not trained_on - blocks_leased(swarm, joiner, corpus), "it downloads what is leased to it"
    downloaded = sum(block.size for block in trained_on | blocks_cached(joiner, corpus, held_out=True))
    assert downloaded < len(SOURCES) * SOURCE_BYTES / 2
    assert sum(count for origin, count in block_bytes.items() if origin != "disk") > 0 == block_bytes["seed"]
