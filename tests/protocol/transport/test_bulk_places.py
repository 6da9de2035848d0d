"""Whose bulk link ends when all places are taken."""

from __future__ import annotations

import pytest

from protocol.transport.bulk import displaced
from protocol.wire.identity import PeerId
from tests.protocol.peers import TheseMembers


@pytest.mark.parametrize(
    "asker, links, loser",
    [
        ("member", {"x": 1, "y": 1, "other member": 8}, "x"),
        ("member", {"x": 1, "y": 3}, "y"),
        ("member", {"member": 7, "x": 1}, "x"),
        ("member", {"other member": 2}, "other member"),
        ("member", {"other member": 1}, None),
        ("member", {"member": 1, "other member": 2}, None),
        ("stranger", {"x": 8, "member": 8}, "x"),
        ("stranger", {"x": 1, "y": 1}, None),
        ("stranger", {"stranger": 7, "x": 8}, None),
        ("stranger", {"member": 8, "other member": 8}, None),
    ],
)
def test_members_displace_strangers_and_else_who_has_more_gives_way(
    asker: str, links: dict[str, int], loser: str | None
) -> None:
    members = TheseMembers(PeerId("member"), PeerId("other member"))
    assert displaced(PeerId(asker), {PeerId(peer): count for peer, count in links.items()}, members) == loser
