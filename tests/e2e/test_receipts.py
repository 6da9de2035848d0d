"""Real peers of which one claims work that it does not do: all others set it aside, and none of the honest."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.control.client import ControlClient
from protocol.events import events as ev
from tests.e2e.cheating_peer import CHEAT, OTHER_ROWS, STALE, TENTH, ZEROS
from tests.e2e.swarm import TINY_MODEL, Peer, Swarm

RUN = (
    TINY_MODEL.replace("sequences_per_step = 2", "sequences_per_step = 32").replace(
        "warmup_steps = 4", "warmup_steps = 4\nlr = 1e-3"
    )
    + """
[rounds]
inner_steps = 20
min_members = 2
grace_s = 3.0
eviction_s = 8.0
stall_s = 4.0
"""
)


PATIENCE_S = 900.0
"""Peers that share two busy cores audit seldom; a cheat that is found again is set aside for longer each time."""


def set_aside(peer: Peer) -> set[str]:
    return {event.peer for event in peer.heard(ev.MemberSetAside)}


def has_aside(peer: Peer, other: str, rounds: int) -> bool:
    """Whether a peer has set another one aside for so many rounds more."""
    untils = [event.until for event in peer.heard(ev.MemberSetAside) if event.peer == other]
    return bool(untils) and untils[-1] > peer.committed + rounds


@pytest.mark.slow
@pytest.mark.parametrize("cheat", [ZEROS, STALE, OTHER_ROWS, TENTH])
def test_who_claims_work_that_it_does_not_do_is_set_aside_by_all(tmp_path: Path, cheat: str) -> None:
    with Swarm.created(tmp_path, RUN) as swarm:
        honest = [swarm.peer(name) for name in ("one", "two", "three")]
        for peer in honest:
            peer.start()
        swarm.until("a round of the honest", lambda: all(peer.committed for peer in honest))
        liar = swarm.peer("liar")
        liar.program, swarm.environment[CHEAT] = ("tests.e2e.cheating_peer",), cheat
        liar.start()
        swarm.until("it is a member", lambda: any(liar.peer_id in each.members for each in honest[0].commits.values()))
        # The first may give it another chance before the last has found it.
        swarm.until("all have set it aside", lambda: all(has_aside(peer, liar.peer_id, 10) for peer in honest), PATIENCE_S)
        client = ControlClient(honest[0].folder)
        shown = {each.name: each for each in client.status().swarm}
        assert shown["liar"].set_aside and shown["liar"].aside_until and not shown["two"].set_aside
        start = max(peer.committed for peer in honest)
        swarm.until("nine rounds more", lambda: all(peer.committed >= start + 9 for peer in honest))
        its = [round for round in range(start + 1, start + 9) if liar.peer_id in honest[0].members_of(round)]
        assert len(its) <= 4, "one of four electors, which keeps its vote, plans one round of four"
        assert all(set_aside(peer) == {liar.peer_id} for peer in honest), "nobody else"
        told = [event.text for event in liar.heard(ev.Notice) if "set this peer aside" in event.text]
        assert {name for name in ("one", "two", "three") if any(text.startswith(f"{name} ") for text in told)}
