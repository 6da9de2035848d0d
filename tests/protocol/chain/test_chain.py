"""Records: who certifies one, which of two is followed, and when one is final."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.chain.base import Base
from protocol.chain.credit import Credit
from protocol.chain.electorate import quorum_size
from protocol.chain.finality import RECENT_RECORDS, Finality, RecentWork
from protocol.chain.records import (
    genesis_tip,
    index_root,
    is_full,
    quorum_of,
    rank,
    record_hash,
    verify_commit,
    verify_votes,
    voters_of,
)
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash, chunk_hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Certificate, ChunkEntry, Commit, Record, Signature, Step, mask_of
from tests.protocol.chains import credits_in
from tests.protocol.council import (
    BASE,
    INDEX,
    OTHER_INDEX,
    OTHER_RECORD,
    PEERS,
    RECORD,
    RUN,
    SETTINGS,
    a_record,
    members,
    votes_for,
)
from tests.protocol.tables import cases

ANN, BOB, CAT, DAN, EVE = PEERS
"""The first four are electors; the members of the record are the first three."""


def a_commit(signers: Sequence[PeerId], *absent: PeerId, record: Record = RECORD, attempt: int = 0) -> Commit:
    """The record with second votes of these peers."""
    index = INDEX if record == RECORD else OTHER_INDEX
    return Commit(record=record, index=index, certificate=votes_for(record, signers, attempt, *absent, step=Step.SECOND))


# -- certificates ---------------------------------------------------------------------------------------------------------


@cases(
    "signers, absent, flaw",
    {
        "a quorum": ([ANN, BOB, CAT], [], None),
        "all": ([ANN, BOB, CAT, DAN], [], None),
        "one too few": ([ANN, BOB], [], "2 of the 3 votes"),
        "a stranger": ([ANN, BOB, EVE], [], "non-electors"),
        "of those who stay": ([ANN, BOB], [DAN], None),
        "one of three": ([ANN], [DAN], "1 of the 2 votes"),
        "the absent one": ([ANN, DAN], [DAN], "non-electors"),
        "two who stay": ([ANN, BOB], [CAT, DAN], None),
        "the last one": ([ANN], [BOB, CAT, DAN], None),
        "a stranger is absent": ([ANN, BOB, CAT], [EVE], "a non-elector as absent"),
        "absent ones that sign as members": ([ANN, BOB], [ANN, BOB, CAT, DAN], "one of its signers as absent"),
    },
)
def test_a_quorum_of_second_votes_certifies(signers: list[PeerId], absent: list[PeerId], flaw: str | None) -> None:
    commit = a_commit(signers, *absent)
    assert is_full(commit.certificate) == (not absent)
    if flaw is None:
        verify_commit(SETTINGS, commit, BASE)
    else:
        with pytest.raises(Malformed, match=flaw):
            verify_commit(SETTINGS, commit, BASE)


@pytest.mark.parametrize(
    ("signers", "flaw"),
    [
        ([ANN, BOB], None),
        ([ANN, BOB, CAT], None),
        ([ANN], "1 of the 2 votes"),
        ([ANN, DAN], "non-electors"),
        ([ANN, EVE], "non-electors"),
    ],
    ids=["most of the members", "all of them", "one of three", "the absent elector", "a stranger"],
)
def test_a_majority_of_the_members_certifies_when_no_elector_is_left(signers: list[PeerId], flaw: str | None) -> None:
    base = replace(BASE, electors=(DAN,))
    if flaw is None:
        verify_commit(SETTINGS, a_commit(signers, DAN), base)
    else:
        with pytest.raises(Malformed, match=flaw):
            verify_commit(SETTINGS, a_commit(signers, DAN), base)


QUORUM = [ANN, BOB, CAT]
GOOD = votes_for(RECORD, QUORUM, 2, step=Step.SECOND)


def altered(number: int, **changes: object) -> list[Signature]:
    """The votes of the good certificate, one of them changed."""
    votes = list(GOOD.votes)
    votes[number] = votes[number].model_copy(update=changes)
    return votes


@cases(
    "certificate",
    {
        "first votes": votes_for(RECORD, QUORUM, 2, step=Step.FIRST),
        "votes for another record": votes_for(OTHER_RECORD, QUORUM, 2, step=Step.SECOND),
        "votes of a part as votes of the whole": votes_for(RECORD, QUORUM, 2, DAN, step=Step.SECOND).model_copy(
            update={"absent": []}
        ),
        "votes of the whole as votes of a part": GOOD.model_copy(update={"absent": [DAN]}),
        "votes of another attempt": GOOD.model_copy(update={"attempt": 3}),
        "one without a signature": GOOD.model_copy(update={"votes": altered(2, signature=bytes(64))}),
        "one under another name": GOOD.model_copy(update={"votes": altered(2, peer=DAN)}),
        "one twice, as another's": GOOD.model_copy(update={"votes": altered(1, peer=ANN)}),
        "one twice": GOOD.model_copy(update={"votes": [*GOOD.votes, GOOD.votes[2]]}),
        "not in order": GOOD.model_copy(update={"votes": GOOD.votes[::-1]}),
        "an absent one twice": GOOD.model_copy(update={"absent": [DAN, DAN]}),
    },
)
def test_votes_count_for_what_they_sign_and_nothing_else(certificate: Certificate) -> None:
    verify_votes(RUN, BASE, RECORD, GOOD, Step.SECOND)
    with pytest.raises(Malformed):
        verify_votes(RUN, BASE, RECORD, certificate, Step.SECOND)


def test_votes_of_another_run_or_tip_count_nothing() -> None:
    with pytest.raises(Malformed):
        verify_votes(Hash(bytes(32)), BASE, RECORD, GOOD, Step.SECOND)
    with pytest.raises(Malformed):
        verify_votes(RUN, replace(BASE, tip=genesis_tip(RUN)), RECORD, GOOD, Step.SECOND)


def test_a_commit_is_a_record_with_its_chunks_and_a_certificate() -> None:
    good = a_commit(QUORUM)
    verify_commit(SETTINGS, good, BASE)
    for bad in (
        good.model_copy(update={"index": OTHER_INDEX}),
        good.model_copy(update={"record": OTHER_RECORD, "index": OTHER_INDEX}),
        good.model_copy(update={"record": a_record(members=members(*PEERS[:2], DAN))}),
    ):
        with pytest.raises(Malformed):
            verify_commit(SETTINGS, bad, BASE)


def test_the_first_members_vote_on_the_first_record_of_a_run_that_anybody_may_begin() -> None:
    base = Base(0, 0, genesis_tip(RUN), ())
    first = members(*PEERS[:4], round=0, base=base.tip)
    voters = voters_of(base, first, [])
    assert voters == tuple(PEERS[:4]) and quorum_of(base, voters, []) == 3, "a majority"
    assert quorum_of(base, PEERS, []) == 3 < quorum_size(5)


# -- fork choice ----------------------------------------------------------------------------------------------------------

FULL = a_commit(QUORUM)
PROVISIONAL = a_commit([ANN, BOB], DAN)


def prefer(electors: Sequence[PeerId], ours: Commit, theirs: Commit) -> bool:
    """Whether their record wins over ours."""
    return rank(electors, theirs) < rank(electors, ours)


@cases(
    "ours, theirs, theirs_wins",
    {
        "a full one beats a provisional one": (PROVISIONAL, FULL, True),
        "and is not beaten by one": (FULL, PROVISIONAL, False),
        "two signers beat one": (a_commit([ANN, BOB], CAT, DAN), a_commit([CAT], ANN, BOB, DAN, record=OTHER_RECORD), False),
        "whichever is ours": (a_commit([CAT], ANN, BOB, DAN, record=OTHER_RECORD), a_commit([ANN, BOB], CAT, DAN), True),
        "three beat one": (a_commit([ANN, BOB, CAT], *PEERS[:4]), a_commit([DAN], ANN, BOB, CAT), False),
        "the same": (FULL, FULL, False),
    },
)
def test_one_of_two_records_is_followed(ours: Commit, theirs: Commit, theirs_wins: bool) -> None:
    assert prefer(BASE.electors, ours, theirs) is theirs_wins


def test_signers_that_are_no_electors_and_claimed_tokens_decide_nothing() -> None:
    crowd, alone = a_commit([ANN, BOB, CAT], *PEERS[:4]), a_commit([DAN], ANN, BOB, CAT, record=OTHER_RECORD)
    assert prefer((DAN,), crowd, alone) and not prefer((DAN,), alone, crowd)
    rich = a_record(members=members(*PEERS[:3], tokens=1000))
    assert not prefer(BASE.electors, a_commit([ANN, BOB], CAT, DAN), a_commit([CAT], ANN, BOB, DAN, record=rich))


def test_of_equals_the_lower_hash_is_followed() -> None:
    one, other = a_commit([ANN], BOB, CAT, DAN), a_commit([BOB], ANN, CAT, DAN, record=OTHER_RECORD)
    lower, higher = sorted((one, other), key=lambda commit: record_hash(commit.record))
    assert prefer(BASE.electors, higher, lower) and not prefer(BASE.electors, lower, higher)


# -- names and credits ----------------------------------------------------------------------------------------------------


def test_a_record_carried_into_another_ballot_is_the_same_record() -> None:
    names = {record_hash(commit.record) for commit in (a_commit(QUORUM), a_commit(QUORUM, attempt=7), PROVISIONAL)}
    assert len(names) == 1


def test_the_name_of_a_result_covers_hashes_and_masks() -> None:
    names = {index_root(INDEX), index_root(OTHER_INDEX), index_root(INDEX[::-1])}
    names.add(index_root([INDEX[0].model_copy(update={"mask": b"\x03"}), *INDEX[1:]]))
    assert len(names) == 4


def test_members_are_credited_with_the_share_of_their_chunks_that_were_averaged() -> None:
    masks = [mask_of([0, 1, 2], 3), mask_of([0, 1], 3), mask_of([0], 3), mask_of([0], 3)]
    index = [ChunkEntry(hash=chunk_hash(bytes([chunk])), mask=mask) for chunk, mask in enumerate(masks)]
    commit = a_commit(QUORUM).model_copy(update={"index": index})
    assert credits_in([commit, commit]) == {ANN: Credit(2, 200), BOB: Credit(2, 100), CAT: Credit(2, 50)}


# -- finality -------------------------------------------------------------------------------------------------------------

A, B, C, D, E, *NEWCOMERS = (Identity.from_seed(bytes([number]) * 32).peer_id for number in range(1, 8))
FIVE = (A, B, C, D, E)


def signed_by(*voters: PeerId, absent: tuple[PeerId, ...] = ()) -> Certificate:
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


ALONE = signed_by(A, absent=(B,))


def test_rounds_made_alone_are_final_once_the_other_has_voted_above_them() -> None:
    asleep = after(signed_by(A, B), *[ALONE] * 90)
    assert (asleep.final, asleep.missing, len(asleep.unconfirmed)) == (1, frozenset((A, B)), 1)
    back = extended(asleep, (A, B), signed_by(A, B))
    assert (back.final, back.missing, back.rounds) == (92, frozenset(), 92)


def test_full_records_without_a_quorum_of_the_earlier_electors_confirm_nothing() -> None:
    """Of A to E only A stayed; with newcomers it makes full records, and the others may still have certified another one."""
    finality = after(signed_by(A, absent=(B, C, D, E)), electors=FIVE)
    newcomers = (A, *NEWCOMERS)
    for _ in range(10):
        finality = extended(finality, newcomers, signed_by(*newcomers))
        assert finality.confirmable(newcomers) == (), "two parts without a quorum must not bind themselves"
    assert (finality.final, finality.rounds) == (0, 11) and finality.missing == frozenset(FIVE)
    for peer in (B, C):
        finality = extended(finality, (*newcomers, peer), signed_by(*newcomers, peer))
        assert finality.final == 0 and finality.confirmable(newcomers) == ()
    finality = extended(finality, (*newcomers, D), signed_by(*newcomers, D))
    assert (finality.final, finality.missing) == (0, frozenset((B, C, E))), (
        "four of five are here: their votes confirm from now on"
    )
    for peer, final in ((B, 0), (C, finality.rounds + 2)):
        finality = extended(finality, (*newcomers, peer), signed_by(A, peer))
        assert finality.final == final, "four of five are a quorum, in whichever records they voted"


def test_only_electors_of_unconfirmed_records_are_remembered() -> None:
    """Free keys that are members once would otherwise grow a chain's memory without end."""
    finality = after(signed_by(A, absent=(B, C, D, E)), electors=FIVE)
    for number in range(50):
        stranger = Identity.from_seed(bytes([100 + number]) * 32).peer_id
        finality = extended(finality, (A, stranger), signed_by(A, stranger))
    assert set(finality.signed) | set(finality.newest) <= set(FIVE)


CERTIFICATES = [
    signed_by(*voters, absent=absent)
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
    assert not RecentWork((((A, 1), (B, 1)),)).is_most([A]), "half is not most"


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
