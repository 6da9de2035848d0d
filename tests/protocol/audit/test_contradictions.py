"""Which statements no honest peer signs, alone or beside another one of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from protocol.audit.evidence import contradict, lie_of, need_electors, slot
from protocol.chain.base import Base
from protocol.wire.envelope import Body
from protocol.wire.hashes import ZERO_HASH, Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkResult, Finish, Proposal, RecordProposal, Step
from tests.protocol.council import (
    BASE,
    INDEX,
    OTHER_RECORD,
    PEERS,
    RECORD,
    RUN,
    TIP,
    a_ballot,
    a_lock,
    a_motion,
    a_plan,
    a_ready,
    a_roll,
    a_vote,
    name_of,
    signed,
    votes_for,
)
from tests.protocol.tables import cases

ANN, BOB, CAT, DAN, EVE = PEERS
"""Eve is no elector."""
MAX_MEMBERS = 4


def a_proposal(attempt: int, *absent: PeerId, rolls: list[bytes] | None = None, **changes: Any) -> Proposal:
    """This plan, with the rolls of all who stay."""
    stay = [peer for peer in PEERS[:4] if peer not in absent]
    rolls = [signed(peer, a_roll(attempt, *absent)) for peer in stay] if rolls is None else rolls
    return Proposal(attempt=attempt, absent=sorted(absent), plan=a_plan(**changes), rolls=rolls)


SECOND: dict[str, Any] = {"step": Step.SECOND}
LOCKED: dict[str, Any] = {"lock": name_of(1)}

# -- two statements -------------------------------------------------------------------------------------------------------


@cases(
    "one, other",
    {
        "two records": (a_vote(1), a_vote(1, record=OTHER_RECORD)),
        "two absent lists": (a_vote(1), a_vote(1, DAN)),
        "two records at last": (a_vote(1, **SECOND), a_vote(1, record=OTHER_RECORD, **SECOND)),
        "two plans": (a_proposal(1), a_proposal(1, owners=b"\2\1\0")),
        "plans of two ballots of an attempt": (a_proposal(1), a_proposal(1, DAN)),
        "two motions": (a_motion(1), a_motion(1, record=OTHER_RECORD)),
        "motions of two ballots of an attempt": (a_motion(1), a_motion(1, DAN)),
        "two READYs": (a_ready(), a_ready(tokens=7)),
        "a motion by another plan than was proposed": (a_proposal(1, owners=b"\2\1\0"), a_motion(1)),
        "a lock that is not told": (a_vote(1, **SECOND), a_roll(2)),
        "a lower lock is told": (a_vote(1, **SECOND), a_roll(2, lock=name_of(0))),
        "a lock on another record is told": (a_vote(1, **SECOND), a_roll(2, lock=name_of(1, record=OTHER_RECORD))),
        "a lock of a part that is not told": (a_vote(1, DAN, **SECOND), a_roll(2)),
        "a lock of another part is told": (a_vote(1, DAN, **SECOND), a_roll(2, reduced=name_of(1, CAT))),
        "a lock that is not told any more": (a_roll(2, **LOCKED), a_roll(3)),
        "a lower lock than before": (a_roll(2, **LOCKED), a_roll(3, lock=name_of(0))),
        "a lock told to some": (a_roll(2, **LOCKED), a_roll(2)),
        "a lock that was not there before": (a_roll(3), a_roll(4, **LOCKED)),
        "a lock of a part that is not told any more": (a_roll(2, DAN, reduced=name_of(1, DAN)), a_roll(3)),
    },
)
def test_statements_that_contradict_each_other(one: Body, other: Body) -> None:
    assert contradict(ANN, one, other, BASE) and contradict(ANN, other, one, BASE)
    assert contradict(ANN, one, other, None) is not need_electors(one, other), "else the electors have to be known"


@cases(
    "one, other",
    {
        "the same vote": (a_vote(1), a_vote(1)),
        "votes of two attempts": (a_vote(1), a_vote(2, record=OTHER_RECORD)),
        "votes of two steps": (a_vote(1), a_vote(1, **SECOND)),
        "votes of two rounds": (a_vote(1), a_vote(1, record=OTHER_RECORD, round=6)),
        "votes of two tips": (a_vote(1), a_vote(1, record=OTHER_RECORD, base=ZERO_HASH)),
        "first votes lock nobody": (a_vote(1), a_roll(2)),
        "two attempts have two plans": (a_proposal(1), a_proposal(2, owners=b"\2\1\0")),
        "a motion by the plan that was proposed": (a_proposal(1), a_motion(1)),
        "a motion of another attempt": (a_proposal(1, owners=b"\2\1\0"), a_motion(2)),
        "two attempts have two motions": (a_motion(1), a_motion(2, record=OTHER_RECORD)),
        "two READYs, two serials": (a_ready(), a_ready(tokens=7, serial=a_ready().serial + 1)),
        "rolls grow, and absent lists change": (a_roll(1), a_roll(1, DAN, held=[ANN])),
        "the lock is told": (a_vote(1, **SECOND), a_roll(2, **LOCKED)),
        "a later lock is told": (a_vote(1, **SECOND), a_roll(3, lock=name_of(2, record=OTHER_RECORD))),
        "a roll from before the vote": (a_vote(1, **SECOND), a_roll(1)),
        "a later lock of another part": (a_vote(1, DAN, **SECOND), a_roll(3, reduced=name_of(2, CAT))),
        "a lock that was made in the attempt between": (a_roll(1), a_roll(2, **LOCKED)),
        "a later lock than before": (a_roll(2, **LOCKED), a_roll(4, lock=name_of(2))),
        "one lock in two ballots of an attempt": (a_roll(2, **LOCKED), a_roll(2, DAN, **LOCKED)),
        "nothing to do with it": (Finish(round=5, base=TIP), a_vote(1)),
    },
)
def test_statements_of_honest_peers(one: Body, other: Body) -> None:
    assert not contradict(ANN, one, other, BASE) and not contradict(ANN, other, one, BASE)


def test_only_electors_of_the_tip_have_locks_to_tell() -> None:
    """Where members vote in place of electors, the locks of the dead are not told any more."""
    for base in (None, replace(BASE, electors=()), replace(BASE, tip=Hash(ZERO_HASH)), replace(BASE, round=6)):
        assert not contradict(ANN, a_vote(1, **SECOND), a_roll(2), base)
    assert not contradict(EVE, a_vote(1, **SECOND), a_roll(2), BASE)


def test_a_chunk_has_one_average() -> None:
    one, other = (ChunkResult(plan=ZERO_HASH, chunk=1, entry=entry) for entry in INDEX[:2])
    assert contradict(EVE, one, other, None) and slot(one) == slot(other)


# -- one statement --------------------------------------------------------------------------------------------------------

LEADER = a_ballot(2).proposer
WITH_LOCK = [signed(ANN, a_roll(2, **LOCKED)), *[signed(peer, a_roll(2)) for peer in (BOB, CAT)]]
HOLDING_DAN = [signed(peer, a_roll(2, held=[DAN])) for peer in PEERS[:3]]
LOCK = a_lock(1)
HIGHEST = "does not carry on the highest lock"


def lie(sender: PeerId, body: Body, base: Base | None = BASE) -> str:
    return lie_of(RUN, sender, body, base, MAX_MEMBERS) or ""


@pytest.mark.parametrize(
    "body",
    [
        a_roll(2),
        a_vote(2),
        a_roll(2, **LOCKED),
        a_roll(2, DAN, reduced=name_of(1, DAN)),
        a_ready(),
        Finish(round=5, base=TIP),
    ],
)
def test_what_any_elector_may_sign(body: Body) -> None:
    assert lie(ANN, body) == "" == lie(ANN, body, None)


@pytest.mark.parametrize("body", [a_roll(2, DAN), a_vote(2, DAN), a_proposal(2, DAN), a_motion(2, DAN)])
def test_nobody_takes_itself_for_absent(body: Body) -> None:
    assert "names its own signer absent" in lie(DAN, body, None)


@pytest.mark.parametrize(
    ("roll", "flaw"),
    [
        (a_roll(2, lock=name_of(2)), "not of a lower attempt"),
        (a_roll(2, lock=name_of(3)), "not of a lower attempt"),
        (a_roll(2, reduced=name_of(2, DAN)), "not of a lower attempt"),
        (a_roll(2, lock=name_of(1, DAN)), "confuses a lock of the whole"),
        (a_roll(2, reduced=name_of(1)), "confuses a lock of the whole"),
    ],
)
def test_a_roll_with_an_impossible_lock(roll: Body, flaw: str) -> None:
    assert flaw in lie(ANN, roll, None)


@pytest.mark.parametrize(
    "body",
    [
        a_proposal(2),
        a_motion(2),
        a_motion(2, rolls=WITH_LOCK, proof=LOCK.proof),
        a_proposal(2, rolls=[signed(peer, a_roll(2, held=[peer])) for peer in (ANN, BOB, CAT)]),
    ],
    ids=["a plan", "its record", "a record that is carried on", "everybody who was ready is in the plan"],
)
def test_what_the_rolls_permit(body: Body) -> None:
    assert lie(LEADER, body) == ""


@cases(
    "body, flaw",
    {
        "no proof": (a_motion(2, rolls=WITH_LOCK), HIGHEST),
        "another record": (
            a_motion(2, rolls=WITH_LOCK, record=OTHER_RECORD, proof=LOCK.proof),
            HIGHEST,
        ),
        "too few votes": (a_motion(2, rolls=WITH_LOCK, proof=votes_for(RECORD, [ANN, BOB], 1)), "2 of the 3 votes"),
        "false votes": (a_motion(2, rolls=WITH_LOCK, proof=votes_for(OTHER_RECORD, PEERS[:3], 1)), "a false signature"),
        "votes of another attempt": (
            a_motion(2, rolls=WITH_LOCK, proof=votes_for(RECORD, PEERS[:3], 0)),
            "a proof of another lock",
        ),
        "a stranger's vote": (a_motion(2, rolls=WITH_LOCK, proof=votes_for(RECORD, [ANN, BOB, EVE], 1)), "non-electors"),
        "a lock from nowhere": (a_motion(2, proof=LOCK.proof), "a lock that its view changes do not name"),
        "too few rolls": (a_motion(2, rolls=WITH_LOCK[:2]), "2 of the 3 view changes"),
        "rolls of another attempt": (a_motion(2, rolls=[signed(ANN, a_roll(1))] * 3), "a view change of another ballot"),
        "no rolls": (a_motion(2, rolls=[b"rubbish"] * 3), "not"),
        "a plan in spite of a lock": (a_proposal(2, rolls=WITH_LOCK), "its view changes name a lock"),
        "a plan that nobody called": (a_proposal(2, rolls=[signed(ANN, a_roll(2))]), "1 of the 3 view changes"),
        "a plan without somebody who is ready": (
            a_proposal(2, rolls=HOLDING_DAN),
            "leaves out an elector",
        ),
        "a record without somebody who was ready": (
            a_motion(2, rolls=HOLDING_DAN),
            "leaves out an elector",
        ),
    },
)
def test_what_the_rolls_do_not_permit(body: Proposal | RecordProposal, flaw: str) -> None:
    assert flaw in lie(LEADER, body)
    assert lie(LEADER, body, None) == "", "who does not know the tip cannot tell"
    assert lie(LEADER, body, replace(BASE, tip=Hash(ZERO_HASH))) == ""
    assert lie(LEADER, body, replace(BASE, electors=())) == "", "members vote, and see each other differently"


def test_proposing_out_of_turn_and_absent_strangers() -> None:
    rival = next(peer for peer in PEERS[:4] if peer != LEADER)
    assert "not its turn" in lie(rival, a_motion(2)) and "not its turn" in lie(rival, a_proposal(2))
    strange = a_motion(2).model_copy(update={"absent": [EVE]})
    assert "a non-elector as absent" in lie(LEADER, strange)
    assert lie(EVE, a_motion(2)) == "", "a stranger's motion proves nothing: whoever votes drops it"


# -- certificates ---------------------------------------------------------------------------------------------------------
