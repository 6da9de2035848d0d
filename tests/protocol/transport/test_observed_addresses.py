"""The addresses at which peers were reached: those of sockets on loopback, and those that others claim."""

from __future__ import annotations

import pytest

from protocol.transport.addresses import MAX_CLAIMS, ObservedAddresses, is_public_form
from protocol.wire.identity import Identity, PeerId
from tests.protocol.peers import TheseMembers
from tests.protocol.transport.recorder import Recorder, dialled, network

ME = Identity.generate().peer_id


async def test_both_ends_know_the_address_that_was_dialled_and_only_a_live_one_answers() -> None:
    b = Recorder()
    async with network(Recorder()) as one, network(b) as two:
        address = two.addresses()[0]
        assert not two.reached_here(lambda peer: True)
        assert (await dialled(one, address)).problem == ""
        await b.until(lambda: b.connected)
        assert two.reached_here(lambda peer: False) == [address] and one.reached_there() == [address]
        assert not one.reached_here(lambda peer: True) and not two.reached_there(), "who was dialled did not dial"
        assert await two.answers(one.addresses()[0]), "connected the other way round already"
        for dead in (f"/ip4/127.0.0.1/tcp/1/p2p/{one.peer_id}", address.split("/p2p/")[0] + f"/p2p/{ME}", "nothing"):
            assert not await two.answers(dead)
        assert await one.request(two.peer_id, "echo", b"x", timeout_s=5) == b"x"


class Connection:
    """As the library shows one; it is its own multiplexed connection and peer ID."""

    is_closed = False

    def __init__(self, peer: PeerId, direction: str = "inbound") -> None:
        self.direction = direction
        self._peer = peer

    @property
    def muxed_conn(self) -> Connection:
        return self

    @property
    def peer_id(self) -> Connection:
        return self

    def to_base58(self) -> str:
        return self._peer

    def get_remote_address(self) -> tuple[str, int] | None:
        return None

    async def close(self) -> None:
        return


class AtSocket(Connection):
    """With sockets at its two ends."""

    def __init__(self, local: str, remote: str) -> None:
        super().__init__(ME)
        self.local, self.remote = local, remote

    def getsockname(self) -> tuple[str, int]:
        return self.local, 4001

    def getpeername(self) -> tuple[str, int]:
        return self.remote, 50000


@pytest.mark.parametrize(
    ("local", "remote", "seen"),
    [
        ("192.0.2.7", "192.0.2.9", ["/ip4/192.0.2.7/tcp/4001"]),
        ("192.0.2.7", "192.0.2.7", []),
        ("127.0.0.1", "127.0.0.1", ["/ip4/127.0.0.1/tcp/4001"]),
    ],
    ids=["another computer", "this computer", "loopback"],
)
def test_a_program_on_this_computer_does_not_show_that_others_can_reach_it(local: str, remote: str, seen: list[str]) -> None:
    observed = ObservedAddresses(TheseMembers())
    observed.on_connection(AtSocket(local, remote))
    assert observed.addresses(lambda peer: True) == seen


def test_claims_count_as_whoever_asks_says_one_for_each_peer_and_have_an_end() -> None:
    reached, peers = ObservedAddresses(TheseMembers()), [PeerId(f"peer {number}") for number in range(MAX_CLAIMS + 9)]
    for number, peer in enumerate(peers):
        for port in (1, 2):
            reached.on_claim(Connection(peer), f"/ip4/203.0.113.{number % 200}/tcp/{port}")
    reached.on_claim(Connection(peers[-1], "outbound"), "/ip4/203.0.113.1/tcp/9")
    assert len(reached.addresses(lambda peer: True)) <= MAX_CLAIMS and not reached.addresses(lambda peer: False)
    assert reached.addresses(lambda peer: peer == peers[-1]) == [f"/ip4/203.0.113.{(len(peers) - 1) % 200}/tcp/2"]
    trusted = peers[-4:-1]
    for peer in trusted[:2]:
        reached.on_claim(Connection(peer), "/ip4/198.51.100.1/tcp/4001")
    assert reached.addresses(lambda peer: peer in trusted)[0] == "/ip4/198.51.100.1/tcp/4001"


def test_the_claim_of_a_member_outweighs_those_of_a_crowd_and_is_not_forgotten_for_them() -> None:
    member = PeerId("member")
    observed = ObservedAddresses(TheseMembers(member))
    observed.on_claim(Connection(member), "/ip4/203.0.113.9/tcp/4001")
    for number in range(2 * MAX_CLAIMS):
        observed.on_claim(Connection(PeerId(f"key {number}")), "/ip4/198.51.100.1/tcp/9")
    assert observed.addresses(lambda peer: True) == ["/ip4/203.0.113.9/tcp/4001", "/ip4/198.51.100.1/tcp/9"]


@pytest.mark.parametrize(
    "address",
    [
        "",
        "/",
        "/ip4/127.0.0.1/tcp/1",
        "/ip4/0.0.0.0/tcp/1",
        "/ip4/224.0.0.1/tcp/1",
        "/ip6/fe80::1/tcp/1",
        "/ip4/1.2.3.4/tcp/0",
        "/ip4/1.2.3.4/udp/1",
        "/ip4/1.2.3.4/tcp/x",
        "/dns4/example/tcp/1",
        "/ip4/1.2.3.4/tcp/1/p2p/x",
        "/ip4/" + "1" * 5000,
    ],
)
def test_odd_claims_are_none(address: str) -> None:
    assert not is_public_form(address)
