"""Audits of receipts: verdicts, the draw of members and rows, and who is set aside for how long."""

from __future__ import annotations

from math import nan
from random import Random

import pytest

from protocol.audit.receipts import (
    ASIDE_ROUNDS,
    FIRST,
    MOST_ASIDE_ROUNDS,
    SAVED,
    SECOND,
    UNHEARD_ROUNDS,
    AuditBook,
    ReceiptVerdict,
    drawn_rows,
    verdict,
)
from protocol.wire.identity import PeerId
from protocol.wire.presence import MAX_ASIDE
from tests.protocol.peers import ANN, BOB

PEERS = [PeerId(f"peer {number:02}") for number in range(20)]


def a_book(rows: int = 10**9) -> AuditBook:
    """A book of a peer that may compute as many rows as can be saved up."""
    book = AuditBook()
    book.note_trained(rows)
    return book


def drawn(book: AuditBook, rounds: int, members: list[PeerId] | None = None) -> list[PeerId]:
    """All members drawn in some rounds, before each of which the peer may compute all that can be saved up."""
    random, found = Random(1), list[PeerId]()
    for round in range(rounds):
        book.note_trained(10**9)
        found += book.choose(random, members or PEERS, round)
    return found


@pytest.mark.parametrize(
    ("rows", "level", "expected"),
    [
        ([0.9] * 8, 0.9, ReceiptVerdict.SOUND),
        ([0.9] * 6 + [0.0] * 2, 0.9, ReceiptVerdict.SOUND),
        ([0.62] * 8, 0.9, ReceiptVerdict.SUSPECT),
        ([0.64] * 8, 0.9, ReceiptVerdict.SOUND),
        ([0.0] * 8, 0.59, ReceiptVerdict.NONE),
        ([0.0] * 8, nan, ReceiptVerdict.NONE),
        ([], 0.9, ReceiptVerdict.NONE),
        ([nan] * 8, 0.9, ReceiptVerdict.NONE),
        ([0.9] * 6 + [nan] * 2, 0.9, ReceiptVerdict.SOUND),
        ([0.0] * 5 + [nan] * 3, 0.9, ReceiptVerdict.NONE),
    ],
)
def test_the_verdict_compares_the_mean_with_the_level(rows: list[float], level: float, expected: ReceiptVerdict) -> None:
    assert verdict(rows, level) is expected


@pytest.mark.parametrize(
    ("steps", "own", "width"), [(30, 30, 4), (30, 5, 4), (5, 30, 4), (40, 40, 1), (1, 40, 64), (2, 1, 8)]
)
def test_rows_are_drawn_from_all_steps_that_a_member_claims(steps: int, own: int, width: int) -> None:
    seen = set[int]()
    for seed in range(200):
        theirs, ours = drawn_rows(Random(seed), FIRST, steps, own, width)
        seen |= {part.step for part in theirs}
        assert sum(len(part.rows) for part in theirs) >= FIRST.rows, "also with few steps, or one row in each"
        for parts, most in ((theirs, steps), (ours, own)):
            places = [part.step for part in parts]
            assert places == sorted(set(places)) and places[0] >= 0 and places[-1] < most
            assert all(len(set(part.rows)) == len(part.rows) and max(part.rows) < width for part in parts)
    assert seen == set(range(steps))


def test_there_are_no_more_rows_than_there_are() -> None:
    theirs, ours = drawn_rows(Random(0), SECOND, 2, 3, 1)
    assert [part.rows for part in theirs] == [(0,), (0,)] and len(ours) <= 3


def test_no_more_rows_are_computed_than_a_share_of_those_trained_on() -> None:
    book, random = AuditBook(0.02), Random(3)
    audited = 0
    for round in range(3000):
        book.note_trained(120)
        for _ in book.choose(random, PEERS, round):
            book.spend(FIRST)
            audited += FIRST.cost
    assert 0.9 < audited / (0.02 * 120 * 3000) <= 1


