"""Proof of lying: it convicts who lied, and nobody can make it against somebody honest."""

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
    decode_evidence,
    encode_evidence,
    judge,
    right_hash,
    tip_needed,
)
from protocol.chain.base import Base
from protocol.chain.records import record_hash
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Body
from protocol.wire.hashes import ZERO_HASH, Hash, chunk_hash, tree_proof, tree_root
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import ChunkEntry, ChunkResult, Member, Plan, Ready, Step, mask_of, member_of, pack
from protocol.wire.rollouts import RolloutBatch
from tests.protocol import council
from tests.protocol.council import (
    OTHER_RECORD,
    RECORD,
    a_ballot,
    a_motion,
    a_roll,
    a_vote,
    name_of,
    signed,
    votes_for,
)
from tests.protocol.peers import a_first_ready

RUN = Hash(b"\x07" * 32)
LAYOUTS = chunk_layouts(LADDER["int4"], 600, 256)
LAYOUT = LAYOUTS.contribution
LAW = Law(RUN, 1, LAYOUTS, "clip", 4)
PEERS = sorted((Identity.from_seed(bytes([n]) * 32) for n in range(1, 4)), key=lambda identity: identity.peer_id)
OWNER = PEERS[1]
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
    return member_of(peer.peer_id, said, pack(peer, RUN, said).signature)


def ready(serial: int, tokens: int) -> Ready:
    return a_first_ready(round=1, serial=serial, tokens=tokens)


DATA = [contribution(number) for number in range(3)]
LEAVES = [contribution_leaves(peer.peer_id, data, LAYOUT) for peer, data in zip(PEERS, DATA, strict=True)]
PLAN = Plan(
    round=3,
    fragment=0,
    base=ZERO_HASH,
    owners=bytes([1, 1, 1]),
    state_digest=ZERO_HASH,
    members=[member(peer, 100 + n, tree_root(LEAVES[n])) for n, peer in enumerate(PEERS)],
)

ELSEWHERE = PLAN.model_copy(update={"fragment": 1})
"""A plan of a fragment that the run does not have."""


def part(member: int, data: bytes | None = None) -> AveragedPart:
    span = LAYOUT[CHUNK]
    honest = bytes(DATA[member][span.encoded])
    return AveragedPart(member=member, proof=[*tree_proof(LEAVES[member], CHUNK)], data=honest if data is None else data)


def statement(hash: bytes, members: list[int], signer: Identity = OWNER, plan: Plan = PLAN) -> bytes:
    entry = ChunkEntry(hash=hash, mask=mask_of(members, 3))
    return pack(signer, RUN, ChunkResult(plan=plan_hash(plan), chunk=CHUNK, entry=entry)).raw


def right(members: list[int]) -> Hash:
    return right_hash(LAW.rule, LAYOUTS, CHUNK, [part(m).data for m in members], [100 + m for m in members])


@pytest.mark.parametrize("members", [[0, 1, 2], [0, 2]])
def test_a_wrong_average_convicts_its_signer(members: list[int]) -> None:
    case = WrongAverage(plan=PLAN, statement=statement(chunk_hash(b"wrong"), members), parts=[part(m) for m in members])
    verdict = judge(LAW, decode_evidence(encode_evidence(case)))
    assert verdict.peer == OWNER.peer_id and verdict.false_chunks == ((CHUNK, chunk_hash(b"wrong")),)


@pytest.mark.parametrize(
    "case",
    [
        WrongAverage(plan=PLAN, statement=statement(right([0, 1, 2]), [0, 1, 2]), parts=[part(0), part(1), part(2)]),
        WrongAverage(plan=PLAN, statement=statement(right([0, 2]), [0, 2]), parts=[part(0), part(2)]),
        WrongAverage(plan=PLAN, statement=statement(right([0, 1, 2]), [0, 1, 2]), parts=[part(0), part(2)]),
        WrongAverage(plan=PLAN, statement=statement(right([0, 2]), [0, 2]), parts=[part(0), part(1)]),
        WrongAverage(plan=PLAN, statement=statement(right([0, 2]), [0, 2]), parts=[part(0), part(2, part(1).data)]),
        WrongAverage(plan=PLAN.model_copy(update={"round": 4}), statement=statement(right([0]), [0]), parts=[part(0)]),
        WrongAverage(plan=ELSEWHERE, statement=statement(chunk_hash(b"wrong"), [0], plan=ELSEWHERE), parts=[part(0)]),
        WrongAverage(
            plan=PLAN, statement=statement(chunk_hash(b"x"), [0], Identity.from_seed(b"\x99" * 32)), parts=[part(0)]
        ),
    ],
    ids=[
        "right",
        "right without one",
        "a part kept back",
        "another member's part",
        "a part made up",
        "another plan",
        "another fragment",
        "a stranger's statement",
    ],
)
def test_what_proves_nothing_convicts_nobody(case: Evidence) -> None:
    with pytest.raises(Malformed):
        judge(LAW, case)


