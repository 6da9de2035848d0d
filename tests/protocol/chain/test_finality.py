"""Final records: full ones, and provisional ones that a quorum of their electors has confirmed from above."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.chain.electorate import quorum_size
from protocol.chain.finality import RECENT_RECORDS, Finality, RecentWork
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Certificate, Signature

A, B, C, D, E, *NEWCOMERS = (Identity.from_seed(bytes([number]) * 32).peer_id for number in range(1, 8))
FIVE = (A, B, C, D, E)


def signed(*voters: PeerId, absent: tuple[PeerId, ...] = ()) -> Certificate:
    votes = [Signature(peer=peer, signature=bytes(64)) for peer in sorted(voters)]
    return Certificate(attempt=0, absent=sorted(absent), votes=votes)


def after(*certificates: Certificate, electors: tuple[PeerId, ...] = (A, B)) -> Finality:
    finality = Finality()
    for each in certificates:
        finality = extended(finality, electors, each)
    return finality


def extended(finality: Finality, electors: tuple[PeerId, ...], certificate: Certificate) -> Finality:
    """After one more record, whose members are its voters."""
    members = [PeerId(vote.peer) for vote in certificate.votes]
    return finality.after(electors, quorum_size(len(electors)), certificate, members)


ALONE = signed(A, absent=(B,))


def test_full_records_are_final_at_once() -> None:
    assert after(signed(A, B), signed(A, B)) == Finality(2) and after(signed(A, B), signed(A, B)).final == 2


def test_rounds_made_alone_are_final_once_the_other_has_voted_above_them() -> None:
    asleep = after(signed(A, B), *[ALONE] * 90)
    assert (asleep.final, asleep.missing, len(asleep.unconfirmed)) == (1, frozenset((A, B)), 1)
    back = extended(asleep, (A, B), signed(A, B))
    assert (back.final, back.missing, back.rounds) == (92, frozenset(), 92)


def test_full_records_without_a_quorum_of_the_earlier_electors_confirm_nothing() -> None:
    """Of A to E only A stayed; with newcomers it makes full records, and the others may still have certified another one."""
    finality = after(signed(A, absent=(B, C, D, E)), electors=FIVE)
    newcomers = (A, *NEWCOMERS)
    for _ in range(10):
        finality = extended(finality, newcomers, signed(*newcomers))
        assert finality.confirmable(newcomers) == (), "two parts without a quorum must not bind themselves"
    assert (finality.final, finality.rounds) == (0, 11) and finality.missing == frozenset(FIVE)
    for peer in (B, C):
        finality = extended(finality, (*newcomers, peer), signed(*newcomers, peer))
        assert finality.final == 0 and finality.confirmable(newcomers) == ()
    finality = extended(finality, (*newcomers, D), signed(*newcomers, D))
    assert (finality.final, finality.missing) == (0, frozenset((B, C, E))), (
        "four of five are here: their votes confirm from now on"
    )
    for peer, final in ((B, 0), (C, finality.rounds + 2)):
        finality = extended(finality, (*newcomers, peer), signed(A, peer))
        assert finality.final == final, "four of five are a quorum, in whichever records they voted"


def test_later_records_are_confirmed_only_together_with_the_earlier_ones() -> None:
    """A is on all records; B comes back, and with it the second provisional records are confirmable, the first are not."""
    finality = after(signed(A, absent=(B, C, D, E)), electors=FIVE)
    finality = extended(finality, (A, B), signed(A, absent=(B,)))
    finality = extended(finality, (A, B), signed(A, B))
    assert finality.confirmable((A, B)) == () and [each.since for each in finality.unconfirmed] == [None, None]
    assert [each.first for each in finality.confirmable((A, B, C, D))] == [0, 1]


def test_only_electors_of_unconfirmed_records_are_remembered() -> None:
    """Free keys that are members once would otherwise grow a chain's memory without end."""
    finality = after(signed(A, absent=(B, C, D, E)), electors=FIVE)
    for number in range(50):
        stranger = Identity.from_seed(bytes([100 + number]) * 32).peer_id
        finality = extended(finality, (A, stranger), signed(A, stranger))
    assert set(finality.signed) | set(finality.newest) <= set(FIVE)


CERTIFICATES = [
    signed(*voters, absent=absent)
    for absent in ((), (A,), (B,), (C,), (A, B), (B, C), (A, C))
    for voters in product((A, B, C), repeat=2)
    if len(set(voters)) == min(2, 3 - len(absent)) and not set(voters) & set(absent)
]


@given(st.lists(st.sampled_from(CERTIFICATES), max_size=30))
def test_final_records_stay_final_and_each_is_full_or_confirmed_by_a_quorum(chain: list[Certificate]) -> None:
    electors, finality = (A, B, C), Finality()
    for number, certificate in enumerate(chain, 1):
        before, finality = finality.final, extended(finality, electors, certificate)
        assert before <= finality.final <= number == finality.rounds
        above = [
            {vote.peer for later in chain[round + 1 : number] if not later.absent for vote in later.votes}
            for round in range(number)
        ]
        confirmed = [not chain[round].absent or len(above[round]) >= 2 for round in range(number)]
        assert finality.final == next((round for round, is_final in enumerate(confirmed) if not is_final), number)


def test_recent_work_is_of_the_newest_records() -> None:
    work = RecentWork(tuple(((A, 10), (B, 5)) for _ in range(RECENT_RECORDS)))
    assert work.tokens == {A: 160, B: 80} and work.is_most([A]) and not work.is_most([B])
    assert work.is_most([B], without=[A]) and not work.is_most([A], without=[A])
    assert not RecentWork().is_most([A, B]), "at genesis nobody has done anything"


@pytest.mark.parametrize(("part", "is_most"), [((A, B), False), ((A, B, C), True), ((A, B, D), True), ((D,), False)])
def test_half_of_the_work_is_not_most_of_it(part: tuple[PeerId, ...], is_most: bool) -> None:
    assert RecentWork((((A, 1), (B, 1), (C, 1), (D, 1)),)).is_most(part) is is_most


def test_strangers_have_at_most_half_of_the_electors_work() -> None:
    strangers = [PeerId(f"stranger {number}") for number in range(50)]
    record = ((A, 100), (B, 100), *((peer, 10**6) for peer in strangers))
    work = RecentWork((record,) * RECENT_RECORDS)
    assert work.is_most(strangers), "they claim most of it"
    bounded = work.bounded_by([A, B])
    assert 2 * bounded.of([A]) == 2 * bounded.of([B]) == bounded.of([A, B]) == 2 * bounded.of(strangers)
    assert not bounded.is_most(strangers) and not bounded.is_most(strangers, without=[A])
    assert len({bounded.of([peer]) for peer in strangers}) == 1, "equal parts stay equal"
    assert work.bounded_by([C]) is work, "no elector has worked"
    assert RecentWork((((A, 100), (C, 50)),)).bounded_by([A]).tokens == {A: 100, C: 50}
