"""Real peers in homes behind real routers train together, through whatever ways they find, and come back by themselves."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from protocol.events import events as ev
from tests.e2e.swarm import TINY_MODEL, Peer, Swarm
from tests.routers.homes import Homes, why_not
from tests.routers.router import Kind
from tests.routers.table import create, links, start

WHY_NOT = why_not()
ROUNDS = 5
DISK_BYTES, BALLAST = 64 << 20, "ballast"
SHORT_ROUNDS = (
    TINY_MODEL
    + """
[rounds]
inner_steps = 20
min_members = 2
grace_s = 5
eviction_s = 60
stall_s = 5
"""
)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]


def link(first: Peer, second: Peer) -> str:
    """How two are connected."""
    return next((found for _, found in reversed(links(first, second))), "")


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Put a disk of its own there, in memory."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def fill(peer: Peer) -> None:
    """Leave no room on a peer's disk."""
    with suppress(OSError), (peer.folder / BALLAST).open("wb", buffering=0) as file:
        while file.write(bytes(64 << 10)):
            pass


def test_three_peers_of_whom_two_are_behind_routers_train_also_after_a_full_disk_and_another_address(tmp_path: Path) -> None:
    with (
        Homes(tmp_path, [Kind.CONE, Kind.SYMMETRIC]) as homes,
        Swarm(tmp_path, SHORT_ROUNDS) as swarm,
        small_disk(swarm.place("cone")),
    ):
        invitation = create(swarm)
        public = start(swarm, "public", homes.public, invitation, "--role", "trainer")
        cone, symmetric = (
            start(swarm, home.kind.value, home.place, invitation, "--role", "trainer") for home in homes.homes
        )
        swarm.until("everybody to be known", lambda: all(peer.peer_id for peer in swarm.peers))
        everybody = {peer.peer_id for peer in swarm.peers}

        def together(round: int) -> bool:
            return all(set(peer.members_of(round)) == everybody for peer in swarm.peers)

        swarm.until("five rounds of all three", lambda: sum(together(round) for round in public.commits) >= ROUNDS)
        assert link(cone, public) == link(symmetric, public) == "direct"
        # a hole cannot be punched into a router with another port for each connection
        swarm.until("the two homes, through the public peer", lambda: link(cone, symmetric) == "relayed")
        swarm.equal(min(peer.committed for peer in swarm.peers), *swarm.peers)
        fill(cone)
        swarm.until("a rest", lambda: any(event.why_idle == "disk full" for event in cone.heard(ev.PhaseChanged)))
        swarm.whole(public, symmetric)
        (cone.folder / BALLAST).unlink()
        swarm.equal(swarm.whole(*swarm.peers), *swarm.peers)
        homes.switch_off(homes.homes[0])
        homes.switch_on(homes.homes[0], 9)
        swarm.equal(swarm.whole(*swarm.peers), *swarm.peers)
        assert cone.lives == 1


def test_a_router_opens_the_port_and_others_reach_the_peer_there(tmp_path: Path) -> None:
    with Homes(tmp_path, [Kind.UPNP, Kind.SYMMETRIC]) as homes, Swarm(tmp_path, SHORT_ROUNDS) as swarm:
        invitation = create(swarm)
        public = start(swarm, "public", homes.public, invitation)
        mapped, other = (start(swarm, home.kind.value, home.place, invitation) for home in homes.homes)
        swarm.until("an open port", lambda: any(event.address for event in mapped.heard(ev.PortMapped)))
        address = mapped.heard(ev.PortMapped)[0].address
        assert address.startswith(f"/ip4/{homes.homes[0].outside}/tcp/")

        def is_reached() -> bool:
            return any(event.addresses.get(address) == "reachable" for event in mapped.heard(ev.ReachabilityChanged))

        swarm.until("others to reach it there", is_reached)
        assert address in {known.rpartition("/p2p/")[0] for known in mapped.status()["addresses"]}
        swarm.until("the other home to reach it", lambda: link(other, mapped) not in ("", "relayed"))
        assert public.up


def test_the_relay_dies_in_a_round_and_the_pair_goes_on_through_another(tmp_path: Path) -> None:
    """The round commits without it, and both are connected again within 30 seconds."""
    with Homes(tmp_path, [Kind.SYMMETRIC, Kind.SYMMETRIC, Kind.REACHABLE]) as homes, Swarm(tmp_path, SHORT_ROUNDS) as swarm:
        invitation = create(swarm)
        public = start(swarm, "public", homes.public, invitation, "--role", "trainer")
        ann, bob = (start(swarm, f"home-{n}", homes.homes[n].place, invitation, "--role", "trainer") for n in range(2))
        start(swarm, "spare", homes.homes[2].place, invitation)
        swarm.until("the pair through a relay", lambda: link(ann, bob) == "relayed")
        swarm.until("a round", lambda: all(peer.committed > 0 for peer in (public, ann, bob)))
        before = max(peer.committed for peer in (ann, bob))
        swarm.until("an exchange", lambda: any(event.round >= before for event in ann.heard(ev.ExchangeProgress)))
        public.kill()
        died = max(stamped.at for stamped in ann.stamped)
        swarm.until("two more rounds of the pair", lambda: all(peer.committed > before + 2 for peer in (ann, bob)))
        assert {ann.peer_id, bob.peer_id} <= set(ann.members_of(before + 1))
        again = [at for at, _ in links(ann, bob) if at > died]
        assert not again or again[0] - died < 30
        swarm.equal(min(peer.committed for peer in (ann, bob)), ann, bob)
