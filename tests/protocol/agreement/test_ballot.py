"""What a ballot permits: plans and records put to the vote, the view changes behind them, votes and locks."""

from __future__ import annotations

from itertools import islice, zip_longest
from typing import Any

import pytest

from protocol.agreement.ballot import (
    Ballot,
    Justification,
    blank,
    cast_first,
    cast_second,
    check_lock,
    enter,
    flaw_of_plan,
    flaw_of_record_proposal,
    is_in,
    justify,
    objection_of_lock,
    objection_to_vote,
    view_change_of,
)
from protocol.allreduce.assignment import plan_hash
from protocol.chain.records import record_hash
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import decode_body
from protocol.wire.hashes import ZERO_HASH, Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Finish, LockName, Record, Step, ViewChange, VoterState
from tests.protocol.council import (
    BASE,
    INDEX,
    OTHER_RECORD,
    PEERS,
    PROVENANCE,
    RECORD,
    RUN,
    SETTINGS,
    STATE,
    TIP,
    a_ballot,
    a_lock,
    a_plan,
    a_ready,
    a_record,
    a_record_proposal,
    a_view_change,
    members,
    name_of,
    signed,
    votes_for,
)
from tests.protocol.tables import cases

# -- what is put to the vote ----------------------------------------------------------------------------------------------

OTHER_ROOT = b"\x05" * 32
MOST = SETTINGS.manifest.tokens_per_round
ILL_SORTED = "members that are not sorted, too few or too many"


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [
        ({}, None),
        ({"members": members(*PEERS[:4])}, None),
        ({"state_digest": ZERO_HASH, "members": members(*PEERS[:3], state_digest=ZERO_HASH)}, None),
        ({"round": 4}, "its plan is for another round"),
        ({"base": ZERO_HASH}, "its plan is for another round"),
        ({"fragment": 1}, "its plan is for fragment 1, not 0"),
        ({"members": members(PEERS[1], PEERS[0], PEERS[2])}, f"its plan has {ILL_SORTED}"),
        ({"members": members(PEERS[0], PEERS[0], PEERS[1])}, f"its plan has {ILL_SORTED}"),
        ({"members": members(PEERS[0])}, "a chunk of its plan has an owner that is not a member"),
        ({"members": members(PEERS[0]), "owners": bytes(3)}, f"its plan has {ILL_SORTED}"),
        ({"members": members(*PEERS)}, f"its plan has {ILL_SORTED}"),
        ({"members": members(*PEERS[:3], tokens=MOST, steps=SETTINGS.manifest.round_steps)}, None),
        (
            {"members": members(*PEERS[:3], tokens=MOST + 1, steps=SETTINGS.manifest.round_steps)},
            "its plan has a member that claims more tokens than its contribution can have",
        ),
        ({"owners": b"\0\1"}, "its plan has 2 chunks, not 3"),
        ({"owners": b"\0\1\2\0"}, "its plan has 4 chunks, not 3"),
        ({"owners": b"\0\1\3"}, "a chunk of its plan has an owner that is not a member"),
    ],
)
def test_plans(changes: dict[str, Any], flaw: str | None) -> None:
    assert flaw_of_plan(SETTINGS, BASE, a_plan(**changes)) == flaw


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [
        ({}, None),
        ({"previous": ZERO_HASH}, "a record that does not stand on this tip"),
        ({"round": 6}, "a record that does not stand on this tip"),
        ({"fragment": 1}, "a record of another fragment or codec than the round's"),
        ({"codec": "fp32"}, "a record of another fragment or codec than the round's"),
        ({"members": members(*PEERS)}, ILL_SORTED),
        (
            {"members": members(*PEERS[:3], tokens=MOST + 1, steps=SETTINGS.manifest.round_steps)},
            "a member that claims more tokens than its contribution can have",
        ),
        ({"result_root": ZERO_HASH}, "a record whose chunks do not match its result root"),
    ],
)
def test_records_put_to_the_vote(changes: dict[str, Any], flaw: str | None) -> None:
    assert flaw_of_record_proposal(SETTINGS, BASE, a_record(**changes), INDEX, PROVENANCE) == flaw


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [
        ({}, None),
        ({"owners": b"\0\1"}, "its provenance is not of this many chunks"),
        ({"signers": b"\0\1\2\0"}, "its provenance is not of this many chunks"),
        ({"signatures": [bytes(64)] * 2}, "its provenance is not of this many chunks"),
        ({"owners": b"\0\1\3"}, "its provenance names an owner or a signer that is not a member"),
        ({"signers": b"\3\1\2"}, "its provenance names an owner or a signer that is not a member"),
    ],
)
def test_provenances_put_to_the_vote(changes: dict[str, Any], flaw: str | None) -> None:
    assert flaw_of_record_proposal(SETTINGS, BASE, a_record(), INDEX, PROVENANCE.model_copy(update=changes)) == flaw