def test_who_averages_what_it_had_to_refuse_is_convicted() -> None:
    """The part is what its member committed to, and not finite."""
    span = LAYOUT[CHUNK]
    bad = bytearray(DATA[2])
    bad[span.offset + HEADER_BYTES : span.offset + HEADER_BYTES + 2] = b"\xc0\x7f"
    leaves = contribution_leaves(PEERS[2].peer_id, memoryview(bad), LAYOUT)
    liar = PLAN.members[2].model_copy(update={"root": tree_root(leaves)})
    plan = PLAN.model_copy(update={"members": [*PLAN.members[:2], liar]})
    entry = ChunkEntry(hash=chunk_hash(b"any"), mask=mask_of([2], 3))
    raw = pack(OWNER, RUN, ChunkResult(plan=plan_hash(plan), chunk=CHUNK, entry=entry)).raw
    data = bytes(bad[span.encoded])
    parts = [AveragedPart(member=2, proof=[*tree_proof(leaves, CHUNK)], data=data)]
    assert len(parts[0].data) == span.size
    assert judge(LAW, WrongAverage(plan=plan, statement=raw, parts=parts)).peer == OWNER.peer_id


def test_two_batches_of_rollouts_of_one_number_in_one_life_convict_and_others_do_not() -> None:
    said = RolloutBatch(version=1, tip=RUN, number=2, incarnation=3, rollouts=4, tokens=5, size=6, root=RUN)
    changes = ({"tokens": 6}, {"tokens": 6, "number": 3}, {"tokens": 6, "incarnation": 4})
    first, lie, *others = (pack(OWNER, RUN, said.model_copy(update=change)).raw for change in ({}, *changes))
    assert judge(LAW, TwoStatements(first=first, second=lie)).peer == OWNER.peer_id
    for other in (first, *others):
        with pytest.raises(Malformed):
            judge(LAW, TwoStatements(first=first, second=other))


def test_two_readys_under_one_serial_convict_and_others_do_not() -> None:
    first, lie, later = (pack(OWNER, RUN, body).raw for body in (ready(4, 10), ready(4, 11), ready(5, 11)))
    elsewhere = pack(PEERS[0], RUN, ready(4, 11)).raw
    assert judge(LAW, TwoStatements(first=first, second=lie)).peer == OWNER.peer_id
    for other in (first, later, elsewhere):
        with pytest.raises(Malformed):
            judge(LAW, TwoStatements(first=first, second=other))


# -- lies about ballots ---------------------------------------------------------------------------------------------------

BALLOT_LAW = Law(council.RUN, 1, LAYOUTS, "clip", 4)
BASE = Base(5, 0, council.TIP, tuple(council.PEERS[:4]))
LEADER = a_ballot(2).proposer
VOTER = next(peer for peer in BASE.electors if peer != LEADER)
UNPROVEN = a_motion(2, rolls=[signed(peer, a_roll(2, lock=name_of(1))) for peer in BASE.electors])
"""All its rolls name a lock, and it has no proof."""
HONEST = a_motion(2)
AGAINST = votes_for(OTHER_RECORD, BASE.electors[:3], 2)
"""A quorum voted for another record than the leader put to the vote."""


def contrary(motion: Body = HONEST, sender: PeerId = LEADER, **changes: Any) -> ContraryRecordProposal:
    fields = {"record_hash": record_hash(OTHER_RECORD), "step": Step.FIRST, "certificate": AGAINST, **changes}
    return ContraryRecordProposal(motion=signed(sender, motion), **fields)


def two(sender: PeerId, first: Body, second: Body) -> TwoStatements:
    return TwoStatements(first=signed(sender, first), second=signed(sender, second))


NEED_NO_ELECTORS = {
    "two votes": (VOTER, two(VOTER, a_vote(2), a_vote(2, record=OTHER_RECORD))),
    "two motions": (LEADER, two(LEADER, HONEST, a_motion(2, record=OTHER_RECORD))),
    "an impossible lock": (VOTER, OneStatement(statement=signed(VOTER, a_roll(2, lock=name_of(2))))),
    "absent by its own word": (VOTER, OneStatement(statement=signed(VOTER, a_roll(2, VOTER)))),
}
NEED_ELECTORS = {
    "a lock that is not told": (VOTER, two(VOTER, a_vote(1, step=Step.SECOND), a_roll(2))),
    "two locks in one attempt": (VOTER, two(VOTER, a_roll(2, lock=name_of(1)), a_roll(2))),
    "a motion without its proof": (LEADER, OneStatement(statement=signed(LEADER, UNPROVEN))),
    "a certificate against it": (LEADER, contrary()),
    "a certificate of second votes against it": (
        LEADER,
        contrary(step=Step.SECOND, certificate=votes_for(OTHER_RECORD, BASE.electors[:3], 2, step=Step.SECOND)),
    ),
}


