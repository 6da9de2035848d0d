"""A real peer that signs wrong averages: the audit finds them, everybody gets the proof, and the round is made anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.audit.evidence import Law, decode_evidence, judge
from protocol.chain.store import Store
from protocol.events import events as ev
from protocol.run.manifest import open_manifest
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from tests.e2e.swarm import Peer, Swarm

ROUNDS = 3


def ejections(peer: Peer, liar: Peer) -> list[ev.PeerEjected]:
    return [event for event in peer.heard(ev.PeerEjected) if event.peer == liar.peer_id]


def newest_members(peer: Peer) -> list[list[str]]:
    """Of the last rounds that it committed."""
    return [peer.members_of(round) for round in sorted(peer.commits)[-ROUNDS:]]


def proven_liars(swarm: Swarm, peer: Peer, proof: str) -> set[PeerId]:
    """Whom the proof on this peer's disk convicts, judged here from the manifest alone.  The peer must be down."""
    signed = open_manifest(swarm.manifest.read_bytes())
    manifest = signed.manifest
    law = Law(signed.run, manifest.fragments, manifest.layouts, manifest.aggregation)
    stores = [Store(path.parent.parent) for path in peer.folder.rglob(f"evidence/{proof}")]
    found = [store.evidence.load(Hash(bytes.fromhex(proof))) for store in stores]
    return {judge(law, decode_evidence(raw)).peer for raw in found if raw is not None}


@pytest.mark.slow
def test_a_wrong_average_is_blamed_on_its_owner_and_the_round_is_made_without_it(tmp_path: Path) -> None:
    with Swarm.created(tmp_path) as swarm:
        one, two, liar = swarm.peer("one"), swarm.peer("two"), swarm.peer("liar")
        liar.program = ("tests.e2e.lying_peer",)
        for peer in (one, two, liar):
            peer.start()
        swarm.until("the liar ejected by both", lambda: ejections(one, liar) and ejections(two, liar))
        start = max(one.committed, two.committed)
        swarm.until(
            f"{ROUNDS} rounds without it",
            lambda: all(
                peer.committed >= start + ROUNDS and liar.peer_id not in sum(newest_members(peer), []) for peer in (one, two)
            ),
        )
        swarm.equal(swarm.whole(one, two), one, two)
        for peer in (one, two):
            assert liar.peer_id not in sum(newest_members(peer), []), "once out, it stays out"
            proof = ejections(peer, liar)[0].evidence
            assert peer.leave() == 0, peer.log[-2000:]
            # Each may have drawn another wrong chunk, so the proofs may differ; either convicts by itself.
            assert proven_liars(swarm, peer, proof) == {liar.peer_id}
