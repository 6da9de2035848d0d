"""READYs between rounds: the newest of each peer is remembered, and two for one slot are proof."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.audit.evidence import TwoStatements
from protocol.node.readys import MAX_READYS, Readys
from protocol.wire.envelope import Envelope
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Ready, pack
from tests.protocol.consensus.examples import TIP, a_ready
from tests.protocol.peers import ANN

RUN = Hash(b"\x07" * 32)


def sealed(**changes: Any) -> tuple[Ready, Envelope]:
    ready = a_ready(**changes)
    return ready, pack(ANN, RUN, ready)


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
    readys = Readys()
    assert readys.add(ANN.peer_id, *sealed(), is_known=True) is True
    assert readys.add(ANN.peer_id, *sealed(**changes), is_known=True) is news
    newest = sealed(**changes) if news else sealed()
    assert readys.on(TIP) == [(ANN.peer_id, *newest)]


def test_two_for_one_slot_are_proof() -> None:
    readys = Readys()
    first, second = sealed(), sealed(tokens=99)
    readys.add(ANN.peer_id, *first, is_known=True)
    assert readys.add(ANN.peer_id, *second, is_known=True) == TwoStatements(first=first[1].raw, second=second[1].raw)


def test_the_same_said_in_other_bytes_is_neither_news_nor_proof() -> None:
    readys, plus, minus = Readys(), sealed(loss=0.0), sealed(loss=-0.0)
    assert plus[0] == minus[0] and plus[1].raw != minus[1].raw
    readys.add(ANN.peer_id, *plus, is_known=True)
    assert readys.add(ANN.peer_id, *minus, is_known=True) is False


def test_those_for_another_tip_are_not_given() -> None:
    readys = Readys()
    readys.add(ANN.peer_id, *sealed(), is_known=True)
    assert readys.on(Hash(b"\x01" * 32)) == []


def test_strangers_fill_no_memory_and_known_peers_always_have_room() -> None:
    readys, ready = Readys(), sealed()
    for number in range(MAX_READYS):
        assert readys.add(PeerId(f"peer {number}"), *ready, is_known=False) is True
    assert readys.add(ANN.peer_id, *ready, is_known=False) is False
    assert readys.add(ANN.peer_id, *ready, is_known=True) is True
