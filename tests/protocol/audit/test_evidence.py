"""Evidence: which statements contradict each other, what proves it, who is convicted, and what one peer notices."""

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
    KEPT_BYTES,
    KEPT_STATEMENTS,
    AveragedPart,
    Law,
    TwoStatements,
    Witness,
    WrongAverage,
    contradict,
    decode_evidence,
    encode_evidence,
    judge,
    right_hash,
)
from protocol.chain.base import Base
from protocol.chain.records import record_hash
from protocol.formats.rl import Precision
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Body
from protocol.wire.hashes import ZERO_HASH, Hash, chunk_hash, tree_proof, tree_root
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import (
    ChunkEntry,
    ChunkResult,
    Commit,
    Finish,
    Member,
    Plan,
    PrevoteCertificate,
    Proposal,
    Ready,
    Record,
    Step,
    mask_of,
    member_of,
    pack,
)
from protocol.wire.rollouts import RolloutBatch
from tests.protocol.council import (
    BASE,
    IDENTITIES,
    INDEX,
    OTHER_INDEX,
    OTHER_RECORD,
    PEERS,
    RECORD,
    RUN,
    TIP,
    a_ballot,
    a_lock,
    a_plan,
    a_ready,
    a_record_proposal,
    a_view_change,
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
LAW = Law(RUN_OF_AVERAGES, 1, LAYOUTS, "clip")
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
        version=1,
        tip=RUN_OF_AVERAGES,
        number=2,
        incarnation=3,
        rollouts=4,
        tokens=5,
        precision=Precision.FLOAT32,
        size=6,
        root=RUN_OF_AVERAGES,
    )
    changes = ({"tokens": 6}, {"tokens": 6, "number": 3}, {"tokens": 6, "incarnation": 4})
    first, lie, *others = (pack(OWNER, RUN_OF_AVERAGES, said.model_copy(update=change)).raw for change in ({}, *changes))
    assert judge(LAW, TwoStatements(first=first, second=lie)).peer == OWNER.peer_id
    for other in (first, *others):
        with pytest.raises(Malformed):
            judge(LAW, TwoStatements(first=first, second=other))


# -- lies about ballots ---------------------------------------------------------------------------------------------------

BALLOT_LAW = replace(LAW, run=RUN)
ANN, DAN = PEERS[0], PEERS[3]
PROPOSER = a_ballot(2).proposer
SECOND: dict[str, Any] = {"step": Step.SECOND}


def two(sender: PeerId, first: Body, second: Body) -> TwoStatements:
    return TwoStatements(first=signed(sender, first), second=signed(sender, second))


def a_proposal(attempt: int, *absent: PeerId, **changes: Any) -> Proposal:
    """This plan, with the view changes of all who stay."""
    view_changes = [signed(peer, a_view_change(attempt, *absent)) for peer in PEERS[:4] if peer not in absent]
    return Proposal(attempt=attempt, absent=sorted(absent), plan=a_plan(**changes), view_changes=view_changes)


@cases(
    "one, other",
    {
        "two records": (a_vote(1), a_vote(1, record=OTHER_RECORD)),
        "two absent lists": (a_vote(1), a_vote(1, DAN)),
        "two records at last": (a_vote(1, **SECOND), a_vote(1, record=OTHER_RECORD, **SECOND)),
        "two plans": (a_proposal(1), a_proposal(1, owners=b"\2\1\0")),
        "plans of two ballots of an attempt": (a_proposal(1), a_proposal(1, DAN)),
        "two record proposals": (a_record_proposal(1), a_record_proposal(1, record=OTHER_RECORD)),
        "record proposals of two ballots of an attempt": (a_record_proposal(1), a_record_proposal(1, DAN)),
        "two READYs": (a_ready(), a_ready(tokens=7)),
        "a record proposal by another plan than was proposed": (a_proposal(1, owners=b"\2\1\0"), a_record_proposal(1)),
    },
)
def test_two_statements_in_one_slot_convict_their_signer_and_no_byte_of_them_can_be_forged(one: Body, other: Body) -> None:
    assert contradict(one, other) and contradict(other, one)
    case = decode_evidence(encode_evidence(two(ANN, one, other)))
    assert isinstance(case, TwoStatements) and judge(BALLOT_LAW, case).peer == ANN
    with pytest.raises(Malformed):
        judge(replace(BALLOT_LAW, run=Hash(ZERO_HASH)), case)
    for name in ("first", "second"):
        raw = getattr(case, name)
        for forged in (raw[:-1], raw[:-1] + bytes([raw[-1] ^ 1]), b"", raw.replace(b"base", b"basf")):
            with pytest.raises(Malformed):
                judge(BALLOT_LAW, case.model_copy(update={name: forged}))


