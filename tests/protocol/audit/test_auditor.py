"""Two averages of one chunk by one owner: one that the exchange received, and another one in the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import trio

from kernels.codecs.ladder import LADDER
from kernels.layout import chunk_layouts
from protocol.agreement.ballot import plan_of
from protocol.allreduce.assignment import plan_hash
from protocol.audit.auditor import Auditor
from protocol.audit.evidence import Law, TwoStatements, judge
from protocol.events.events import AuditDone, Event
from protocol.wire.envelope import Envelope
from protocol.wire.hashes import ZERO_HASH, Hash
from protocol.wire.identity import Identity
from protocol.wire.messages import ChunkEntry, ChunkResult, Plan, Provenance, Record, pack, unpack
from tests.protocol.members import a_member
from tests.protocol.peers import ANN, BOB, ME, TableNetwork, a_session, at_once

RUN = Hash(b"\x05" * 32)
LAW = Law(RUN, 1, chunk_layouts(LADDER["int4"], 600, 256), "clip")
MEMBERS = sorted((ME, ANN, BOB), key=lambda identity: identity.peer_id)
OWNERS = [MEMBERS.index(owner) for owner in (ANN, ANN, BOB)]
ENTRIES = [ChunkEntry(hash=bytes([chunk]) * 32, mask=b"\x07") for chunk in range(3)]
OTHER = ChunkEntry(hash=b"\x77" * 32, mask=b"\x07")


RECORD = Record(
    round=0,
    fragment=0,
    previous=ZERO_HASH,
    members=[a_member(identity.peer_id) for identity in MEMBERS],
    codec="int4",
    result_root=ZERO_HASH,
    state_digest=ZERO_HASH,
)


def _provenance(signatures: list[bytes]) -> Provenance:
    return Provenance(owners=bytes(OWNERS), signers=bytes(OWNERS), signatures=signatures)


PLAN: Plan = plan_of(RECORD, _provenance([bytes(64)] * 3))


def signed(chunk: int, entry: ChunkEntry, by: Identity) -> Envelope:
    return pack(by, RUN, ChunkResult(plan=plan_hash(PLAN), chunk=chunk, entry=entry))


def found(received: Mapping[int, Envelope], index: Sequence[ChunkEntry], *, forged: bool = False) -> list[TwoStatements]:
    """What is found beside a record with this index, which its owners signed, or did not."""
    nothing: Any = None
    replica: Any = SimpleNamespace(layouts=LAW.layouts, manifest=SimpleNamespace(aggregation=LAW.rule))
    entries = {chunk: unpack(envelope.raw, RUN)[1].entry for chunk, envelope in received.items()}  # type: ignore[attr-defined]
    exchange: Any = SimpleNamespace(statements=received, machine=SimpleNamespace(entries=entries))
    auditor = Auditor(a_session(RUN, TableNetwork(), []), replica, at_once, nothing, nothing)
    signatures = [signed(chunk, entry, MEMBERS[OWNERS[chunk]]).signature for chunk, entry in enumerate(index)]
    provenance = _provenance([bytes(64)] * 3 if forged else signatures)
    return trio.run(auditor.contradictions, RECORD, index, provenance, exchange)


AS_RECEIVED = {chunk: signed(chunk, entry, MEMBERS[OWNERS[chunk]]) for chunk, entry in enumerate(ENTRIES)}


def test_two_averages_of_one_chunk_convict_their_owner() -> None:
    [proof] = found(AS_RECEIVED, [ENTRIES[0], OTHER, ENTRIES[2]])
    verdict = judge(LAW, proof)
    assert verdict.peer == ANN.peer_id
    assert verdict.false_chunks == ((1, ENTRIES[1].hash), (1, OTHER.hash)), "whichever a peer holds, it votes for neither"


def test_one_proof_of_each_owner_is_enough() -> None:
    assert [judge(LAW, proof).peer for proof in found(AS_RECEIVED, [OTHER, OTHER, OTHER])] == [ANN.peer_id, BOB.peer_id]


def test_what_is_no_contradiction_convicts_nobody() -> None:
    assert found(AS_RECEIVED, ENTRIES) == []
    assert found({}, [OTHER] * 3) == [], "nothing was received"
    by_successor = {0: signed(0, ENTRIES[0], BOB)}
    assert found(by_successor, [OTHER, *ENTRIES[1:]]) == [], "a successor may average another version"
    assert found(AS_RECEIVED, [OTHER] * 3, forged=True) == [], "the proposer made the signatures up"


def test_an_audit_tells_whose_averages_were_right() -> None:
    class Sure(Auditor):
        async def _audit(self, case: Any, chunk: int) -> bool:
            return True

    nothing: Any = SimpleNamespace(data=None)
    events: list[Event] = []
    replica: Any = SimpleNamespace(layouts=LAW.layouts, manifest=SimpleNamespace(aggregation=LAW.rule))
    auditor = Sure(a_session(RUN, TableNetwork(), events), replica, at_once, nothing, nothing)
    signatures = [AS_RECEIVED[chunk].signature for chunk in range(3)]
    trio.run(auditor.check, RECORD, ENTRIES, _provenance(signatures), None, None)
    [(peer, right)] = [pair for event in events if isinstance(event, AuditDone) for pair in event.right.items()]
    assert peer in (ANN.peer_id, BOB.peer_id) and right == 1
