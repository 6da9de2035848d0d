"""READYs between rounds: the newest of each peer is remembered, and two for one slot are proof."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.node.round_parts import STRANGERS_PER_MEMBER, EarlyReadyBuffer
from protocol.wire.envelope import Envelope
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Ready, pack
from tests.protocol.council import TIP, a_ready
from tests.protocol.peers import ANN, TheseMembers

RUN = Hash(b"\x07" * 32)


def sealed(**changes: Any) -> tuple[Ready, Envelope]:
    ready = a_ready(**changes)
    return ready, pack(ANN, RUN, ready)


ROUND_MEMBERS = 4
ROOM = STRANGERS_PER_MEMBER * ROUND_MEMBERS


def a_table(*members: PeerId) -> EarlyReadyBuffer:
    return EarlyReadyBuffer(TheseMembers(*members), ROUND_MEMBERS)


def crowd(readys: EarlyReadyBuffer, count: int, *, is_live: bool) -> int:
    """READYs of so many new keys; how many were news."""
    ready, before = sealed(), len(readys)
    news = [readys.add(PeerId(f"key {before}, {number}"), *ready, is_live=is_live) for number in range(count)]
    return news.count(True)


@pytest.mark.parametrize(
    "changes, news",
    [
        ({}, False),
        ({"serial": 2}, True),
        ({"incarnation": 2, "serial": 0}, True),
        ({"serial": 0}, False),
        ({"incarnation": 0, "serial": 5}, False),
    ],
    ids=["the same", "a later one", "of a later life", "an earlier one", "of an earlier life"],
)
def test_only_later_ones_are_news(changes: dict[str, Any], news: bool) -> None:
    readys = a_table()
    assert readys.add(ANN.peer_id, *sealed(), is_live=True) is True
    assert readys.add(ANN.peer_id, *sealed(**changes), is_live=True) is news
    newest = sealed(**changes) if news else sealed()
    assert readys.begin(0, TIP) == [(ANN.peer_id, *newest)]


def test_the_same_said_in_other_bytes_is_neither_news_nor_proof() -> None:
    readys, plus, minus = a_table(), sealed(loss=0.0), sealed(loss=-0.0)
    assert plus[0] == minus[0] and plus[1].raw != minus[1].raw
    readys.add(ANN.peer_id, *plus, is_live=True)
    assert readys.add(ANN.peer_id, *minus, is_live=True) is False


def test_free_keys_share_a_small_room_and_take_none_from_members() -> None:
    readys, ready = a_table(ANN.peer_id), sealed()
    assert crowd(readys, 5000, is_live=False) == ROOM
    assert readys.add(ANN.peer_id, *ready, is_live=False) is True
    assert len(readys) == ROOM + 1


def test_a_live_stranger_takes_the_place_of_one_that_is_not() -> None:
    readys, ready = a_table(), sealed()
    crowd(readys, 5000, is_live=False)
    assert readys.add(ANN.peer_id, *ready, is_live=True) is True
    assert crowd(readys, 5000, is_live=True) == ROOM - 1
    assert readys.add(ANN.peer_id, *sealed(serial=2), is_live=True) is True, "it has its place"
    assert len(readys) == ROOM


def test_readys_are_forgotten_with_their_round_and_of_strangers_all_others_too() -> None:
    readys = a_table(ANN.peer_id)
    crowd(readys, ROOM, is_live=True)
    readys.add(ANN.peer_id, *sealed(), is_live=True)
    number = sealed()[0].round
    assert len(readys.begin(number, TIP)) == ROOM + 1 == len(readys)
    assert readys.begin(number + 1, Hash(b"\x01" * 32)) == [] and len(readys) == 0
    assert readys.add(ANN.peer_id, *sealed(serial=9), is_live=True) is False, "its round is over"
    readys.add(ANN.peer_id, *sealed(round=number + 5, serial=10), is_live=True)
    readys.add(PeerId("far ahead"), *sealed(round=10**9), is_live=True)
    readys.begin(number + 2, Hash(b"\x02" * 32))
    assert len(readys) == 1
