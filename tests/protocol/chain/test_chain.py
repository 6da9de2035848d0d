"""When a record is certified, which of two is followed, and what the chain credits its members with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations, product

import pytest

from protocol.chain.base import Base
from protocol.chain.credit import Credit
from protocol.chain.electorate import quorum_size
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
from protocol.wire.identity import PeerId
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

ANN, BOB, CAT, DAN, EVE = PEERS
"""The first four are electors; the members of the record are the first three."""


def a_commit(signers: Sequence[PeerId], *absent: PeerId, record: Record = RECORD, attempt: int = 0) -> Commit:
    """The record with second votes of these peers."""
    index = INDEX if record == RECORD else OTHER_INDEX
    return Commit(record=record, index=index, certificate=votes_for(record, signers, attempt, *absent, step=Step.SECOND))


# -- certificates ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signers", "absent", "flaw"),
    [
        ([ANN, BOB, CAT], [], None),
        ([ANN, BOB, CAT, DAN], [], None),
        ([ANN, BOB], [], "2 of the 3 votes"),
        ([ANN, BOB, EVE], [], "non-electors"),
        ([ANN, BOB], [DAN], None),
        ([ANN], [DAN], "1 of the 2 votes"),
        ([ANN, DAN], [DAN], "non-electors"),
        ([ANN, BOB], [CAT, DAN], None),
        ([ANN], [BOB, CAT, DAN], None),
        ([ANN, BOB, CAT], [EVE], "a non-elector as absent"),
        ([ANN, BOB], [ANN, BOB, CAT, DAN], "one of its signers as absent"),
    ],
    ids=[
        "a quorum",
        "all",
        "one too few",
        "a stranger",
        "of those who stay",
        "one of three",
        "the absent one",
        "two who stay",
        "the last one",
        "a stranger is absent",
        "absent ones that sign as members",
    ],
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


@pytest.mark.parametrize(
    "certificate",
    [
        votes_for(RECORD, QUORUM, 2, step=Step.FIRST),
        votes_for(OTHER_RECORD, QUORUM, 2, step=Step.SECOND),
        votes_for(RECORD, QUORUM, 2, DAN, step=Step.SECOND).model_copy(update={"absent": []}),
        GOOD.model_copy(update={"absent": [DAN]}),
        GOOD.model_copy(update={"attempt": 3}),
        GOOD.model_copy(update={"votes": altered(2, signature=bytes(64))}),
        GOOD.model_copy(update={"votes": altered(2, peer=DAN)}),
        GOOD.model_copy(update={"votes": altered(1, peer=ANN)}),
        GOOD.model_copy(update={"votes": [*GOOD.votes, GOOD.votes[2]]}),
        GOOD.model_copy(update={"votes": GOOD.votes[::-1]}),
        GOOD.model_copy(update={"absent": [DAN, DAN]}),
    ],
    ids=[
        "first votes",
        "votes for another record",
        "votes of a part as votes of the whole",
        "votes of the whole as votes of a part",
        "votes of another attempt",
        "one without a signature",
        "one under another name",
        "one twice, as another's",
        "one twice",
        "not in order",
        "an absent one twice",
    ],
)
def test_votes_count_for_what_they_sign_and_nothing_else(certificate: Certificate) -> None:
    verify_votes(RUN, BASE, RECORD, GOOD, Step.SECOND)
    with pytest.raises(Malformed):
        verify_votes(RUN, BASE, RECORD, certificate, Step.SECOND)


def test_a_proof_of_lock_is_no_certificate_and_the_other_way_round() -> None:
    first = votes_for(RECORD, QUORUM, 2)
    verify_votes(RUN, BASE, RECORD, first, Step.FIRST)
    with pytest.raises(Malformed):
        verify_votes(RUN, BASE, RECORD, GOOD, Step.FIRST)


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


@pytest.mark.parametrize("electors", range(1, 5))
def test_who_votes(electors: int) -> None:
    """The electors that are not absent; the record's members when none is left, by majority: no liar is tolerated there."""
    base = replace(BASE, electors=tuple(PEERS[:electors]))
    for count in range(electors + 1):
        absent = PEERS[:count]
        voters = voters_of(base, RECORD.members, absent)
        assert voters == (tuple(PEERS[count:electors]) or tuple(PEERS[:3]))
        assert quorum_of(base, voters, absent) == (quorum_size(electors - count) if count < electors else 2)


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


@pytest.mark.parametrize(
    ("ours", "theirs", "theirs_wins"),
    [
        (PROVISIONAL, FULL, True),
        (FULL, PROVISIONAL, False),
        (a_commit([ANN, BOB], CAT, DAN), a_commit([CAT], ANN, BOB, DAN, record=OTHER_RECORD), False),
        (a_commit([CAT], ANN, BOB, DAN, record=OTHER_RECORD), a_commit([ANN, BOB], CAT, DAN), True),
        (a_commit([ANN, BOB, CAT], *PEERS[:4]), a_commit([DAN], ANN, BOB, CAT), False),
        (FULL, FULL, False),
    ],
    ids=[
        "a full one beats a provisional one",
        "and is not beaten by one",
        "two signers beat one",
        "whichever is ours",
        "three beat one",
        "the same",
    ],
)
def test_one_of_two_records_is_followed(ours: Commit, theirs: Commit, theirs_wins: bool) -> None:
    assert prefer(BASE.electors, ours, theirs) is theirs_wins


def test_signers_that_are_no_electors_count_nothing() -> None:
    crowd = a_commit([ANN, BOB, CAT], *PEERS[:4])
    alone = a_commit([DAN], ANN, BOB, CAT, record=OTHER_RECORD)
    electors = (DAN,)
    assert prefer(electors, crowd, alone) and not prefer(electors, alone, crowd)


def test_of_equals_the_lower_hash_is_followed() -> None:
    one, other = a_commit([ANN], BOB, CAT, DAN), a_commit([BOB], ANN, CAT, DAN, record=OTHER_RECORD)
    lower, higher = sorted((one, other), key=lambda commit: record_hash(commit.record))
    assert prefer(BASE.electors, higher, lower) and not prefer(BASE.electors, lower, higher)


def test_claimed_tokens_decide_nothing() -> None:
    rich = a_record(members=members(*PEERS[:3], tokens=1000))
    few = a_commit([CAT], ANN, BOB, DAN, record=rich)
    assert not prefer(BASE.electors, a_commit([ANN, BOB], CAT, DAN), few)


def test_everybody_follows_the_same_record_in_whatever_order_they_hear() -> None:
    commits = [
        a_commit(list(signers), *absent, record=record)
        for record, signers, absent in product((RECORD, OTHER_RECORD), ([ANN, BOB], [ANN, BOB, CAT]), ([DAN], [CAT, DAN]))
        if not set(signers) & set(absent)
    ]
    ends = set()
    for heard in permutations(commits):
        best = heard[0]
        for other in heard[1:]:
            best = other if prefer(BASE.electors, best, other) else best
        ends.add(record_hash(best.record))
    assert len(ends) == 1


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
