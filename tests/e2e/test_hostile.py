"""A real peer under attack by real peers: the swarm goes on, and whoever can be named is out.

The hostile peers are genuine libp2p identities that keep no rule: the network under them is ours, used past its own limits.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import psutil
import pytest
import trio

from protocol.events import events as ev
from protocol.run.manifest import open_manifest
from protocol.wire.identity import PeerId
from tests.e2e.attacks import BANNED, FLOODS, HARMLESS, Attack, Cast, until_broken
from tests.e2e.swarm import PATIENCE_S, Peer, Swarm

pytestmark = pytest.mark.slow

MEMORY_BYTES = 160 << 20
"""What a peer's memory may grow by under all of this."""


async def attack_with_all(swarm: Swarm, target: Peer) -> None:
    """Let one attack after the other hit this peer; AssertionError for the first that costs too much, or no connection."""
    run, status, process = open_manifest(swarm.manifest.read_bytes()).run, target.status(), psutil.Process(target.pid)
    before = process.memory_info().rss
    async with trio.open_nursery() as nursery:
        attacks = {**BANNED, **FLOODS, **HARMLESS}
        casts = {name: Cast(run, PeerId(status["peer"])) for name in attacks}
        async with trio.open_nursery() as entrance:  # all at once: an address that a ban fell on has to wait
            for cast in casts.values():
                entrance.start_soon(nursery.start, cast.play, status["addresses"])
        for name, attack in attacks.items():
            await until_banned_or_done(casts[name], attack, is_bannable=name in BANNED)
            if name in BANNED:
                await trio.to_thread.run_sync(partial(swarm.until, f"a ban for {name}", partial(bans, target, casts[name])))
            assert name in FLOODS or bool(bans(target, casts[name])) == (name in BANNED), name
            assert process.memory_info().rss - before < MEMORY_BYTES, name
        nursery.cancel_scope.cancel()


async def until_banned_or_done(cast: Cast, attack: Attack, *, is_bannable: bool) -> None:
    with trio.move_on_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_broken, partial(attack, cast))
            while is_bannable and not cast.out:
                await trio.sleep(0.05)
            if is_bannable:
                nursery.cancel_scope.cancel()


def bans(target: Peer, cast: Cast) -> list[str]:
    """The reasons for which the target has banned a hostile peer."""
    found = target.notices(ev.NoticeCode.PEER_BANNED)
    return [ban["reason"] for ban in found if ban["peer"] == cast.identity.peer_id and ban["reason"]]


def test_attacks_cost_their_peer_the_connection_and_the_swarm_goes_on(tmp_path: Path) -> None:
    with Swarm.created(tmp_path) as swarm:
        for name in ("one", "two", "three"):
            swarm.peer(name).start()
        swarm.whole(*swarm.peers)
        trio.run(attack_with_all, swarm, swarm.peers[0])
        swarm.equal(swarm.whole(*swarm.peers), *swarm.peers)
        assert all(peer.lives == 1 for peer in swarm.peers)
