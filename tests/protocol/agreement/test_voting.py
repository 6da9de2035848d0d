"""What an elector may still say at one tip, after what it has said: attempts only grow, one vote a step, locks stay."""

from __future__ import annotations

import pytest

from protocol.agreement.ballot import (
    blank,
    cast_first,
    cast_second,
    enter,
    objection_of_lock,
    objection_to_vote,
    view_change_of,
)
from protocol.chain.records import record_hash
from protocol.wire.envelope import decode_body
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Record, Step, VoterState
from tests.protocol.council import (
    BASE,
    OTHER_RECORD,
    PEERS,
    RECORD,
    STATE,
    TIP,
    a_ballot,
    a_lock,
    a_motion,
    name_of,
)

ANN, BOB, CAT, DAN, _ = PEERS
NAME, OTHER = record_hash(RECORD), record_hash(OTHER_RECORD)


def voted(attempt: int = 2, *, twice: bool = False) -> VoterState:
    """Having voted for the record in this attempt, in the first step or in both."""
    motion = a_motion(attempt)
    kept, _ = cast_first(blank(BASE), motion)
    return cast_second(kept, motion, a_lock(attempt).proof)[0] if twice else kept


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


def test_a_roll_ends_all_earlier_attempts() -> None:
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
    kept, vote = cast_second(blank(BASE), a_motion(0), a_lock(0).proof)
    assert (vote.step, vote.record_hash, kept.second) == (Step.SECOND, NAME, NAME)
    assert objection_to_vote(kept, Step.FIRST, 0, [], OTHER) is None, "the first step is another one"


def test_votes_say_what_is_kept() -> None:
    kept, vote = cast_first(blank(BASE), a_motion(3, DAN))
    assert (vote.round, vote.base, vote.attempt, vote.step, vote.absent) == (5, TIP, 3, Step.FIRST, [DAN])
    assert (kept.attempt, kept.absent, kept.first, kept.second) == (3, [DAN], NAME, None)
    assert kept.lock is None and kept.reduced is None, "a first vote locks nobody"
    assert cast_first(kept, a_motion(3, DAN)) == (kept, vote)


# -- locks ----------------------------------------------------------------------------------------------------------------


def test_a_second_vote_locks_until_one_of_a_later_attempt_does() -> None:
    kept = voted(2, twice=True)
    assert kept.lock == a_lock(2)
    kept = enter(kept, 4)
    assert kept.lock == a_lock(2), "a roll releases nothing"
    motion = a_motion(5, record=OTHER_RECORD)
    kept, _ = cast_first(kept, motion)
    assert kept.lock == a_lock(2), "a first vote releases nothing"
    kept, _ = cast_second(kept, motion, a_lock(5, record=OTHER_RECORD).proof)
    assert kept.lock == a_lock(5, record=OTHER_RECORD)


def test_a_lock_of_a_part_takes_the_place_of_none_of_the_whole() -> None:
    kept = voted(2, twice=True)
    motion = a_motion(3, DAN)
    kept, _ = cast_second(cast_first(kept, motion)[0], motion, a_lock(3, DAN).proof)
    assert (kept.lock, kept.reduced) == (a_lock(2), a_lock(3, DAN))
    motion = a_motion(4)
    kept, _ = cast_second(cast_first(kept, motion)[0], motion, a_lock(4).proof)
    assert (kept.lock, kept.reduced) == (a_lock(4), a_lock(3, DAN))


def test_a_lock_is_kept_over_a_restart_and_told_in_every_later_roll() -> None:
    kept = enter(decode_body(VoterState, voted(2, twice=True).encode()), 7)
    roll = view_change_of(kept, a_ballot(7), [ANN, CAT], STATE)
    assert roll is not None
    assert (roll.attempt, roll.held, roll.plan, roll.lock, roll.reduced) == (7, b"\x05", STATE, name_of(2), None)
    part = view_change_of(kept, a_ballot(7, DAN), [], None)
    assert part is not None and (part.absent, part.lock) == ([DAN], name_of(2)), "in ballots of a part, too"


def test_who_is_locked_in_an_attempt_does_not_call_it_any_more() -> None:
    assert view_change_of(voted(2), a_ballot(2), [], None) is not None
    assert view_change_of(voted(2, twice=True), a_ballot(2), [], None) is None


@pytest.mark.parametrize(
    ("absent", "record", "forbidden"),
    [([], OTHER_RECORD, False), ([DAN], OTHER_RECORD, True), ([DAN], RECORD, False)],
    ids=["the rolls of a quorum speak for us", "a part has no such quorum", "our own record"],
)
def test_a_lock_of_the_whole_forbids_other_records_of_a_part(absent: list[PeerId], record: Record, forbidden: bool) -> None:
    motion = a_motion(3, *absent, record=record)
    assert (objection_of_lock(voted(2, twice=True), motion) is not None) is forbidden
    assert objection_of_lock(voted(2), motion) is None, "without a lock nothing does"
