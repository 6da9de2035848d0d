"""Real peers on emulated home lines: narrow, far from each other, and now and then a packet is lost, or all of them.

Each test with rounds in one way; other ways are simulated.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from benchmarks.links import Access, Links, address, why_not
from protocol.events import events as ev
from tests.e2e.swarm import LARGE_MODEL, TINY_RUN, WAYS, Peer, Swarm

PORT, WHY_NOT = 4800, why_not()
LONG_EXCHANGES = (
    LARGE_MODEL
    + """
[rounds]
inner_steps = 10
min_members = 3
grace_s = 10
eviction_s = 60
stall_s = 10
"""
)
"""An exchange takes 10 s on lines of 4 Mbit/s."""
LINES = {"plain": 4e6, "streamed": 1e6}
"""Bits a second with which it takes as long."""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]


def test_peers_on_home_lines_make_rounds_together(tmp_path: Path) -> None:
    lines = [Access(20e6, 50e6), Access(20e6, 50e6), Access(5e6, 20e6)]
    with Links(lines, delay_s=0.02, loss=0.002) as links, Swarm(tmp_path) as swarm:
        begin(swarm, links, len(lines))
        swarm.equal(swarm.whole(*swarm.peers), *swarm.peers)


def begin(swarm: Swarm, links: Links, peers: int) -> None:
    """One peer on each line."""
    create = ("run", "create", str(swarm.run_file), "--out", str(swarm.manifest))
    printed = swarm.command(swarm.place("peer-0"), *create, "--address", f"/ip4/{address(0)}/tcp/{PORT}")
    invitation = next(word for word in printed.split() if word.startswith("mh1"))
    for number in range(peers):
        peer = swarm.peer(f"peer-{number}", invitation)
        peer.around, peer.local = links.place(number), False
        peer.start("--port", str(PORT))


@pytest.mark.parametrize("way", ["streamed"])
def test_a_peer_whose_address_changes_in_an_exchange_stays_in_it(way: str, tmp_path: Path) -> None:
    lines = [Access(LINES[way], LINES[way])] * 3
    with Links(lines, delay_s=0.02) as links, Swarm(tmp_path, WAYS[way](LONG_EXCHANGES)) as swarm:
        begin(swarm, links, 3)
        round = swarm.whole(*swarm.peers)
        moved = swarm.peers[2]

        def exchanging() -> bool:
            shown = [event for event in moved.heard(ev.ExchangeProgress) if event.round == round]
            return any(event.chunks_done > 0 for event in shown)

        swarm.until("an exchange that has begun", exchanging)
        links.move(2)
        swarm.until("its end", lambda: all(peer.committed > round + 1 for peer in swarm.peers))
        for peer in swarm.peers:
            assert {moved.peer_id} <= set(peer.members_of(round)) and {moved.peer_id} <= set(peer.members_of(round + 1))
            assert not [event for event in peer.heard(ev.MemberLost) if event.round >= round]
        swarm.equal(round + 2, *swarm.peers)


@pytest.mark.parametrize("way", ["plain"])
def test_a_peer_that_slept_and_woke_elsewhere_is_back_with_its_parts(way: str, tmp_path: Path) -> None:
    """As a laptop does: suspended in an exchange, and its connections are dead when it wakes, on another network."""
    lines = [Access(LINES[way], LINES[way])] * 3
    with Links(lines, delay_s=0.02) as links, Swarm(tmp_path, WAYS[way](LONG_EXCHANGES)) as swarm:
        begin(swarm, links, 3)
        round = swarm.whole(*swarm.peers)
        sleeper, others = swarm.peers[2], swarm.peers[:2]

        def exchanging() -> bool:
            shown = [event for event in sleeper.heard(ev.ExchangeProgress) if event.round == round]
            return any(event.chunks_done > 0 for event in shown)

        swarm.until("an exchange that has begun", exchanging)
        sleeper.kill(signal.SIGSTOP)
        links.move(2)
        swarm.until("somebody who misses it", lambda: any(missed(peer, sleeper) for peer in others))
        sleeper.kill(signal.SIGCONT)
        later = round + 2
        swarm.until("later rounds", lambda: all(peer.committed > later for peer in swarm.peers))
        assert all(sleeper.peer_id in peer.members_of(round) for peer in swarm.peers), "what it had sent counts"
        assert all(sleeper.peer_id in peer.members_of(later) for peer in swarm.peers)
        swarm.equal(later + 1, *swarm.peers)


@pytest.mark.parametrize("way", ["streamed"])
def test_a_partition_heals_and_who_was_alone_goes_back_to_the_chain_of_the_others(way: str, tmp_path: Path) -> None:
    """Each side commits rounds; no contribution of the larger side is lost, and one that was alone contributes again."""
    run = WAYS[way](TINY_RUN.replace("min_members = 2", "min_members = 1").replace("eviction_s = 8.0", "eviction_s = 30.0"))
    with Links([Access(20e6, 20e6)] * 3) as links, Swarm(tmp_path, run) as swarm:
        begin(swarm, links, 3)
        alone, others = swarm.peers[2], swarm.peers[:2]
        swarm.whole(*swarm.peers)
        links.cut(2)
        swarm.until("rounds of one", lambda: sum(members == [alone.peer_id] for members in membership(alone)) >= 2)
        pair = sorted(peer.peer_id for peer in others)
        swarm.until("rounds of two", lambda: all(sum(each == pair for each in membership(peer)) >= 2 for peer in others))
        kept = {round: commit.tip for round, commit in others[0].commits.items()}
        links.mend(2)
        swarm.until("going back", lambda: alone.heard(ev.RolledBack))
        swarm.equal(swarm.whole(*swarm.peers), *swarm.peers)
        assert not any(peer.heard(ev.RolledBack) for peer in others)
        assert {round: commit.tip for round, commit in others[0].commits.items()}.items() >= kept.items()


def membership(peer: Peer) -> list[list[str]]:
    """Return the members of each round that a peer has committed."""
    return [sorted(commit.members) for commit in list(peer.commits.values())]


def missed(peer: Peer, other: Peer) -> bool:
    return other.peer_id in [event.peer for event in peer.heard(ev.PeerSuspected)]
