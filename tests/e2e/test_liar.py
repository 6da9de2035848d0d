"""A real peer that signs wrong averages: the audit finds them, everybody gets the proof, and the round is made anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol import events as ev
from tests.e2e.swarm import TINY_RUN, Peer, Swarm

SLOW_RUN = TINY_RUN.replace("inner_steps = 20", "inner_steps = 100\nmin_members = 2")
"""Rounds that nobody makes alone, and long enough to be joined."""


def ejected(peer: Peer, liar: Peer) -> list[ev.PeerEjected]:
    return [event for event in peer.heard(ev.PeerEjected) if event.peer == liar.peer_id]


@pytest.mark.parametrize("lie", ["blow-up", "flip-one"])
def test_a_wrong_average_is_blamed_on_its_owner_and_the_round_is_made_without_it(tmp_path: Path, lie: str) -> None:
    with Swarm(tmp_path, SLOW_RUN) as swarm:
        swarm.create_run()
        one, two, liar = swarm.peer("one"), swarm.peer("two"), swarm.peer("liar")
        liar.program = ("tests.e2e.lying_peer", lie)
        for peer in (one, two, liar):
            peer.start()
        swarm.until("the liar ejected by both", lambda: ejected(one, liar) and ejected(two, liar))
        assert ejected(one, liar)[0].evidence == ejected(two, liar)[0].evidence, "one proof, judged by everybody"
        start = max(one.committed, two.committed)
        swarm.until("three rounds without it", lambda: min(one.committed, two.committed) >= start + 3)
        rounds = swarm.whole(one, two)
        swarm.equal(rounds, one, two)
        for round in range(start + 1, rounds):
            assert liar.peer_id not in one.members_of(round)
        proof = ejected(one, liar)[0].evidence
        for peer in (one, two):
            assert list(peer.folder.rglob(f"evidence/{proof}")), "the proof is kept"
