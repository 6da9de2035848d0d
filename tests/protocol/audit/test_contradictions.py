"""Which statements no honest peer signs, alone or beside another one of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from protocol.agreement.ballot import held_mask
from protocol.audit.evidence import certified, contradict, lie_of, need_electors, slot, tip_of
from protocol.chain.base import Base
from protocol.chain.records import record_hash, verify_votes
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Body
from protocol.wire.hashes import ZERO_HASH, Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkResult, Commit, Finish, PrevoteCertificate, Proposal, RecordProposal, Step
from tests.protocol.council import (
    BASE,
    INDEX,
    OTHER_RECORD,
    PEERS,
    PROVENANCE,
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

ANN, BOB, CAT, DAN, EVE = PEERS
"""Eve is no elector."""
MAX_MEMBERS = 4
ONE, OTHER = record_hash(RECORD), record_hash(OTHER_RECORD)


def a_proposal(attempt: int, *absent: PeerId, rolls: list[bytes] | None = None, **changes: Any) -> Proposal:
    """This plan, with the rolls of all who stay."""
    stay = [peer for peer in PEERS[:4] if peer not in absent]
    rolls = [signed(peer, a_roll(attempt, *absent)) for peer in stay] if rolls is None else rolls
    return Proposal(attempt=attempt, absent=sorted(absent), plan=a_plan(**changes), rolls=rolls)


SECOND: dict[str, Any] = {"step": Step.SECOND}
LOCKED: dict[str, Any] = {"lock": name_of(1)}

# -- two statements -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (a_vote(1), a_vote(1, record=OTHER)),
        (a_vote(1), a_vote(1, DAN)),
        (a_vote(1, **SECOND), a_vote(1, record=OTHER, **SECOND)),
        (a_proposal(1), a_proposal(1, owners=b"\2\1\0")),
        (a_proposal(1), a_proposal(1, DAN)),
        (a_motion(1), a_motion(1, record=OTHER_RECORD)),
        (a_motion(1), a_motion(1, DAN)),
        (a_ready(), a_ready(tokens=7)),
        (a_proposal(1, owners=b"\2\1\0"), a_motion(1)),
        (a_vote(1, **SECOND), a_roll(2)),
        (a_vote(1, **SECOND), a_roll(2, lock=name_of(0))),
        (a_vote(1, **SECOND), a_roll(2, lock=name_of(1, record=OTHER_RECORD))),
        (a_vote(1, DAN, **SECOND), a_roll(2)),
        (a_vote(1, DAN, **SECOND), a_roll(2, reduced=name_of(1, CAT))),
        (a_roll(2, **LOCKED), a_roll(3)),
        (a_roll(2, **LOCKED), a_roll(3, lock=name_of(0))),
        (a_roll(2, **LOCKED), a_roll(2)),
        (a_roll(3), a_roll(4, **LOCKED)),
        (a_roll(2, DAN, reduced=name_of(1, DAN)), a_roll(3)),
    ],
    ids=[
        "two records",
        "two absent lists",
        "two records at last",
        "two plans",
        "plans of two ballots of an attempt",
        "two motions",
        "motions of two ballots of an attempt",
        "two READYs",
        "a motion by another plan than was proposed",
        "a lock that is not told",
        "a lower lock is told",
        "a lock on another record is told",
        "a lock of a part that is not told",
        "a lock of another part is told",
        "a lock that is not told any more",
        "a lower lock than before",
        "a lock told to some",
        "a lock that was not there before",
        "a lock of a part that is not told any more",
    ],
)
def test_statements_that_contradict_each_other(one: Body, other: Body) -> None:
    assert contradict(ANN, one, other, BASE) and contradict(ANN, other, one, BASE)
    assert contradict(ANN, one, other, None) is not need_electors(one, other), "else the electors have to be known"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (a_vote(1), a_vote(1)),
        (a_vote(1), a_vote(2, record=OTHER)),
        (a_vote(1), a_vote(1, **SECOND)),
        (a_vote(1), a_vote(1, record=OTHER, round=6)),
        (a_vote(1), a_vote(1, record=OTHER, base=ZERO_HASH)),
        (a_vote(1), a_roll(2)),
        (a_proposal(1), a_proposal(2, owners=b"\2\1\0")),
        (a_proposal(1), a_motion(1)),
        (a_proposal(1, owners=b"\2\1\0"), a_motion(2)),
        (a_motion(1), a_motion(2, record=OTHER_RECORD)),
        (a_ready(), a_ready(tokens=7, serial=a_ready().serial + 1)),
        (a_roll(1), a_roll(1, DAN, held=[ANN])),
        (a_vote(1, **SECOND), a_roll(2, **LOCKED)),
        (a_vote(1, **SECOND), a_roll(3, lock=name_of(2, record=OTHER_RECORD))),
        (a_vote(1, **SECOND), a_roll(1)),
        (a_vote(1, DAN, **SECOND), a_roll(3, reduced=name_of(2, CAT))),
        (a_roll(1), a_roll(2, **LOCKED)),
        (a_roll(2, **LOCKED), a_roll(4, lock=name_of(2))),
        (a_roll(2, **LOCKED), a_roll(2, DAN, **LOCKED)),
        (Finish(round=5, base=TIP), a_vote(1)),
    ],
    ids=[
        "the same vote",
        "votes of two attempts",
        "votes of two steps",
        "votes of two rounds",
        "votes of two tips",
        "first votes lock nobody",
        "two attempts have two plans",
        "a motion by the plan that was proposed",
        "a motion of another attempt",
        "two attempts have two motions",
        "two READYs, two serials",
        "rolls grow, and absent lists change",
        "the lock is told",
        "a later lock is told",
        "a roll from before the vote",
        "a later lock of another part",
        "a lock that was made in the attempt between",
        "a later lock than before",
        "one lock in two ballots of an attempt",
        "nothing to do with it",
    ],
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
LOCK = a_lock(1)


def led_by(attempt: int, *absent: PeerId) -> PeerId:
    return a_ballot(attempt, *absent).proposer


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


@pytest.mark.parametrize(
    ("body", "flaw"),
    [
        (a_motion(2, rolls=WITH_LOCK), "does not carry on the highest lock"),
        (a_motion(2, rolls=WITH_LOCK, record=OTHER_RECORD, proof=LOCK.proof), "does not carry on the highest lock"),
        (a_motion(2, rolls=WITH_LOCK, proof=votes_for(RECORD, [ANN, BOB], 1)), "2 of the 3 votes"),
        (a_motion(2, rolls=WITH_LOCK, proof=votes_for(OTHER_RECORD, PEERS[:3], 1)), "a false signature"),
        (a_motion(2, rolls=WITH_LOCK, proof=votes_for(RECORD, PEERS[:3], 0)), "a proof of another lock"),
        (a_motion(2, rolls=WITH_LOCK, proof=votes_for(RECORD, [ANN, BOB, EVE], 1)), "non-electors"),
        (a_motion(2, proof=LOCK.proof), "a lock that its view changes do not name"),
        (a_motion(2, rolls=WITH_LOCK[:2]), "2 of the 3 view changes"),
        (a_motion(2, rolls=[signed(ANN, a_roll(1))] * 3), "a view change of another ballot"),
        (a_motion(2, rolls=[b"rubbish"] * 3), "not"),
        (a_proposal(2, rolls=WITH_LOCK), "its view changes name a lock"),
        (a_proposal(2, rolls=[signed(ANN, a_roll(2))]), "1 of the 3 view changes"),
        (a_proposal(2, rolls=[signed(peer, a_roll(2, held=[DAN])) for peer in PEERS[:3]]), "leaves out an elector"),
        (a_motion(2, rolls=[signed(peer, a_roll(2, held=[DAN])) for peer in PEERS[:3]]), "leaves out an elector"),
    ],
    ids=[
        "no proof",
        "another record",
        "too few votes",
        "false votes",
        "votes of another attempt",
        "a stranger's vote",
        "a lock from nowhere",
        "too few rolls",
        "rolls of another attempt",
        "no rolls",
        "a plan in spite of a lock",
        "a plan that nobody called",
        "a plan without somebody who is ready",
        "a record without somebody who was ready",
    ],
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


def test_the_vote_in_a_certificate() -> None:
    first, second = votes_for(RECORD, PEERS[:3], 1), votes_for(RECORD, PEERS[:3], 1, step=Step.SECOND)
    for body, step, certificate in (
        (PrevoteCertificate(round=5, base=TIP, record_hash=ONE, certificate=first), Step.FIRST, first),
        (Commit(record=RECORD, index=INDEX, certificate=second), Step.SECOND, second),
        (a_lock(1), Step.FIRST, a_lock(1).proof),
        (a_motion(2, proof=first), Step.FIRST, first),
    ):
        assert certified(body) == (a_vote(1, step=step), certificate) and tip_of(body) == (5, TIP)
    assert certified(a_motion(2)) is None and certified(a_roll(1)) is None


def test_no_certificate_holds_that_takes_a_signer_for_absent() -> None:
    """Not even one of the members, who vote when all electors are absent."""
    for absent in ([DAN], PEERS[:4]):
        certificate = votes_for(RECORD, PEERS[:4], 1, *absent, step=Step.SECOND)
        with pytest.raises(Malformed):
            verify_votes(RUN, BASE, RECORD, certificate, Step.SECOND)


def test_the_examples_are_of_one_plan() -> None:
    assert PROVENANCE.owners == a_plan().owners and held_mask(BASE.electors, []) == a_roll(1).held
    assert led_by(2) == LEADER and led_by(2) != led_by(3)
