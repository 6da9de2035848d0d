"""Proof of lying: it convicts who lied, and nobody can make it against somebody honest."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.codec import encode, encoded_bytes
from kernels.layout import chunk_layout, payload_bytes
from protocol.audit.evidence import (
    AveragedPart,
    Evidence,
    Law,
    TwoStatements,
    WrongAverage,
    decode_evidence,
    encode_evidence,
    judge,
    right_hash,
)
from protocol.exchange.assignment import contribution_leaves, plan_hash
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import ZERO_HASH, Hash, chunk_hash, tree_proof, tree_root
from protocol.wire.identity import Identity
from protocol.wire.masks import mask_of
from protocol.wire.messages import ChunkEntry, ChunkResult, Member, Plan, Ready, member_of, pack

RUN = Hash(b"\x07" * 32)
LAW = Law(RUN, 1, chunk_layout(600, 256), "clip")
PEERS = sorted((Identity.from_seed(bytes([n]) * 32) for n in range(1, 4)), key=lambda identity: identity.peer_id)
OWNER = PEERS[1]
CHUNK = 2


def contribution(number: int) -> memoryview:
    values = np.random.Generator(np.random.Philox(number)).standard_normal(600, dtype=np.float32)
    data = memoryview(bytearray(payload_bytes(LAW.layout)))
    for span in LAW.layout:
        encode(values[span.values], data[span.encoded])
    return data


def member(peer: Identity, tokens: int, root: Hash) -> Member:
    """A member with this contribution."""
    said = ready(1, tokens).model_copy(update={"round": 3, "root": root})
    return member_of(peer.peer_id, said, pack(peer, RUN, said).signature)


def ready(serial: int, tokens: int) -> Ready:
    return Ready(
        round=1,
        fragment=0,
        base=ZERO_HASH,
        incarnation=1,
        serial=serial,
        tokens=tokens,
        steps=1,
        loss=1.0,
        norm=1.0,
        root=ZERO_HASH,
        state_digest=ZERO_HASH,
    )


DATA = [contribution(number) for number in range(3)]
LEAVES = [contribution_leaves(data, LAW.layout) for data in DATA]
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
    span = LAW.layout[CHUNK]
    honest = bytes(DATA[member][span.encoded])
    return AveragedPart(member=member, proof=[*tree_proof(LEAVES[member], CHUNK)], data=honest if data is None else data)


def statement(hash: bytes, members: list[int], signer: Identity = OWNER, plan: Plan = PLAN) -> bytes:
    entry = ChunkEntry(hash=hash, mask=mask_of(members, 3))
    return pack(signer, RUN, ChunkResult(plan=plan_hash(plan), chunk=CHUNK, entry=entry)).raw


def right(members: list[int]) -> Hash:
    return right_hash(LAW.rule, LAW.layout[CHUNK], [part(m).data for m in members], [100 + m for m in members])


@pytest.mark.parametrize("members", [[0, 1, 2], [0, 2]])
def test_a_wrong_average_convicts_its_signer(members: list[int]) -> None:
    case = WrongAverage(plan=PLAN, statement=statement(chunk_hash(b"wrong"), members), parts=[part(m) for m in members])
    verdict = judge(LAW, decode_evidence(encode_evidence(case)))
    assert verdict.peer == OWNER.peer_id and verdict.false_chunk == (CHUNK, chunk_hash(b"wrong"))


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
    span = LAW.layout[CHUNK]
    bad = bytearray(DATA[2])
    bad[span.offset : span.offset + 4] = np.float32(np.nan).tobytes()
    leaves = contribution_leaves(memoryview(bad), LAW.layout)
    liar = PLAN.members[2].model_copy(update={"root": tree_root(leaves)})
    plan = PLAN.model_copy(update={"members": [*PLAN.members[:2], liar]})
    entry = ChunkEntry(hash=chunk_hash(b"any"), mask=mask_of([2], 3))
    raw = pack(OWNER, RUN, ChunkResult(plan=plan_hash(plan), chunk=CHUNK, entry=entry)).raw
    data = bytes(bad[span.encoded])
    parts = [AveragedPart(member=2, proof=[*tree_proof(leaves, CHUNK)], data=data)]
    assert len(parts[0].data) == encoded_bytes(span.count)
    assert judge(LAW, WrongAverage(plan=plan, statement=raw, parts=parts)).peer == OWNER.peer_id


def test_two_readys_under_one_serial_convict_and_others_do_not() -> None:
    first, lie, later = (pack(OWNER, RUN, body).raw for body in (ready(4, 10), ready(4, 11), ready(5, 11)))
    elsewhere = pack(PEERS[0], RUN, ready(4, 11)).raw
    assert judge(LAW, TwoStatements(first=first, second=lie)).peer == OWNER.peer_id
    for other in (first, later, elsewhere):
        with pytest.raises(Malformed):
            judge(LAW, TwoStatements(first=first, second=other))
