"""What peers are told of a blob that they fetch, and what an origin shows to whom: each chunk once before any twice."""

from __future__ import annotations

from random import Random

import pytest

from protocol.blobs.offers import (
    MAX_GUESTS,
    NO_HURRY_S,
    Offer,
    OriginOffer,
)
from protocol.wire.identity import PeerId
from tests.protocol.blobs.peers import PEERS

ANN, BOB, CYN = PEERS[:3]
CROWD = [PeerId(f"stranger{number}") for number in range(2 * MAX_GUESTS)]


def is_member(peer: PeerId) -> bool:
    return peer in PEERS


def an_offer(kind: str, count: int = 8, here: int = 0) -> Offer:
    return Offer(count, here, is_member) if kind == "open" else OriginOffer(count, Random(1), is_member)


def test_a_guest_is_told_what_is_here_and_then_what_comes() -> None:
    offer = Offer(8, 0b0011, is_member)
    assert offer.join(ANN, 0, 0.0) == 0b0011
    assert not offer.news(0.0)
    offer.add(4)
    offer.add(5)
    offer.got(ANN, 1 << 5)
    assert offer.news(NO_HURRY_S) == {ANN: 1 << 4}, "not what it has"
    assert not offer.news(2 * NO_HURRY_S)
    assert offer.join(BOB, 0, 3.0) == 0b110011 and not offer.news(3.0)


@pytest.mark.parametrize("kind", ["open", "origin"])
def test_a_crowd_of_strangers_keeps_no_member_out(kind: str) -> None:
    offer = an_offer(kind)
    for peer in CROWD:
        offer.join(peer, 0, 0.0)
    for peer in PEERS:
        offer.join(peer, 0, 0.0)
    assert set(PEERS) <= set(offer.guests()) and len(offer.guests()) == MAX_GUESTS


def test_a_guest_of_an_origin_that_fetches_nothing_makes_room_for_a_newcomer() -> None:
    offer, now = OriginOffer(100, Random(1), lambda peer: False), 0.0
    crowd = [PeerId(f"crowd-{number}") for number in range(MAX_GUESTS)]
    for peer in crowd:
        offer.join(peer, 0, now)
    assert not offer.join(ANN, 0, now) and ANN not in offer.guests()
    while not offer.join(ANN, 0, now):
        offer.news(now)
        now += 1.0
        assert now < 100, "all of them had their turn"


def test_a_member_that_fetched_nothing_makes_room_for_no_stranger() -> None:
    members, now = [PeerId(f"crowd-{number}") for number in range(MAX_GUESTS)], 0.0
    offer = OriginOffer(100, Random(1), lambda peer: peer in members or peer == BOB)
    for peer in members:
        offer.join(peer, 0, now)
    for _ in range(100):
        now += 1.0
        offer.news(now)
    offer.join(ANN, 0, now)
    assert ANN not in offer.guests()
    offer.join(BOB, 0, now)
    assert BOB in offer.guests()


@pytest.mark.parametrize("kind", ["open", "origin"])
def test_chunks_that_the_blob_has_not_are_no_chunks(kind: str) -> None:
    offer = an_offer(kind)
    offer.join(ANN, 0, 0.0)
    offer.got(ANN, 1 << 4000)
    offer.got(BOB, 1)
    assert offer.guests() == [ANN]
    assert all(chunks < 1 << 8 for chunks in offer.news(0.0).values())