@pytest.mark.parametrize(("liar", "case"), NEED_NO_ELECTORS.values(), ids=NEED_NO_ELECTORS)
def test_some_lies_about_ballots_speak_for_themselves(liar: PeerId, case: Evidence) -> None:
    case = decode_evidence(encode_evidence(case))
    assert tip_needed(BALLOT_LAW, case) is None and judge(BALLOT_LAW, case).peer == liar


@pytest.mark.parametrize(("liar", "case"), NEED_ELECTORS.values(), ids=NEED_ELECTORS)
def test_others_are_judged_with_the_electors_of_their_tip(liar: PeerId, case: Evidence) -> None:
    case = decode_evidence(encode_evidence(case))
    assert tip_needed(BALLOT_LAW, case) == (liar, (5, BASE.tip))
    assert judge(BALLOT_LAW, case, BASE).peer == liar
    for base in (None, replace(BASE, tip=Hash(ZERO_HASH)), replace(BASE, round=4)):
        with pytest.raises(UnknownTip) as unknown:
            judge(BALLOT_LAW, case, base)
        assert (unknown.value.signer, unknown.value.tip) == (liar, (5, BASE.tip))


@pytest.mark.parametrize(("liar", "case"), [*NEED_NO_ELECTORS.values(), *NEED_ELECTORS.values()])
def test_evidence_about_ballots_cannot_be_forged(liar: PeerId, case: Evidence) -> None:
    """No byte of a statement may differ from what was signed, and none may be of another run."""
    with pytest.raises(Malformed):
        judge(replace(BALLOT_LAW, run=Hash(ZERO_HASH)), case, BASE)
    for name in ("first", "second", "statement", "motion"):
        raw = getattr(case, name, None)
        if raw is None:
            continue
        for forged in (raw[:-1], raw[:-1] + bytes([raw[-1] ^ 1]), b"", raw.replace(b"attempt", b"attempu")):
            with pytest.raises(Malformed):
                judge(BALLOT_LAW, case.model_copy(update={name: forged}), BASE)


@pytest.mark.parametrize(
    "case",
    [
        two(VOTER, a_vote(2), a_vote(2)),
        two(VOTER, a_vote(2), a_vote(3, record=OTHER_RECORD)),
        TwoStatements(first=signed(VOTER, a_vote(2)), second=signed(LEADER, a_vote(2, record=OTHER_RECORD))),
        two(VOTER, a_vote(1, step=Step.SECOND), a_roll(2, lock=name_of(1))),
        OneStatement(statement=signed(VOTER, a_roll(2))),
        OneStatement(statement=signed(VOTER, a_vote(2))),
        OneStatement(statement=signed(LEADER, HONEST)),
        OneStatement(statement=signed(council.PEERS[4], UNPROVEN)),
        contrary(record_hash=record_hash(RECORD), certificate=votes_for(RECORD, BASE.electors[:3], 2)),
        contrary(certificate=votes_for(OTHER_RECORD, BASE.electors[:2], 2)),
        contrary(certificate=votes_for(OTHER_RECORD, [*BASE.electors[:2], council.PEERS[4]], 2)),
        contrary(certificate=votes_for(OTHER_RECORD, BASE.electors[:3], 1)),
        contrary(step=Step.SECOND),
        contrary(sender=VOTER),
        contrary(
            a_motion(2, council.PEERS[3]),
            a_ballot(2, council.PEERS[3]).proposer,
            certificate=votes_for(OTHER_RECORD, BASE.electors[:3], 2, council.PEERS[3]),
        ),
        contrary(a_vote(2)),
    ],
    ids=[
        "one vote",
        "votes of two attempts",
        "votes of two electors",
        "the lock is told",
        "an honest roll",
        "an honest vote",
        "an honest motion",
        "a stranger's motion",
        "a certificate for the motion",
        "no quorum",
        "a stranger among the quorum",
        "a certificate of another attempt",
        "a certificate of the other step",
        "a motion of somebody whose turn it was not",
        "a quorum of a part: it may be of liars alone",
        "a vote for a motion",
    ],
)
def test_honest_electors_are_not_convicted(case: Evidence) -> None:
    with pytest.raises(Malformed):
        judge(BALLOT_LAW, case, BASE)


def test_a_certificate_convicts_nobody_where_members_vote() -> None:
    with pytest.raises(Malformed):
        judge(BALLOT_LAW, contrary(), replace(BASE, electors=()))


@pytest.mark.parametrize(
    "fields", [{"kind": "no kind", "case": b""}, {"kind": 5, "case": b""}, {"kind": "one statement", "case": 7}, [1], {}]
)
def test_what_is_no_evidence(fields: Any) -> None:
    with pytest.raises(Malformed):
        decode_evidence(canonical.encode(fields))