@pytest.mark.parametrize(
    ("peer", "ready", "there"),
    [
        (PEERS[1], a_ready(), True),
        (PEERS[1], None, False),
        (PEERS[3], a_ready(), False),
        (PEERS[1], a_ready(root=OTHER_ROOT), False),
        (PEERS[1], a_ready(tokens=99), False),
        (PEERS[1], a_ready(serial=a_ready().serial + 1), False),
        (PEERS[1], a_ready(incarnation=a_ready().incarnation + 1), False),
    ],
    ids=["as we said", "we said nothing", "no member", "another contribution", "other tokens", "made again", "another life"],
)
def test_a_plan_has_our_contribution(peer: Any, ready: Any, there: bool) -> None:
    assert is_in(a_plan(), peer, ready) is there


NOT_READY = "a member that did not send READY"


@pytest.mark.parametrize(
    "changes",
    [
        {"signature": bytes(64)},
        {"peer": PEERS[3]},
        {"tokens": 101},
        {"loss": 1.0},
        {"root": OTHER_ROOT},
        {"serial": 2},
        {"admission": b"let me in"},
    ],
    ids=["no signature", "another's READY", "more tokens", "another loss", "another root", "a later one", "a pass"],
)
def test_a_member_that_did_not_sign_this_ready_is_in_no_plan_and_no_record(changes: dict[str, Any]) -> None:
    first, second, third = members(*PEERS[:3])
    forged = [first, second, third.model_copy(update=changes)]
    assert flaw_of_plan(SETTINGS, BASE, a_plan(members=forged)) == f"its plan has {NOT_READY}"
    assert flaw_of_record_proposal(SETTINGS, BASE, a_record(members=forged), INDEX, PROVENANCE) == NOT_READY


@pytest.mark.parametrize("changes", [{"round": 4}, {"base": ZERO_HASH}, {"fragment": 1}, {"state_digest": ZERO_HASH}])
def test_a_ready_for_another_round_or_state_makes_no_member(changes: dict[str, Any]) -> None:
    strays = members(*PEERS[:3], **changes)
    assert flaw_of_plan(SETTINGS, BASE, a_plan(members=strays)) == f"its plan has {NOT_READY}"


# -- view changes ---------------------------------------------------------------------------------------------------------

ANN, BOB, CAT, DAN, EVE = PEERS
"""Eve is no elector."""


def justified(ballot: Ballot, *view_changes: ViewChange) -> Justification:
    """By these view changes of the first voters."""
    return justify(
        RUN, ballot, [signed(peer, view_change) for peer, view_change in zip(ballot.voters, view_changes, strict=False)]
    )


# -- which view changes count -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signers", "absent", "flaw"),
    [
        ([ANN, BOB, CAT], [], None),
        ([ANN, BOB, CAT, DAN], [], None),
        ([ANN, BOB], [], "2 of the 3 view changes that it needs"),
        ([ANN, BOB, BOB], [], "two from one voter"),
        ([ANN, BOB, EVE], [], "from a non-voter"),
        ([ANN, BOB], [DAN], None),
        ([ANN, DAN], [DAN], "from a non-voter"),
        ([ANN], [CAT, DAN], "1 of the 2 view changes that it needs"),
    ],
    ids=["a quorum", "all", "too few", "doubled", "a stranger", "of those who stay", "of an absent one", "too few stay"],
)
def test_a_quorum_of_voters_calls_a_ballot(signers: list[PeerId], absent: list[PeerId], flaw: str | None) -> None:
    view_changes = [signed(peer, a_view_change(1, *absent)) for peer in signers]
    if flaw is None:
        assert set(justify(RUN, a_ballot(1, *absent), view_changes).view_changes) == set(signers)
    else:
        with pytest.raises(Malformed, match=flaw):
            justify(RUN, a_ballot(1, *absent), view_changes)


