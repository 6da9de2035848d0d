"""Evidence: which statements contradict each other, what proves it, and who is convicted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernels.codecs.format import HEADER_BYTES
from kernels.codecs.ladder import LADDER
from kernels.layout import chunk_layouts
from protocol.allreduce.assignment import contribution_leaves, plan_hash
from protocol.audit.evidence import (
    AveragedPart,
    ContraryRecordProposal,
    Evidence,
    Law,
    OneStatement,
    TwoStatements,
    UnknownTip,
    WrongAverage,
    contradict,
    decode_evidence,
    encode_evidence,
    judge,
    lie_of,
    need_electors,
    right_hash,
    slot,
    tip_needed,
)
from protocol.chain.base import Base
from protocol.chain.records import record_hash
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Body
from protocol.wire.hashes import ZERO_HASH, Hash, chunk_hash, tree_proof, tree_root
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import (
    ChunkEntry,
    ChunkResult,
    Finish,
    Member,
    Plan,
    Proposal,
    Ready,
    RecordProposal,
    Step,
    mask_of,
    member_of,
    pack,
)
from protocol.wire.rollouts import RolloutBatch
from tests.protocol import council
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
from tests.protocol.peers import a_first_ready
from tests.protocol.tables import cases

RUN_OF_AVERAGES = Hash(b"\x07" * 32)
LAYOUTS = chunk_layouts(LADDER["int4"], 600, 256)
LAYOUT = LAYOUTS.contribution
LAW = Law(RUN_OF_AVERAGES, 1, LAYOUTS, "clip", 4)
MEMBERS = sorted((Identity.from_seed(bytes([n]) * 32) for n in range(1, 4)), key=lambda identity: identity.peer_id)
OWNER = MEMBERS[1]
CHUNK = 2


def contribution(number: int) -> memoryview:
    values = np.random.Generator(np.random.Philox(number)).standard_normal(600, dtype=np.float32)
    data = memoryview(bytearray(LAYOUT.payload_bytes))
    for span in LAYOUT:
        LAYOUT.format.encode(values[span.values], data[span.encoded])
    return data


def member(peer: Identity, tokens: int, root: Hash) -> Member:
    """A member with this contribution."""
    said = ready(1, tokens).model_copy(update={"round": 3, "root": root})
    return member_of(peer.peer_id, said, pack(peer, RUN_OF_AVERAGES, said).signature)


def ready(serial: int, tokens: int) -> Ready:
    return a_first_ready(round=1, serial=serial, tokens=tokens)


DATA = [contribution(number) for number in range(3)]
LEAVES = [contribution_leaves(peer.peer_id, data, LAYOUT) for peer, data in zip(MEMBERS, DATA, strict=True)]
PLAN = Plan(
    round=3,
    fragment=0,
    base=ZERO_HASH,
    owners=bytes([1, 1, 1]),
    state_digest=ZERO_HASH,
    members=[member(peer, 100 + n, tree_root(LEAVES[n])) for n, peer in enumerate(MEMBERS)],
)

ELSEWHERE = PLAN.model_copy(update={"fragment": 1})
"""A plan of a fragment that the run does not have."""


def part(member: int, data: bytes | None = None) -> AveragedPart:
    span = LAYOUT[CHUNK]
    honest = bytes(DATA[member][span.encoded])
    return AveragedPart(member=member, proof=[*tree_proof(LEAVES[member], CHUNK)], data=honest if data is None else data)


def statement(hash: bytes, members: list[int], signer: Identity = OWNER, plan: Plan = PLAN) -> bytes:
    entry = ChunkEntry(hash=hash, mask=mask_of(members, 3))
    return pack(signer, RUN_OF_AVERAGES, ChunkResult(plan=plan_hash(plan), chunk=CHUNK, entry=entry)).raw


def right(members: list[int]) -> Hash:
    return right_hash(LAW.rule, LAYOUTS, CHUNK, [part(m).data for m in members], [100 + m for m in members])


@pytest.mark.parametrize("members", [[0, 1, 2], [0, 2]])
def test_a_wrong_average_convicts_its_signer(members: list[int]) -> None:
    case = WrongAverage(plan=PLAN, statement=statement(chunk_hash(b"wrong"), members), parts=[part(m) for m in members])
    verdict = judge(LAW, decode_evidence(encode_evidence(case)))
    assert verdict.peer == OWNER.peer_id and verdict.false_chunks == ((CHUNK, chunk_hash(b"wrong")),)


@cases(
    "plan, statement, parts",
    {
        "right": (PLAN, statement(right([0, 1, 2]), [0, 1, 2]), [part(0), part(1), part(2)]),
        "right without one": (PLAN, statement(right([0, 2]), [0, 2]), [part(0), part(2)]),
        "a part kept back": (PLAN, statement(right([0, 1, 2]), [0, 1, 2]), [part(0), part(2)]),
        "another member's part": (PLAN, statement(right([0, 2]), [0, 2]), [part(0), part(1)]),
        "a part made up": (PLAN, statement(right([0, 2]), [0, 2]), [part(0), part(2, part(1).data)]),
        "another plan": (PLAN.model_copy(update={"round": 4}), statement(right([0]), [0]), [part(0)]),
        "another fragment": (ELSEWHERE, statement(chunk_hash(b"wrong"), [0], plan=ELSEWHERE), [part(0)]),
        "a stranger's statement": (PLAN, statement(chunk_hash(b"x"), [0], Identity.from_seed(b"\x99" * 32)), [part(0)]),
    },
)
def test_what_proves_nothing_convicts_nobody(plan: Plan, statement: bytes, parts: list[AveragedPart]) -> None:
    with pytest.raises(Malformed):
        judge(LAW, WrongAverage(plan=plan, statement=statement, parts=parts))


def test_who_averages_what_it_had_to_refuse_is_convicted() -> None:
    """The part is what its member committed to, and not finite."""
    span = LAYOUT[CHUNK]
    bad = bytearray(DATA[2])
    bad[span.offset + HEADER_BYTES : span.offset + HEADER_BYTES + 2] = b"\xc0\x7f"
    leaves = contribution_leaves(MEMBERS[2].peer_id, memoryview(bad), LAYOUT)
    liar = PLAN.members[2].model_copy(update={"root": tree_root(leaves)})
    plan = PLAN.model_copy(update={"members": [*PLAN.members[:2], liar]})
    entry = ChunkEntry(hash=chunk_hash(b"any"), mask=mask_of([2], 3))
    raw = pack(OWNER, RUN_OF_AVERAGES, ChunkResult(plan=plan_hash(plan), chunk=CHUNK, entry=entry)).raw
    data = bytes(bad[span.encoded])
    parts = [AveragedPart(member=2, proof=[*tree_proof(leaves, CHUNK)], data=data)]
    assert len(parts[0].data) == span.size
    assert judge(LAW, WrongAverage(plan=plan, statement=raw, parts=parts)).peer == OWNER.peer_id


def test_two_batches_of_rollouts_of_one_number_in_one_life_convict_and_others_do_not() -> None:
    said = RolloutBatch(
        version=1, tip=RUN_OF_AVERAGES, number=2, incarnation=3, rollouts=4, tokens=5, size=6, root=RUN_OF_AVERAGES
    )
    changes = ({"tokens": 6}, {"tokens": 6, "number": 3}, {"tokens": 6, "incarnation": 4})
    first, lie, *others = (pack(OWNER, RUN_OF_AVERAGES, said.model_copy(update=change)).raw for change in ({}, *changes))
    assert judge(LAW, TwoStatements(first=first, second=lie)).peer == OWNER.peer_id
    for other in (first, *others):
        with pytest.raises(Malformed):
            judge(LAW, TwoStatements(first=first, second=other))


# -- lies about ballots ---------------------------------------------------------------------------------------------------

BALLOT_LAW = Law(council.RUN, 1, LAYOUTS, "clip", 4)
TIP_BASE = Base(5, 0, council.TIP, tuple(council.PEERS[:4]))
PROPOSER = a_ballot(2).proposer
VOTER = next(peer for peer in TIP_BASE.electors if peer != PROPOSER)
UNPROVEN = a_motion(2, rolls=[signed(peer, a_roll(2, lock=name_of(1))) for peer in TIP_BASE.electors])
"""All its rolls name a lock, and it has no proof."""
HONEST = a_motion(2)
AGAINST = votes_for(OTHER_RECORD, TIP_BASE.electors[:3], 2)
"""A quorum voted for another record than the leader put to the vote."""


def contrary(motion: Body = HONEST, sender: PeerId = PROPOSER, **changes: Any) -> ContraryRecordProposal:
    fields = {"record_hash": record_hash(OTHER_RECORD), "step": Step.FIRST, "certificate": AGAINST, **changes}
    return ContraryRecordProposal(motion=signed(sender, motion), **fields)


def two(sender: PeerId, first: Body, second: Body) -> TwoStatements:
    return TwoStatements(first=signed(sender, first), second=signed(sender, second))


NEED_NO_ELECTORS = {
    "two votes": (VOTER, two(VOTER, a_vote(2), a_vote(2, record=OTHER_RECORD))),
    "two motions": (PROPOSER, two(PROPOSER, HONEST, a_motion(2, record=OTHER_RECORD))),
    "an impossible lock": (VOTER, OneStatement(statement=signed(VOTER, a_roll(2, lock=name_of(2))))),
    "absent by its own word": (VOTER, OneStatement(statement=signed(VOTER, a_roll(2, VOTER)))),
}
NEED_ELECTORS = {
    "a lock that is not told": (VOTER, two(VOTER, a_vote(1, step=Step.SECOND), a_roll(2))),
    "two locks in one attempt": (VOTER, two(VOTER, a_roll(2, lock=name_of(1)), a_roll(2))),
    "a motion without its proof": (PROPOSER, OneStatement(statement=signed(PROPOSER, UNPROVEN))),
    "a certificate against it": (PROPOSER, contrary()),
    "a certificate of second votes against it": (
        PROPOSER,
        contrary(step=Step.SECOND, certificate=votes_for(OTHER_RECORD, TIP_BASE.electors[:3], 2, step=Step.SECOND)),
    ),
}


@pytest.mark.parametrize(("liar", "case"), NEED_NO_ELECTORS.values(), ids=NEED_NO_ELECTORS)
def test_some_lies_about_ballots_speak_for_themselves(liar: PeerId, case: Evidence) -> None:
    case = decode_evidence(encode_evidence(case))
    assert tip_needed(BALLOT_LAW, case) is None and judge(BALLOT_LAW, case).peer == liar


@pytest.mark.parametrize(("liar", "case"), NEED_ELECTORS.values(), ids=NEED_ELECTORS)
def test_others_are_judged_with_the_electors_of_their_tip(liar: PeerId, case: Evidence) -> None:
    case = decode_evidence(encode_evidence(case))
    assert tip_needed(BALLOT_LAW, case) == (liar, (5, TIP_BASE.tip))
    assert judge(BALLOT_LAW, case, TIP_BASE).peer == liar
    for base in (None, replace(TIP_BASE, tip=Hash(ZERO_HASH)), replace(TIP_BASE, round=4)):
        with pytest.raises(UnknownTip) as unknown:
            judge(BALLOT_LAW, case, base)
        assert (unknown.value.signer, unknown.value.tip) == (liar, (5, TIP_BASE.tip))


@pytest.mark.parametrize(("liar", "case"), [*NEED_NO_ELECTORS.values(), *NEED_ELECTORS.values()])
def test_evidence_about_ballots_cannot_be_forged(liar: PeerId, case: Evidence) -> None:
    """No byte of a statement may differ from what was signed, and none may be of another run."""
    with pytest.raises(Malformed):
        judge(replace(BALLOT_LAW, run=Hash(ZERO_HASH)), case, TIP_BASE)
    for name in ("first", "second", "statement", "motion"):
        raw = getattr(case, name, None)
        if raw is None:
            continue
        for forged in (raw[:-1], raw[:-1] + bytes([raw[-1] ^ 1]), b"", raw.replace(b"attempt", b"attempu")):
            with pytest.raises(Malformed):
                judge(BALLOT_LAW, case.model_copy(update={name: forged}), TIP_BASE)


@cases(
    "case",
    {
        "one vote": two(VOTER, a_vote(2), a_vote(2)),
        "votes of two attempts": two(VOTER, a_vote(2), a_vote(3, record=OTHER_RECORD)),
        "votes of two electors": TwoStatements(
            first=signed(VOTER, a_vote(2)), second=signed(PROPOSER, a_vote(2, record=OTHER_RECORD))
        ),
        "the lock is told": two(VOTER, a_vote(1, step=Step.SECOND), a_roll(2, lock=name_of(1))),
        "an honest roll": OneStatement(statement=signed(VOTER, a_roll(2))),
        "an honest vote": OneStatement(statement=signed(VOTER, a_vote(2))),
        "an honest motion": OneStatement(statement=signed(PROPOSER, HONEST)),
        "a stranger's motion": OneStatement(statement=signed(council.PEERS[4], UNPROVEN)),
        "a certificate for the motion": contrary(
            record_hash=record_hash(RECORD), certificate=votes_for(RECORD, TIP_BASE.electors[:3], 2)
        ),
        "no quorum": contrary(certificate=votes_for(OTHER_RECORD, TIP_BASE.electors[:2], 2)),
        "a stranger among the quorum": contrary(
            certificate=votes_for(OTHER_RECORD, [*TIP_BASE.electors[:2], council.PEERS[4]], 2)
        ),
        "a certificate of another attempt": contrary(certificate=votes_for(OTHER_RECORD, TIP_BASE.electors[:3], 1)),
        "a certificate of the other step": contrary(step=Step.SECOND),
        "a motion of somebody whose turn it was not": contrary(sender=VOTER),
        "a quorum of a part: it may be of liars alone": contrary(
            a_motion(2, council.PEERS[3]),
            a_ballot(2, council.PEERS[3]).proposer,
            certificate=votes_for(OTHER_RECORD, TIP_BASE.electors[:3], 2, council.PEERS[3]),
        ),
        "a vote for a motion": contrary(a_vote(2)),
        "a READY for a motion": contrary(a_ready()),
    },
)
def test_honest_electors_are_not_convicted(case: Evidence) -> None:
    with pytest.raises(Malformed):
        judge(BALLOT_LAW, case, TIP_BASE)


def test_a_certificate_convicts_nobody_where_members_vote() -> None:
    with pytest.raises(Malformed):
        judge(BALLOT_LAW, contrary(), replace(TIP_BASE, electors=()))


@pytest.mark.parametrize(
    "fields", [{"kind": "no kind", "case": b""}, {"kind": 5, "case": b""}, {"kind": "one statement", "case": 7}, [1], {}]
)
def test_what_is_no_evidence(fields: Any) -> None:
    with pytest.raises(Malformed):
        decode_evidence(canonical.encode(fields))


# -- contradictions -------------------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("body", [a_roll(2, DAN), a_vote(2, DAN), a_proposal(2, DAN), a_motion(2, DAN)])
def test_nobody_takes_itself_for_absent(body: Body) -> None:
    assert "names its own signer absent" in lie(DAN, body, None)


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
