"""What peers are told of a blob that they fetch, and what an origin shows to whom: each chunk once before any twice."""

from __future__ import annotations

from collections import Counter
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.blobs.blob import ChunkSet, chunks_in
from protocol.blobs.offers import (
    AHEAD,
    AHEAD_OF_ALL,
    FIRST_PATIENCE_S,
    LEAST_PATIENCE_S,
    MAX_GUESTS,
    MOST_AT_ONCE,
    NO_HURRY_S,
    PATIENCE_TIMES,
    TURN,
    Offer,
    OriginOffer,
    Superseeding,
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


def test_a_guest_is_told_at_once_of_what_nobody_else_has_and_of_the_rest_with_it_or_later() -> None:
    offer = Offer(8, 0, is_member)
    offer.join(ANN, 0, 0.0)
    offer.add(1)
    assert not offer.news(NO_HURRY_S - 0.1)
    offer.add(2, is_first=True)
    assert offer.news(NO_HURRY_S - 0.1) == {ANN: 0b110}
    offer.add(3)
    assert not offer.news(NO_HURRY_S) and offer.news(inf) == {ANN: 0b1000}


def test_an_origin_tells_each_guest_of_other_chunks_once() -> None:
    offer = OriginOffer(8, Random(1), is_member)
    first, second = offer.join(ANN, 0, 0.0), offer.join(BOB, 0, 0.0)
    assert first and second and not first & second
    news = offer.news(0.0)
    assert ANN not in news or not news[ANN] & first
    assert not offer.news(0.0)
    assert offer.join(ANN, 0, 0.1) & first == first, "who asks again is told the same again"


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
def test_who_has_all_makes_room(kind: str) -> None:
    offer = an_offer(kind)
    for peer in CROWD[:MAX_GUESTS]:
        offer.join(peer, 0, 0.0)
    offer.got(CROWD[5], 0xFF)
    offer.join(CROWD[-1], 0, 0.0)
    assert CROWD[-1] in offer.guests() and CROWD[5] not in offer.guests()


@pytest.mark.parametrize("kind", ["open", "origin"])
def test_chunks_that_the_blob_has_not_are_no_chunks(kind: str) -> None:
    offer = an_offer(kind)
    offer.join(ANN, 0, 0.0)
    offer.got(ANN, 1 << 4000)
    offer.got(BOB, 1)
    assert offer.guests() == [ANN]
    assert all(chunks < 1 << 8 for chunks in offer.news(0.0).values())


def an_origin(count: int, *guests: PeerId) -> Superseeding:
    origin = Superseeding(count, Random(1))
    for guest in guests:
        origin.join(guest, 0)
    return origin


def members(news: dict[PeerId, ChunkSet]) -> dict[PeerId, list[int]]:
    return {peer: [*chunks_in(chunks)] for peer, chunks in news.items()}


def test_each_chunk_is_shown_once_before_any_twice() -> None:
    origin, shown, now = an_origin(40, ANN, BOB, CYN), Counter[int](), 0.0
    while sum(shown.values()) < 40:
        for peer, chunks in members(origin.show(now)).items():
            shown.update(chunks)
            for chunk in chunks:
                origin.fed(peer, chunk, now)
        now += 0.1
    assert len(shown) == 40 and set(shown.values()) == {1}


def test_what_somebody_was_shown_and_does_not_fetch_is_shown_to_another() -> None:
    origin = an_origin(AHEAD + 1, ANN, BOB)
    shown = members(origin.show(0.0))
    assert len(shown[ANN]) + len(shown[BOB]) == AHEAD + 1
    for chunk in shown[BOB]:
        origin.fed(BOB, chunk, 0.5)
    patience_s = max(2.0, PATIENCE_TIMES * 0.5)
    assert not origin.show(patience_s - 0.1)
    assert members(origin.show(patience_s + 0.1)).get(BOB) == shown[ANN]


def test_who_lets_its_place_lapse_keeps_nothing_from_others_and_waits_behind_them() -> None:
    silent, count = PEERS[1 : MOST_AT_ONCE + 1], 30
    origin, now = an_origin(count, *silent), 0.0
    origin.show(now)
    origin.join(ANN, 0)
    while origin.only_here:
        now += 1.0
        origin.show(now)
        for chunk in [*chunks_in(origin.shown_to(ANN))]:
            origin.fed(ANN, chunk, now)
        assert now < 4 * FIRST_PATIENCE_S + count, "those who fetch nothing stop who does"


def test_one_that_says_it_has_nearly_all_and_silent_ones_keep_nothing_from_others() -> None:
    """Then nobody seems to lack a first copy, and the rarest ones are shown."""
    silent, count = [PeerId(f"silent-{number}") for number in range(40)], 30
    origin, now = an_origin(count, *silent, ANN), 0.0
    origin.join(BOB, (1 << count) - 2)
    got: ChunkSet = 0
    while got != (1 << count) - 1:
        now += 1.0
        origin.show(now)
        for chunk in [*chunks_in(origin.shown_to(ANN))]:
            origin.fed(ANN, chunk, now)
            got |= 1 << chunk
        assert now < 20 * FIRST_PATIENCE_S + count


def test_who_fetches_what_it_has_again_and_again_loses_its_place_all_the_same() -> None:
    same = PEERS[1 : MOST_AT_ONCE + 1]
    origin, now = an_origin(40, *same, ANN), 0.0
    while not origin.shown_to(ANN):
        origin.show(now)
        for peer in same:
            origin.fed(peer, 0, now)
        now += 1.0
        assert now < 4 * FIRST_PATIENCE_S


def test_who_fetches_a_chunk_now_and_then_gives_its_place_to_one_that_waits() -> None:
    slow = PEERS[1 : MOST_AT_ONCE + 1]
    origin, now = an_origin(400, *slow, ANN), 0.0
    while not origin.shown_to(ANN):
        origin.show(now)
        for peer in slow:
            chunk = next(chunks_in(origin.shown_to(peer)), None)
            if chunk is not None:
                origin.fed(peer, chunk, now)
        now += LEAST_PATIENCE_S - 0.1
        assert now < 10 * FIRST_PATIENCE_S


def test_nobody_keeps_a_place_that_others_wait_for() -> None:
    """Eight that fetch all the time, and pass nothing on, cannot keep the blob from a ninth."""
    crowd = PEERS[: MOST_AT_ONCE + 1]
    origin = an_origin(1000, *crowd)
    fed, now = Counter[PeerId](), 0.0
    while not fed[crowd[-1]]:
        assert now < 20
        for peer, chunks in members(origin.show(now)).items():
            for chunk in chunks:
                origin.fed(peer, chunk, now)
                fed[peer] += 1
        now += 0.1
    assert max(fed.values()) <= TURN + AHEAD


def test_who_leaves_with_the_only_copy_leaves_it_to_be_shown_again() -> None:
    origin = an_origin(2, ANN)
    for chunk in members(origin.show(0.0))[ANN]:
        origin.fed(ANN, chunk, 0.1)
    origin.join(BOB, 0)
    assert members(origin.show(0.2)) == {BOB: [0, 1]}
    origin.leave(ANN)
    origin.leave(BOB)
    origin.join(CYN, 0b01)
    assert members(origin.show(0.3)) == {CYN: [1]}


def test_who_says_that_it_has_all_gets_nothing_and_keeps_nobody_from_it() -> None:
    origin = an_origin(4, BOB)
    origin.join(ANN, 0b1111)
    got = 0
    for step in range(4):
        for chunk in members(origin.show(0.1 * step)).get(BOB, []):
            origin.fed(BOB, chunk, 0.1 * step)
            got |= 1 << chunk
    assert got == 0b1111 and not origin.shown_to(ANN)


@given(st.integers(0, 2**32))
def test_whatever_guests_do_the_books_stay_right(seed: int) -> None:
    random, count, now = Random(seed), Random(seed).randint(1, 30), 0.0
    origin = Superseeding(count, Random(seed))
    for _ in range(60):
        peer, chunks = random.choice(PEERS[:12]), random.getrandbits(count)
        match random.randrange(5):
            case 0:
                origin.join(peer, chunks)
            case 1:
                origin.leave(peer)
            case 2:
                origin.got(peer, chunks)
            case 3:
                for chunk in chunks_in(origin.shown_to(peer)):
                    origin.fed(peer, chunk, now)
            case 4:
                origin.fed(peer, random.randrange(count), now)
        for fed, shown in origin.show(now).items():
            assert shown & origin.shown_to(fed) == shown and origin.shown_to(fed).bit_count() <= AHEAD_OF_ALL
        now += random.random()
    assert sum(bool(origin.shown_to(peer)) for peer in PEERS) <= 2 * MOST_AT_ONCE
    for peer in PEERS:
        origin.leave(peer)
    assert origin._shown.none == origin._had.none == (1 << count) - 1


def test_who_fetches_one_chunk_again_and_again_is_shown_no_more_for_it() -> None:
    origin, now = an_origin(400, ANN, *PEERS[1:8]), 0.0
    first = members(origin.show(now))[ANN]
    for _ in range(2000):
        now += 0.001
        origin.fed(ANN, first[0], now)
        origin.show(now)
    assert origin.shown_to(ANN).bit_count() <= AHEAD