@cases(
    "view_change, flaw",
    {
        "a lower attempt": (a_view_change(1), "of another ballot"),
        "a higher attempt": (a_view_change(3), "of another ballot"),
        "another tip": (a_view_change(2, base=ZERO_HASH), "of another ballot"),
        "another round": (a_view_change(2, round=4), "of another ballot"),
        "another absent list": (a_view_change(2, DAN), "with other absent electors"),
        "a fifth elector's READY": (a_view_change(2).model_copy(update={"held": b"\x10"}), "non-electors"),
        "a mask that is too long": (a_view_change(2).model_copy(update={"held": b"\x01\x00"}), "non-electors"),
        "a lock of this attempt": (a_view_change(2, lock=name_of(2)), "not of a lower attempt"),
        "a lock of a later attempt": (a_view_change(2, reduced=name_of(3, DAN)), "not of a lower attempt"),
        "a lock of a part as one of the whole": (a_view_change(2, lock=name_of(1, DAN)), "confuses a lock of the whole"),
        "a lock of the whole as one of a part": (a_view_change(2, reduced=name_of(1)), "confuses a lock of the whole"),
    },
)
def test_one_view_change_that_does_not_fit_spoils_the_quorum(view_change: ViewChange, flaw: str) -> None:
    view_changes = [
        signed(ANN, a_view_change(2)),
        signed(BOB, a_view_change(2)),
        signed(CAT, a_view_change(2)),
        signed(DAN, view_change),
    ]
    with pytest.raises(Malformed, match=flaw):
        justify(RUN, a_ballot(2), view_changes)


def test_view_changes_are_signed() -> None:
    good = [signed(ANN, a_view_change(1)), signed(BOB, a_view_change(1))]
    for bad in (b"rubbish", signed(CAT, Finish(round=5, base=TIP)), good[0].replace(ANN.encode(), CAT.encode())):
        with pytest.raises(Malformed):
            justify(RUN, a_ballot(1), [*good, bad])


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
    view_changes = [a_view_change(3, *absent, lock=lock, reduced=part) for lock, part, _ in pairs]
    assert justified(ballot, *view_changes).highest_locks() == highest


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
    view_changes = [a_view_change(1, held=peers, plan=plan) for peers, plan in zip(held, plans, strict=False)]
    assert justified(a_ballot(1), *view_changes).allows_plan(a_plan(), max_members=4) is allowed


def test_a_full_plan_of_electors_may_leave_electors_out() -> None:
    justification = justified(a_ballot(1), *[a_view_change(1, held=PEERS[:4])] * 3)
    assert justification.allows_plan(a_plan(), max_members=3)
    stranger = a_plan(members=members(ANN, BOB, EVE))
    assert not justification.allows_plan(stranger, max_members=3), "a stranger has an elector's place"


# -- votes ----------------------------------------------------------------------------------------------------------------

NAME, OTHER = record_hash(RECORD), record_hash(OTHER_RECORD)


def voted(attempt: int = 2, *, twice: bool = False) -> VoterState:
    """Having voted for the record in this attempt, in the first step or in both."""
    record_proposal = a_record_proposal(attempt)
    kept, _ = cast_first(blank(BASE), record_proposal)
    return cast_second(kept, record_proposal, a_lock(attempt).proof)[0] if twice else kept


@pytest.mark.parametrize("step", Step)
@pytest.mark.parametrize(
    ("attempt", "absent", "record", "objection"),
    [
        (2, [], NAME, None),
        (3, [], OTHER, None),
        (3, [DAN], OTHER, None),
        (1, [], NAME, "attempt 2 was entered"),
        (2, [DAN], NAME, "we voted with other electors absent"),
        (2, [], OTHER, "we voted for another record in this attempt"),
    ],
    ids=["the same again", "a later attempt", "one of a part", "an earlier attempt", "another part", "another record"],
)
def test_one_vote_a_step_and_none_in_an_earlier_attempt(
    step: Step, attempt: int, absent: list[str], record: Hash, objection: str | None
) -> None:
    kept = voted(twice=True)
    assert objection_to_vote(kept, step, attempt, absent, record) == objection
    assert objection_to_vote(decode_body(VoterState, kept.encode()), step, attempt, absent, record) == objection, "restarted"


