"""Real peers on emulated home lines: narrow, far from each other, and now and then a packet is lost, or an address changes.

Peers that are cut off from each other are in test_returning.py.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from benchmarks.links import Access, Links, address, why_not
from protocol.events import events as ev
from tests.e2e.swarm import LARGE_MODEL, Peer, Swarm

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
"""An exchange takes 10 s on lines of `LINE`."""
LINE = 4e6
"""Bits a second."""

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


def test_a_peer_whose_address_changes_in_an_exchange_stays_in_it_and_one_that_slept_is_back_with_its_parts(
    tmp_path: Path,
) -> None:
    """As laptops do: one is elsewhere from one moment to the next, and another one sleeps, and wakes on another network."""
    with Links([Access(LINE, LINE)] * 3, delay_s=0.02) as links, Swarm(tmp_path, LONG_EXCHANGES) as swarm:
        begin(swarm, links, 3)
        first, sleeper, moved = swarm.peers
        round = until_exchanging(swarm, moved)
        links.move(2)
        swarm.until("its end", lambda: all(peer.committed > round + 1 for peer in swarm.peers))
        for peer in swarm.peers:
            assert {moved.peer_id} <= set(peer.members_of(round)) and {moved.peer_id} <= set(peer.members_of(round + 1))
            assert not [event for event in peer.heard(ev.MemberLost) if event.round >= round]
        round = until_exchanging(swarm, sleeper)
        sleeper.kill(signal.SIGSTOP)
        links.move(1)
        swarm.until("somebody who misses it", lambda: any(missed(peer, sleeper) for peer in (first, moved)))
        sleeper.kill(signal.SIGCONT)
        later = round + 2
        swarm.until("later rounds", lambda: all(peer.committed > later for peer in swarm.peers))
        assert all(sleeper.peer_id in peer.members_of(round) for peer in swarm.peers), "what it had sent counts"
        assert all(sleeper.peer_id in peer.members_of(later) for peer in swarm.peers)
        swarm.equal(later + 1, *swarm.peers)


def until_exchanging(swarm: Swarm, peer: Peer) -> int:
    """Wait until a peer has got averages in the exchange of the next round of all; the round."""
    round = swarm.whole(*swarm.peers)

    def has_begun() -> bool:
        shown = [event for event in peer.heard(ev.ExchangeProgress) if event.round == round]
        return any(event.chunks_done > 0 for event in shown)

    swarm.until("an exchange that has begun", has_begun)
    return round


def missed(peer: Peer, other: Peer) -> bool:
    return other.peer_id in [event.peer for event in peer.heard(ev.PeerSuspected)]
