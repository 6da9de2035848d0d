"""What an origin shows to whom: each chunk once before any twice, and nobody keeps chunks from others for long."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.blobs.blob import ChunkSet, chunks_in
from protocol.blobs.offers import AHEAD, FIRST_PATIENCE_S, MOST_PATIENCE_S, OriginOffer
from protocol.wire.identity import PeerId
from tests.protocol.blobs.peers import PEERS

ANN, BOB, CYN = PEERS[:3]


def an_origin(count: int, *guests: PeerId) -> OriginOffer:
    origin = OriginOffer(count, Random(1), lambda peer: True)
    for guest in guests:
        origin.join(guest, 0, 0.0)
    return origin


def open_to(origin: OriginOffer, peer: PeerId) -> list[int]:
    """Chunks that a guest is shown and lacks."""
    return [*origin._guests[peer].shown]


def members(news: dict[PeerId, ChunkSet]) -> dict[PeerId, list[int]]:
    return {peer: [*chunks_in(chunks)] for peer, chunks in news.items()}


def test_each_chunk_is_shown_once_before_any_twice() -> None:
    guests = (ANN, BOB, CYN)
    origin, shown, now = an_origin(40, *guests), Counter[int](), 0.0
    while sum(shown.values()) < 40:
        for peer in guests:
            for chunk in open_to(origin, peer):
                shown[chunk] += 1
                origin.fed(peer, chunk, now)
        now += 1.5
        origin.news(now)
    assert len(shown) == 40 and set(shown.values()) == {1}


def test_what_somebody_was_shown_and_does_not_fetch_is_shown_to_another() -> None:
    origin = an_origin(AHEAD + 1, ANN, BOB)
    shown = {peer: open_to(origin, peer) for peer in (ANN, BOB)}
    assert len(shown[ANN]) + len(shown[BOB]) == AHEAD + 1
    for chunk in shown[BOB]:
        origin.fed(BOB, chunk, 0.5)
    assert not origin.news(FIRST_PATIENCE_S - 1.0)
    assert set(members(origin.news(FIRST_PATIENCE_S + 0.1))[BOB]) == set(shown[ANN])


def test_silent_guests_and_one_that_says_it_has_nearly_all_keep_nothing_from_others() -> None:
    silent, count = [PeerId(f"silent-{number}") for number in range(40)], 30
    origin, now, got = an_origin(count, *silent, ANN), 0.0, 0
    origin.join(BOB, (1 << count) - 2, now)  # then nobody seems to lack a first copy, and the rarest ones are shown
    while got != (1 << count) - 1:
        now += 1.0
        origin.news(now)
        for chunk in open_to(origin, ANN):
            origin.fed(ANN, chunk, now)
            got |= 1 << chunk
        assert now < 8 * FIRST_PATIENCE_S + count


@pytest.mark.parametrize("every_s", [1, 7])
def test_guests_that_fetch_and_pass_nothing_on_keep_no_chunk_from_another(every_s: int) -> None:
    """Forty of them fetch a chunk each now and then, so that they are never idle."""
    crowd, count = [PeerId(f"crowd-{number}") for number in range(40)], 200
    origin, now, got = an_origin(count, *crowd, ANN), 0, 0
    while got != (1 << count) - 1:
        now += 1
        origin.news(now)
        for peer in crowd if now % every_s == 0 else []:
            for chunk in open_to(origin, peer)[:1]:
                origin.fed(peer, chunk, now)
        for chunk in open_to(origin, ANN):
            origin.fed(ANN, chunk, now)
            got |= 1 << chunk
        assert now < 4 * MOST_PATIENCE_S + count


def test_who_fetches_one_chunk_again_and_again_is_shown_no_more_for_it() -> None:
    origin, now = an_origin(400, ANN, *PEERS[1:8]), 0.0
    first = open_to(origin, ANN)
    for _ in range(2000):
        now += 0.001
        origin.fed(ANN, first[0], now)
        origin.news(now)
    assert len(open_to(origin, ANN)) <= AHEAD + 1


def test_who_leaves_with_the_only_copy_leaves_it_to_be_shown_again() -> None:
    origin = an_origin(2, ANN)
    for chunk in open_to(origin, ANN):
        origin.fed(ANN, chunk, 0.1)
    assert origin.join(BOB, 0, 0.2) == 0b11
    origin.leave(ANN)
    origin.leave(BOB)
    assert origin.only_here == 0b11 and origin.join(CYN, 0b01, 0.3) == 0b10


@given(st.integers(0, 2**32))
def test_whatever_guests_do_the_books_stay_right(seed: int) -> None:
    random, count, now = Random(seed), Random(seed).randint(1, 30), 0.0
    origin = OriginOffer(count, Random(seed), lambda peer: True)
    for _ in range(60):
        peer, chunks = random.choice(PEERS[:12]), random.getrandbits(count)
        match random.randrange(5):
            case 0:
                assert not origin.join(peer, chunks, now) & chunks
            case 1:
                origin.leave(peer)
            case 2:
                origin.got(peer, chunks)
            case 3:
                for chunk in open_to(origin, peer) if peer in origin.guests() else []:
                    origin.fed(peer, chunk, now)
            case 4:
                origin.fed(peer, random.randrange(count), now)
        for shown_to, shown in origin.news(now).items():
            assert not shown & origin._has[shown_to] and set(chunks_in(shown)) <= {*open_to(origin, shown_to)}
        now += random.random()
    for peer in PEERS:
        origin.leave(peer)
    assert origin.only_here == (1 << count) - 1 and not origin.guests()
