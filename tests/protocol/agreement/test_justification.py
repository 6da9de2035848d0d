"""What follows from the rolls of a quorum: which rolls count, which lock is to be carried on, whom a plan must name."""

from __future__ import annotations

from itertools import islice, zip_longest
from typing import Any

import pytest

from protocol.agreement.ballot import Ballot, Justification, check_lock, justify
from protocol.allreduce.assignment import plan_hash
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import ZERO_HASH, Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Finish, LockName, Step, ViewChange
from tests.protocol.council import (
    BASE,
    OTHER_RECORD,
    PEERS,
    RECORD,
    RUN,
    TIP,
    a_ballot,
    a_lock,
    a_plan,
    a_roll,
    members,
    name_of,
    signed,
    votes_for,
)
from tests.protocol.tables import cases

ANN, BOB, CAT, DAN, EVE = PEERS
"""Eve is no elector."""


def justified(ballot: Ballot, *rolls: ViewChange) -> Justification:
    """By these rolls of the first voters."""
    return justify(RUN, ballot, [signed(peer, roll) for peer, roll in zip(ballot.voters, rolls, strict=False)])


# -- which rolls count ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signers", "absent", "flaw"),
    [
        ([ANN, BOB, CAT], [], None),
        ([ANN, BOB, CAT, DAN], [], None),
        ([ANN, BOB], [], "2 of the 3 view changes that it needs"),
        ([ANN, BOB, BOB], [], "two of one voter"),
        ([ANN, BOB, EVE], [], "of a non-voter"),
        ([ANN, BOB], [DAN], None),
        ([ANN, DAN], [DAN], "of a non-voter"),
        ([ANN], [CAT, DAN], "1 of the 2 view changes that it needs"),
    ],
    ids=["a quorum", "all", "too few", "doubled", "a stranger", "of those who stay", "of an absent one", "too few stay"],
)
def test_a_quorum_of_voters_calls_a_ballot(signers: list[PeerId], absent: list[PeerId], flaw: str | None) -> None:
    rolls = [signed(peer, a_roll(1, *absent)) for peer in signers]
    if flaw is None:
        assert set(justify(RUN, a_ballot(1, *absent), rolls).rolls) == set(signers)
    else:
        with pytest.raises(Malformed, match=flaw):
            justify(RUN, a_ballot(1, *absent), rolls)


@cases(
    "roll, flaw",
    {
        "a lower attempt": (a_roll(1), "of another ballot"),
        "a higher attempt": (a_roll(3), "of another ballot"),
        "another tip": (a_roll(2, base=ZERO_HASH), "of another ballot"),
        "another round": (a_roll(2, round=4), "of another ballot"),
        "another absent list": (a_roll(2, DAN), "with other absent electors"),
        "a fifth elector's READY": (a_roll(2).model_copy(update={"held": b"\x10"}), "non-electors"),
        "a mask that is too long": (a_roll(2).model_copy(update={"held": b"\x01\x00"}), "non-electors"),
        "a lock of this attempt": (a_roll(2, lock=name_of(2)), "not of a lower attempt"),
        "a lock of a later attempt": (a_roll(2, reduced=name_of(3, DAN)), "not of a lower attempt"),
        "a lock of a part as one of the whole": (a_roll(2, lock=name_of(1, DAN)), "confuses a lock of the whole"),
        "a lock of the whole as one of a part": (a_roll(2, reduced=name_of(1)), "confuses a lock of the whole"),
    },
)
def test_one_roll_that_does_not_fit_spoils_the_quorum(roll: ViewChange, flaw: str) -> None:
    rolls = [signed(ANN, a_roll(2)), signed(BOB, a_roll(2)), signed(CAT, a_roll(2)), signed(DAN, roll)]
    with pytest.raises(Malformed, match=flaw):
        justify(RUN, a_ballot(2), rolls)


def test_rolls_are_signed() -> None:
    good = [signed(ANN, a_roll(1)), signed(BOB, a_roll(1))]
    for bad in (b"rubbish", signed(CAT, Finish(round=5, base=TIP)), good[0].replace(ANN.encode(), CAT.encode())):
        with pytest.raises(Malformed):
            justify(RUN, a_ballot(1), [*good, bad])


def test_members_call_a_ballot_when_there_is_no_elector() -> None:
    ballot = Ballot(BASE, 1, BASE.electors, (DAN, EVE))
    roll = a_roll(1, *BASE.electors)
    assert set(justify(RUN, ballot, [signed(DAN, roll), signed(EVE, roll)]).rolls) == {DAN, EVE}
    with pytest.raises(Malformed):
        justify(RUN, ballot, [signed(ANN, roll), signed(EVE, roll)])


# -- which lock is carried on ---------------------------------------------------------------------------------------------

