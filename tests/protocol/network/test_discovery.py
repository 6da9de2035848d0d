"""Finding each other on the local network: what is announced, and that nothing goes on when it ends."""

from __future__ import annotations

import threading

import pytest
import trio

from protocol.network.libp2p import discovery
from protocol.network.libp2p.discovery import _start, discover, service_info
from protocol.wire.hashes import Hash, chunk_hash
from protocol.wire.identity import Identity, PeerId

RUN, ME = chunk_hash(b"a run"), Identity.from_seed(b"\x07" * 32).peer_id
ADDRESSES = ["/ip4/127.0.0.1/tcp/4001", "/ip6/2001:db8::7/tcp/4001", "/dns4/example.org/tcp/4001"]


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if not thread.name.startswith("Trio")}


def can_announce() -> bool:
    """Whether this computer has multicast at all."""
    try:
        _start(RUN, ME, ADDRESSES[:1], lambda others: None).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("addresses", [ADDRESSES[:1], ADDRESSES])
def test_nothing_goes_on_when_it_has_ended_and_an_ipv6_address_does_not_end_it(addresses: list[str]) -> None:
    async def main() -> None:
        before, works = threads(), can_announce()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(discover, RUN, ME, lambda: addresses, lambda others: None)
            while works and not any("ServiceBrowser" in name for name in threads()):
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        assert threads() == before

    trio.run(main)


def test_who_says_that_it_has_our_name_does_not_keep_us_from_being_found() -> None:
    if can_announce():
        other = _start(RUN, ME, ADDRESSES[:1], lambda others: None)
        try:
            _start(RUN, ME, ADDRESSES[:1], lambda others: None).close()
        finally:
            other.close()


def test_what_is_announced_follows_our_addresses_and_a_network_that_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    class Service:
        def __init__(self, addresses: list[str]) -> None:
            self.addresses = addresses

        def close(self) -> None:
            said.append(("ended", self.addresses))

    def start(run: Hash, me: PeerId, addresses: list[str], report: object) -> Service:
        said.append(("began", addresses))
        if addresses == ["loopback"]:
            raise OSError("no multicast")
        return Service(addresses)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(discovery.discover, RUN, ME, lambda: now, lambda others: None)
            for count, then in ((1, ["first"]), (2, ["second"]), (4, [])):
                with trio.fail_after(60):
                    while len(said) < count:
                        await trio.sleep(0.001)
                now[:] = then or now
            nursery.cancel_scope.cancel()

    now, said = ["loopback"], list[tuple[str, list[str]]]()
    monkeypatch.setattr(discovery, "_start", start)
    monkeypatch.setattr(discovery, "LOOK_S", 0.001)
    trio.run(main)
    first, second = ["first"], ["second"]
    assert said == [("began", ["loopback"]), ("began", first), ("ended", first), ("began", second), ("ended", second)]


def test_addresses_of_both_kinds_are_announced() -> None:
    """Most homes have both."""
    addresses = [f"/ip4/192.168.1.7/tcp/4001/p2p/{ME}", f"/ip6/2001:db8::7/tcp/4001/p2p/{ME}"]
    info = service_info(RUN, ME, addresses)
    assert [value and value.decode() for value in info.properties.values()] == addresses
    assert info.parsed_addresses() == ["192.168.1.7", "2001:db8::7"]