def test_a_view_change_ends_all_earlier_attempts() -> None:
    kept = enter(voted(2), 5)
    assert (kept.attempt, kept.first, kept.second) == (5, None, None)
    for attempt in range(5):
        assert objection_to_vote(kept, Step.FIRST, attempt, [], NAME) == "attempt 5 was entered"
        assert objection_to_vote(kept, Step.SECOND, attempt, [], NAME) == "attempt 5 was entered"
    assert enter(kept, 5) == kept
    with pytest.raises(AssertionError):
        enter(kept, 4)


def test_a_second_vote_may_follow_no_first_one() -> None:
    """Who was slower than a quorum is shown the proof, and locks itself on the record."""
    kept, vote = cast_second(blank(BASE), a_record_proposal(0), a_lock(0).proof)
    assert (vote.step, vote.record_hash, kept.second) == (Step.SECOND, NAME, NAME)
    assert objection_to_vote(kept, Step.FIRST, 0, [], OTHER) is None, "the first step is another one"


# -- locks ----------------------------------------------------------------------------------------------------------------


def test_a_second_vote_locks_until_one_of_a_later_attempt_does() -> None:
    kept = voted(2, twice=True)
    assert kept.lock == a_lock(2)
    kept = enter(kept, 4)
    assert kept.lock == a_lock(2), "a view change releases nothing"
    record_proposal = a_record_proposal(5, record=OTHER_RECORD)
    kept, _ = cast_first(kept, record_proposal)
    assert kept.lock == a_lock(2), "a first vote releases nothing"
    kept, _ = cast_second(kept, record_proposal, a_lock(5, record=OTHER_RECORD).proof)
    assert kept.lock == a_lock(5, record=OTHER_RECORD)


def test_a_lock_of_a_part_takes_the_place_of_none_of_the_whole() -> None:
    kept = voted(2, twice=True)
    record_proposal = a_record_proposal(3, DAN)
    kept, _ = cast_second(cast_first(kept, record_proposal)[0], record_proposal, a_lock(3, DAN).proof)
    assert (kept.lock, kept.reduced) == (a_lock(2), a_lock(3, DAN))
    record_proposal = a_record_proposal(4)
    kept, _ = cast_second(cast_first(kept, record_proposal)[0], record_proposal, a_lock(4).proof)
    assert (kept.lock, kept.reduced) == (a_lock(4), a_lock(3, DAN))


def test_a_lock_is_kept_over_a_restart_and_told_in_every_later_view_change() -> None:
    kept = enter(decode_body(VoterState, voted(2, twice=True).encode()), 7)
    view_change = view_change_of(kept, a_ballot(7), [ANN, CAT], STATE)
    assert view_change is not None
    assert (view_change.attempt, view_change.held, view_change.plan, view_change.lock, view_change.reduced) == (
        7,
        b"\x05",
        STATE,
        name_of(2),
        None,
    )
    part = view_change_of(kept, a_ballot(7, DAN), [], None)
    assert part is not None and (part.absent, part.lock) == ([DAN], name_of(2)), "in ballots of a part, too"


def test_who_is_locked_in_an_attempt_does_not_call_it_any_more() -> None:
    assert view_change_of(voted(2), a_ballot(2), [], None) is not None
    assert view_change_of(voted(2, twice=True), a_ballot(2), [], None) is None


@pytest.mark.parametrize(
    ("absent", "record", "forbidden"),
    [([], OTHER_RECORD, False), ([DAN], OTHER_RECORD, True), ([DAN], RECORD, False)],
    ids=["the view changes of a quorum speak for us", "a part has no such quorum", "our own record"],
)
def test_a_lock_of_the_whole_forbids_other_records_of_a_part(absent: list[PeerId], record: Record, forbidden: bool) -> None:
    record_proposal = a_record_proposal(3, *absent, record=record)
    assert (objection_of_lock(voted(2, twice=True), record_proposal) is not None) is forbidden
    assert objection_of_lock(voted(2), record_proposal) is None, "without a lock nothing does"