@cases(
    "one, other",
    {
        "the same vote": (a_vote(1), a_vote(1)),
        "votes of two attempts": (a_vote(1), a_vote(2, record=OTHER_RECORD)),
        "votes of two steps": (a_vote(1), a_vote(1, **SECOND)),
        "votes of two rounds": (a_vote(1), a_vote(1, record=OTHER_RECORD, round=6)),
        "votes of two tips": (a_vote(1), a_vote(1, record=OTHER_RECORD, base=ZERO_HASH)),
        "two attempts have two plans": (a_proposal(1), a_proposal(2, owners=b"\2\1\0")),
        "a record proposal by the plan that was proposed": (a_proposal(1), a_record_proposal(1)),
        "a record proposal of another attempt": (a_proposal(1, owners=b"\2\1\0"), a_record_proposal(2)),
        "a record proposal that carries on a lock": (
            a_proposal(1, owners=b"\2\1\0"),
            a_record_proposal(1, proof=a_lock(0).proof),
        ),
        "two attempts have two record proposals": (a_record_proposal(1), a_record_proposal(2, record=OTHER_RECORD)),
        "two READYs, two serials": (a_ready(), a_ready(tokens=7, serial=a_ready().serial + 1)),
        "view changes grow, and absent lists change": (a_view_change(1), a_view_change(1, DAN, held=[ANN])),
        "nothing to do with it": (Finish(round=5, base=TIP), a_vote(1)),
    },
)
def test_statements_of_honest_peers_convict_nobody(one: Body, other: Body) -> None:
    assert not contradict(one, other) and not contradict(other, one)
    with pytest.raises(Malformed):
        judge(BALLOT_LAW, two(ANN, one, other))


def test_statements_of_two_peers_convict_nobody() -> None:
    first, second = signed(ANN, a_vote(2)), signed(DAN, a_vote(2, record=OTHER_RECORD))
    with pytest.raises(Malformed):
        judge(BALLOT_LAW, TwoStatements(first=first, second=second))


def test_a_chunk_has_one_average() -> None:
    one, other = (ChunkResult(plan=ZERO_HASH, chunk=1, entry=entry) for entry in INDEX[:2])
    assert contradict(one, other)


@pytest.mark.parametrize(
    "fields", [{"kind": "no kind", "case": b""}, {"kind": 5, "case": b""}, {"kind": "two statements", "case": 7}, [1], {}]
)
def test_what_is_no_evidence(fields: Any) -> None:
    with pytest.raises(Malformed):
        decode_evidence(canonical.encode(fields))


# -- the witness ----------------------------------------------------------------------------------------------------------

LEADER = PROPOSER
LIAR, CAT, BOB = (peer for peer in BASE.electors if peer != LEADER)
EVE = PEERS[4]
"""Eve is no elector."""


class Chain:
    """Stands in for the history: so many rounds, of whose tips two are known."""

    def __init__(self) -> None:
        self.length = BASE.round
        self.bases = {(BASE.round, bytes(TIP)): BASE}

    def base_at(self, round: int, tip: bytes) -> Base | None:
        return self.bases.get((round, tip))

    def grow(self) -> Base:
        """One more round."""
        self.length += 1
        base = replace(BASE, round=self.length, tip=Hash(bytes([self.length]) * 32))
        self.bases[base.round, base.tip] = base
        return base


class Table:
    """A witness, and what it found."""

    def __init__(self) -> None:
        self.chain = Chain()
        as_history: Any = self.chain
        self.witness = Witness(RUN, as_history)

    def hear(self, sender: PeerId, body: Body) -> list[TwoStatements]:
        return self.witness.hear(sender, body, pack(IDENTITIES[sender], RUN, body))

    def verdicts(self, sender: PeerId, body: Body) -> list[PeerId]:
        """Whom the evidence convicts; all of it has to."""
        return [judge(BALLOT_LAW, case).peer for case in self.hear(sender, body)]


def proof(record: Record, *voters: PeerId, attempt: int = 2) -> PrevoteCertificate:
    certificate = votes_for(record, voters, attempt)
    return PrevoteCertificate(round=5, base=TIP, record_hash=record_hash(record), certificate=certificate)


def commit(record: Record, *voters: PeerId, attempt: int = 2) -> Commit:
    index = INDEX if record == RECORD else OTHER_INDEX
    return Commit(record=record, index=index, certificate=votes_for(record, voters, attempt, step=Step.SECOND))


