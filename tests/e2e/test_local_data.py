"""Three volunteers train one model, each on a folder of its own that no other peer ever sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peer.errors import ExitCode
from protocol.events import events as ev
from tests.e2e.own_texts import KINDS, documents
from tests.e2e.swarm import Peer, Swarm

pytestmark = pytest.mark.slow

RUN = """
name = "hospitals"
total_rounds = 1000
[model]
dim = 64
layers = 2
[data]
source = "local"
sequence_length = 64
sequences_per_step = 4
[inner]
lr = 2e-3
warmup_steps = 20
[rounds]
inner_steps = 20
min_members = 3
grace_s = 3.0
eviction_s = 8.0
stall_s = 4.0
"""
ROUNDS = 6
MARK = "RECORD-OF-{}-ALONE"


def a_folder(folder: Path, kind: str) -> Path:
    """Texts of one kind, each with a mark that no other folder has."""
    folder.mkdir()
    for number, text in enumerate(documents(kind, 300_000)):
        (folder / f"{number}.txt").write_text(f"{MARK.format(kind)} {text}")
    return folder


def holds(peer: Peer, words: bytes) -> bool:
    return any(words in path.read_bytes() for path in peer.folder.rglob("*") if path.is_file())


def test_three_train_each_on_its_own_folder_which_stays_where_it_is(tmp_path: Path) -> None:
    with Swarm.created(tmp_path, RUN) as swarm:
        assert "name yours with --data FOLDER" in swarm.command(
            swarm.place("nobody"), "join", str(swarm.manifest), "--headless", "--local", code=ExitCode.INPUT
        )
        peers = [swarm.peer(name) for name in ("organiser", "friend", "cousin")]
        for peer, kind in zip(peers, KINDS, strict=True):
            peer.start("--data", str(a_folder(tmp_path / kind, kind)))
        seed = swarm.peer("seed").start("--role", "seed")
        swarm.whole(*peers)
        swarm.until("some rounds", lambda: peers[0].committed >= ROUNDS)
        swarm.until("the mean of all", lambda: any(event.members == 3 for event in peers[0].heard(ev.EvalLoss)))
        losses = [event.loss for event in peers[0].heard(ev.EvalLoss) if event.members == 3]
        swarm.until("a later one", lambda: peers[0].heard(ev.EvalLoss)[-1].loss < losses[0] - 0.2)
        assert {event.why_idle for event in peers[1].heard(ev.PhaseChanged)} >= {"preparing data"}
        swarm.equal(peers[0].committed, *peers, seed)
        for peer, kind in zip(peers, KINDS, strict=True):
            assert holds(peer, MARK.format(kind).encode())
            others = [other for other in [*peers, seed] if other is not peer]
            assert not any(holds(other, MARK.format(kind).encode()) for other in others)
            blobs = json.loads(swarm.command(peer.folder, "weights", "--json"))["blobs"]
            assert blobs and not any(blob["what"] in ("blocks", "file") for blob in blobs), "it offers nothing of its data"
        assert "nobody can audit" in swarm.command(peers[0].folder, "run", "show", str(swarm.manifest))
        assert "nobody can audit" in swarm.command(peers[0].folder, "ledger")
