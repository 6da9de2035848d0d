"""How much evidence is kept until it can be judged, and which."""

from __future__ import annotations

from protocol.audit.ejection import MAX_POSTPONED, POSTPONED_BYTES, Postponed
from protocol.audit.evidence import evidence_hash

TIP = (5, b"\x05" * 32)


def add(postponed: Postponed, raw: bytes, round: int = 5, *, is_known: bool = False) -> bool:
    return postponed.add(evidence_hash(raw), raw, (round, TIP[1]), is_known=is_known)


def piece(number: int, size: int = 100) -> bytes:
    return number.to_bytes(4, "big") * (size // 4)


def test_evidence_is_given_out_once_when_its_tip_is_known() -> None:
    postponed = Postponed()
    assert add(postponed, b"one") and add(postponed, b"two", 6) and not add(postponed, b"one"), "it is here"
    assert evidence_hash(b"one") in postponed
    assert postponed.take(lambda tip: tip == TIP) == [b"one"] and postponed.take(lambda tip: tip == TIP) == []
    assert len(postponed) == 1 and evidence_hash(b"one") not in postponed


def test_the_oldest_makes_room_and_peers_of_the_chain_come_first() -> None:
    postponed = Postponed()
    for number in range(MAX_POSTPONED - 1):
        assert add(postponed, piece(number), is_known=True)
    for number in range(100, 200):
        assert add(postponed, piece(number)), "strangers share the place that is left"
    assert len(postponed) == MAX_POSTPONED and evidence_hash(piece(199)) in postponed
    assert add(postponed, piece(300), is_known=True) and evidence_hash(piece(199)) not in postponed
    assert not add(postponed, piece(301))
    assert add(postponed, piece(302), is_known=True) and evidence_hash(piece(0)) not in postponed
    assert len(postponed) == MAX_POSTPONED


def test_it_is_bounded_in_bytes() -> None:
    postponed = Postponed()
    half = POSTPONED_BYTES // 2
    assert all(add(postponed, piece(number, half)) for number in range(3)) and len(postponed) == 2
    assert not add(postponed, piece(9, POSTPONED_BYTES + 4)) and len(postponed) == 2