def test_a_second_draw_is_paid_for_later() -> None:
    book = a_book()
    for _ in range(SAVED // FIRST.cost):
        book.spend(FIRST)
    book.spend(SECOND)
    book.note_trained(50 * SECOND.cost)
    assert not book.choose(Random(0), PEERS, 0)


def test_a_member_with_a_clean_history_is_seldom_audited() -> None:
    book = a_book()
    for _ in range(30):
        for peer in PEERS[:10]:
            book.note_sound(peer)
    found = drawn(book, 3000)
    clean = sum(peer in PEERS[:10] for peer in found)
    assert 0.05 < clean / (len(found) - clean) < 0.2


def test_all_members_together_audit_a_member_about_twice_a_round() -> None:
    found = drawn(AuditBook(), 4000)
    assert 1.7 < len(PEERS) * found.count(PEERS[0]) / 4000 < 2.3


def test_an_accused_member_is_audited_sooner_but_not_by_all_at_once() -> None:
    book, alone = a_book(), 0
    for _ in range(30):
        book.note_sound(PEERS[7])
    book.accuse(ANN.peer_id, [PEERS[7]])
    for seed in range(2000):
        found = book.choose(Random(seed), PEERS, 5)
        if PEERS[7] in found:
            assert found[0] == PEERS[7]
            alone += 1
    assert 0.15 < alone / 2000 < 0.25, "four audits of it by 20 members"


def test_an_accuser_whose_words_were_wrong_twice_is_not_heard_any_more_and_one_that_was_right_is() -> None:
    book = a_book()
    for accused in PEERS[:2]:
        for accuser in (ANN.peer_id, BOB.peer_id):
            book.accuse(accuser, [accused])
        audited(book, accused)
        book.accuse(BOB.peer_id, [PEERS[9]])  # what it says after the draw changes nothing
        book.note_sound(accused)
    for accuser in (ANN.peer_id, BOB.peer_id):
        book.accuse(accuser, [PEERS[5]])
    assert count_of(book, PEERS[5]) < 0.15
    book.choose(Random(0), PEERS, 5 + UNHEARD_ROUNDS)
    book.accuse(ANN.peer_id, [PEERS[5]])
    assert count_of(book, PEERS[5], 5 + UNHEARD_ROUNDS) > 0.15, "it is heard again"
    book = a_book()
    book.accuse(ANN.peer_id, [PEERS[0]])
    audited(book, PEERS[0])
    book.note_sound(PEERS[0])
    book.accuse(ANN.peer_id, [PEERS[1]])
    audited(book, PEERS[1])
    book.set_aside(PEERS[1], 5, "why")
    book.accuse(ANN.peer_id, [PEERS[2]])
    audited(book, PEERS[2])
    book.note_sound(PEERS[2])
    book.accuse(ANN.peer_id, [PEERS[3]])
    assert count_of(book, PEERS[3]) > 0.15, "one wrong word since the right one"


def count_of(book: AuditBook, peer: PeerId, round: int = 5) -> float:
    """The share of draws in which a member is drawn."""
    return sum(peer in book.choose(Random(seed), PEERS, round) for seed in range(1000)) / 1000


def audited(book: AuditBook, peer: PeerId) -> None:
    """Draw until a member is drawn."""
    assert any(peer in book.choose(Random(seed), PEERS, 5) for seed in range(1000))


def test_of_the_members_that_an_accuser_names_one_at_a_time_is_audited_sooner_whom_we_have_not_set_aside() -> None:
    book = a_book()
    for _ in range(30):
        for peer in PEERS:
            book.note_sound(peer)
    book.accuse(ANN.peer_id, [PEERS[0]])
    book.accuse(BOB.peer_id, PEERS[1:5])
    assert count_of(book, PEERS[0]) > 0.15
    assert all(0.03 < count_of(book, peer) < 0.1 for peer in PEERS[1:5]), "a fifth of the rounds is shared"
    for peer in PEERS[1:4]:
        book.set_aside(peer, 0, "why")
    assert count_of(book, PEERS[4]) > 0.15
    book.accuse(BOB.peer_id, [])
    assert count_of(book, PEERS[4]) < 0.05, "it has taken its word back"


def test_of_many_members_an_eighth_audits_an_accused_one_and_of_very_many_eight() -> None:
    for count, wanted in ((40, 0.125), (200, 0.04)):
        book, many = a_book(), [PeerId(f"peer {number:03}") for number in range(count)]
        for _ in range(30):
            book.note_sound(many[7])
        book.accuse(ANN.peer_id, [many[7]])
        drawn = sum(many[7] in book.choose(Random(seed), many, 5) for seed in range(2000))
        assert drawn / 2000 == pytest.approx(wanted, abs=0.015)


def test_a_member_that_gets_no_verdict_is_soon_drawn_like_any_other() -> None:
    book = a_book()
    book.set_aside(PEERS[0], 0, "why")
    assert count_of(book, PEERS[0], ASIDE_ROUNDS) > 0.15
    book.note_unclear(PEERS[0])
    assert count_of(book, PEERS[0], ASIDE_ROUNDS) < 0.15
    book.note_suspect(PEERS[0])
    book.note_audited(PEERS[0], 7)
    assert count_of(book, PEERS[0], ASIDE_ROUNDS) > 0.15, "after an audit with a verdict"


def test_a_member_is_set_aside_for_twice_as_long_each_time_and_then_audited_again() -> None:
    book, round, lengths = a_book(), 10, list[int]()
    for _ in range(7):
        assert book.set_aside(PEERS[0], round, "why")
        assert not book.set_aside(PEERS[0], round, "again")
        begun = round
        while book.is_aside(PEERS[0], round):
            assert PEERS[0] in book.aside(round)
            round += 1
        lengths.append(round - begun)
    assert lengths[:2] == [ASIDE_ROUNDS, 2 * ASIDE_ROUNDS] and lengths[-1] == MOST_ASIDE_ROUNDS
    assert {book.choose(Random(seed), PEERS[:2], round)[0] for seed in range(20)} == {PEERS[0]}, "it comes first"


def test_a_suspect_gets_its_second_draw_in_a_later_round_if_need_be() -> None:
    book = a_book()
    for _ in range(30):
        book.note_sound(PEERS[0])
    assert book.next_draw(PEERS[0]) is FIRST
    book.note_suspect(PEERS[0])
    assert book.next_draw(PEERS[0]) is SECOND and count_of(book, PEERS[0]) > 0.15, "and soon"
    book.note_sound(PEERS[0])
    assert book.next_draw(PEERS[0]) is FIRST


def test_a_member_that_is_set_aside_is_not_audited_and_can_be_let_back() -> None:
    book = a_book()
    book.set_aside(PEERS[0], 0, "why")
    assert PEERS[0] not in drawn(book, ASIDE_ROUNDS - 1)
    assert book.told_aside(0) == [PEERS[0]]
    assert book.lift(PEERS[0]) and not book.aside(0) and not book.told_aside(0)
    assert not book.lift(PEERS[1])


def test_a_sound_audit_makes_up_for_half_of_a_time_without_receipts() -> None:
    book = a_book()
    told = []
    for _ in range(5):
        told.append(book.note_withheld(PEERS[0], 0))
        book.note_sound(PEERS[0])
    assert told == [False] * 4 + [True]
    assert [book.note_withheld(PEERS[1], 0) for _ in range(3)] == [False, False, True]
    assert book.is_aside(PEERS[1], 0)


def test_late_receipts_count_less_than_withheld_ones() -> None:
    book = a_book()
    late = [book.note_withheld(PEERS[0], 0, late=True) for _ in range(12)]
    assert late == [False] * 11 + [True]


def test_heartbeats_name_a_few_of_many_members_that_are_set_aside_and_others_in_the_next_round() -> None:
    book = a_book()
    for peer in PEERS[:9]:
        book.set_aside(peer, 0, "why")
    told = [book.told_aside(round) for round in range(3)]
    assert all(len(each) == MAX_ASIDE for each in told) and set().union(*told) == set(PEERS[:9])