def test_a_round_of_honest_electors_shows_no_lie() -> None:
    table = Table()
    certified = proof(RECORD, LEADER, CAT, BOB)
    carried = a_record_proposal(
        3,
        view_changes=[signed(peer, a_view_change(3, lock=name_of(2))) for peer in BASE.electors],
        proof=certified.certificate,
    )
    heard: list[tuple[PeerId, Body]] = [
        *[(peer, a_view_change(2)) for peer in BASE.electors],
        *[(peer, a_view_change(2, held=[CAT])) for peer in BASE.electors],
        (LEADER, a_record_proposal(2)),
        *[(peer, a_vote(2)) for peer in BASE.electors],
        (LEADER, certified),
        *[(peer, a_vote(2, step=Step.SECOND)) for peer in BASE.electors],
        *[(peer, a_view_change(3, lock=name_of(2))) for peer in BASE.electors],
        (a_ballot(3).proposer, carried),
        *[(peer, a_vote(3, step=Step.SECOND)) for peer in BASE.electors],
        (LEADER, commit(RECORD, LEADER, CAT, BOB)),
        (LEADER, Finish(round=5, base=TIP)),
    ]
    for sender, body in heard:
        assert table.hear(sender, body) == [] == table.hear(sender, body)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (a_vote(2), a_vote(2, record=OTHER_RECORD)),
        (a_record_proposal(2), a_record_proposal(2, record=OTHER_RECORD)),
        (a_proposal(2, owners=b"\2\1\0"), a_record_proposal(2)),
        (a_record_proposal(2), a_proposal(2, owners=b"\2\1\0")),
    ],
    ids=["two votes", "two record proposals", "a record proposal by another plan", "another plan after the record proposal"],
)
def test_two_statements_of_one_elector_are_noticed(first: Body, second: Body) -> None:
    table = Table()
    assert table.verdicts(LIAR, first) == [] and table.verdicts(CAT, second) == []
    assert table.verdicts(LIAR, second) == [LIAR]


@pytest.mark.parametrize("late", [False, True], ids=["the vote first", "the certificate first"])
@pytest.mark.parametrize(
    ("shown", "step"),
    [
        (proof(OTHER_RECORD, LIAR, CAT, BOB), Step.FIRST),
        (commit(OTHER_RECORD, LIAR, CAT, BOB), Step.SECOND),
        (
            a_record_proposal(
                4,
                view_changes=[signed(peer, a_view_change(4, lock=name_of(2))) for peer in BASE.electors],
                proof=votes_for(RECORD, [LIAR, CAT, BOB], 2),
            ),
            Step.FIRST,
        ),
    ],
    ids=["a proof", "a commit", "the proof in a record proposal"],
)
def test_a_vote_beside_a_certificate(shown: Body, step: Step, late: bool) -> None:
    table, bringer = Table(), a_ballot(4).proposer
    record = RECORD if not isinstance(shown, PrevoteCertificate | Commit) else OTHER_RECORD
    single = a_vote(2, record=OTHER_RECORD if record == RECORD else RECORD, step=step)
    heard: list[tuple[PeerId, Body]] = [(LIAR, single), (bringer, shown)]
    found = [case for sender, body in (heard[::-1] if late else heard) for case in table.hear(sender, body)]
    assert [judge(BALLOT_LAW, case).peer for case in found] == [LIAR]


def test_two_certificates_name_all_who_signed_both() -> None:
    table = Table()
    assert table.hear(CAT, commit(RECORD, LIAR, CAT, BOB)) == []
    assert table.verdicts(BOB, commit(OTHER_RECORD, LIAR, BOB, LEADER)) == sorted([LIAR, BOB])


def test_a_forged_certificate_frames_nobody() -> None:
    table = Table()
    table.hear(LIAR, a_vote(2))
    forged = proof(OTHER_RECORD, LIAR, CAT, BOB)
    votes = [each.model_copy(update={"signature": bytes(64)}) for each in forged.certificate.votes]
    forged = forged.model_copy(update={"certificate": forged.certificate.model_copy(update={"votes": votes})})
    assert table.hear(CAT, forged) == []
    assert table.hear(BOB, a_vote(2)) == []


def test_only_electors_are_heard_on_the_newest_two_tips() -> None:
    table = Table()
    for body in (a_vote(2), a_vote(2, record=OTHER_RECORD)):
        assert table.hear(EVE, body) == [], "a stranger's vote counts nowhere"
    table.hear(LIAR, a_vote(2))
    next_base = table.chain.grow()
    assert table.verdicts(LIAR, a_vote(2, record=OTHER_RECORD)) == [LIAR], "the last votes may still come"
    table.hear(CAT, a_vote(2, on=next_base))
    table.chain.grow()
    table.hear(CAT, a_vote(2, on=next_base))
    assert table.hear(LIAR, a_vote(2, record=OTHER_RECORD)) == [], "the round is long over"
    elsewhere = replace(BASE, tip=Hash(ZERO_HASH))
    for record in (RECORD, OTHER_RECORD):
        assert table.hear(LIAR, a_vote(2, record=record, on=elsewhere)) == [], "who the electors are is not known"


@pytest.mark.slow
def test_what_is_kept_is_bounded() -> None:
    table = Table()
    for attempt in range(10 * KEPT_STATEMENTS):
        table.hear(LIAR, a_vote(attempt))
        table.hear(LIAR, proof(RECORD, LIAR, CAT, BOB, attempt=attempt))
    testimony = table.witness._testimonies[LIAR]
    assert len(testimony.statements) == KEPT_STATEMENTS
    assert sum(len(each.raw) for each in testimony.statements) <= KEPT_BYTES
    newest = 10 * KEPT_STATEMENTS - 1
    assert table.verdicts(LIAR, a_vote(newest, record=OTHER_RECORD))[0] == LIAR