WHOLE_1, WHOLE_2, OTHER_2 = name_of(1), name_of(2), name_of(2, record=OTHER_RECORD)
PART_1, PART_2, OTHER_PART = name_of(1, DAN), name_of(2, DAN), name_of(2, CAT)


@cases(
    "locks, reduced, absent, highest",
    {
        "none": ([None, None, None], [], [], []),
        "one": ([None, WHOLE_1, None], [], [], [WHOLE_1]),
        "the higher one": ([WHOLE_2, WHOLE_1, None], [], [], [WHOLE_2]),
        "two of one attempt, of which one has a proof": ([WHOLE_2, OTHER_2, WHOLE_1], [], [], [WHOLE_2, OTHER_2]),
        "of the same part": ([], [PART_1, PART_2], [DAN], [PART_2]),
        "only of the same part": ([], [PART_2, OTHER_PART], [DAN], [PART_2]),
        "of another part: none": ([], [PART_1, PART_2], [CAT], []),
        "of a part in a ballot of the whole: none": ([], [PART_2, PART_2, PART_2], [], []),
        "of the whole before a higher one of a part": ([WHOLE_1], [None, PART_2], [DAN], [WHOLE_1]),
    },
)
def test_the_highest_lock_is_carried_on(
    locks: list[LockName | None], reduced: list[LockName | None], absent: list[PeerId], highest: list[LockName]
) -> None:
    ballot = a_ballot(3, *absent)
    pairs = islice(zip_longest(locks, reduced, [None] * 4), len(ballot.voters))
    rolls = [a_roll(3, *absent, lock=lock, reduced=part) for lock, part, _ in pairs]
    assert justified(ballot, *rolls).highest_locks() == highest


@cases(
    "changes, flaw",
    {
        "it holds": ({}, None),
        "too few votes": ({"proof": votes_for(RECORD, [ANN, BOB], 1)}, "2 of the 3 votes"),
        "a stranger's vote": ({"proof": votes_for(RECORD, [ANN, BOB, EVE], 1)}, "non-electors"),
        "second votes": ({"proof": votes_for(RECORD, [ANN, BOB, CAT], 1, step=Step.SECOND)}, "false signature"),
        "votes for another record": ({"proof": votes_for(OTHER_RECORD, [ANN, BOB, CAT], 1)}, "false signature"),
        "votes of another attempt": ({"proof": votes_for(RECORD, [ANN, BOB, CAT], 0)}, "of another lock"),
        "votes of a part": ({"proof": votes_for(RECORD, [ANN, BOB], 1, DAN)}, "of another lock"),
        "another record": ({"record": OTHER_RECORD}, "of another lock"),
        "a lock of an attempt that nobody voted in": ({"lock": name_of(9)}, "of another lock"),
    },
)
def test_a_lock_is_shown_by_a_quorum_of_first_votes(changes: dict[str, Any], flaw: str | None) -> None:
    case = {"record": RECORD, "lock": WHOLE_1, "proof": a_lock(1).proof, **changes}
    if flaw is None:
        check_lock(RUN, a_ballot(3), **case)
    else:
        with pytest.raises(Malformed, match=flaw):
            check_lock(RUN, a_ballot(3), **case)


# -- whom a plan must name ------------------------------------------------------------------------------------------------

FIRST_THREE = plan_hash(a_plan())


@cases(
    "held, taken_up, allowed",
    {
        "nobody is ready": ([[], [], []], [], True),
        "all who are ready are in": ([[ANN], [BOB], [CAT]], [], True),
        "one signer holds the fourth's READY: it may lie": ([[ANN], [BOB], [DAN]], [], True),
        "two hold it: one is honest": ([[ANN], [DAN], [DAN]], [], False),
        "one took the plan up: it may lie": ([[], [DAN], [DAN]], [FIRST_THREE], False),
        "two took it up: one is honest": ([[], [DAN], [DAN]], [FIRST_THREE, FIRST_THREE], True),
        "two took up different plans": ([[], [DAN], [DAN]], [FIRST_THREE, Hash(ZERO_HASH)], False),
    },
)
def test_a_plan_names_each_elector_that_is_ready(held: list[list[PeerId]], taken_up: list[Hash], allowed: bool) -> None:
    plans = [*taken_up, None, None, None]
    rolls = [a_roll(1, held=peers, plan=plan) for peers, plan in zip(held, plans, strict=False)]
    assert justified(a_ballot(1), *rolls).allows_plan(a_plan(), max_members=4) is allowed


def test_a_full_plan_of_electors_may_leave_electors_out() -> None:
    justification = justified(a_ballot(1), *[a_roll(1, held=PEERS[:4])] * 3)
    assert justification.allows_plan(a_plan(), max_members=3)
    stranger = a_plan(members=members(ANN, BOB, EVE))
    assert not justification.allows_plan(stranger, max_members=3), "a stranger has an elector's place"
