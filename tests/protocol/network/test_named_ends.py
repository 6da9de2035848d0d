"""Which addresses that others name are dialled."""

from __future__ import annotations

import pytest

from protocol.network.libp2p.ends import End
from protocol.network.libp2p.named_ends import end_of, may_be_dialled
from protocol.wire.identity import Identity

A, B = (Identity.generate().peer_id for _ in range(2))
NOBODYS = ["0.0.0.0", "224.0.0.1", "240.0.0.1", "169.254.1.1", "127.0.0.1", "::1", "::ffff:127.0.0.1", "fe80::1", "ff02::1"]  # noqa: S104 - no address at all


@pytest.mark.parametrize("end", [("192.0.2.1", 22), *((ip, 4001) for ip in NOBODYS)])
def test_nobody_has_us_dial_what_no_peer_elsewhere_can_be_at(end: End) -> None:
    assert not may_be_dialled(end, lambda: [("192.0.2.7", 4001)])


def test_peers_on_one_computer_dial_each_other_there() -> None:
    assert may_be_dialled(("127.0.0.1", 4001), lambda: [("127.0.0.1", 4002)])
    assert may_be_dialled(("192.168.1.2", 4001), lambda: [("127.0.0.1", 4002)])


@pytest.mark.parametrize(
    "at", ["/dns4/example.org/tcp/4001", "/ip4/192.0.2.1/udp/4001", "/ip4/::1/tcp/4001", "/ip4/192.0.2.1/tcp/-1"]
)
def test_no_end_is_read_from_a_name_or_from_anything_odd(at: str) -> None:
    assert end_of(f"{at}/p2p/{A}") is None and end_of(f"{at}/p2p/{A}/p2p-circuit/p2p/{B}") is None
    assert end_of(f"/ip6/2001:db8::1/tcp/4001/p2p/{A}/p2p-circuit/p2p/{B}") == ("2001:db8::1", 4001)
