"""Well-formed messages of every kind, from which the fuzzers begin."""

from __future__ import annotations

from protocol.allreduce.runner import ExchangeAsk, PushHeader
from protocol.audit.evidence import AveragedPart, TwoStatements, WrongAverage, encode_evidence
from protocol.blobs.blob import BlobReply, BlobRequest, ChunkHeader, ChunkNews, ChunksReply, ChunksRequest, LeavesRequest
from protocol.formats.rl import Precision
from protocol.run.admission import HelloReply, bearer_token, bound_token, make_hello, make_proof
from protocol.wire.envelope import Body, seal
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import Identity
from protocol.wire.messages import (
    Accusation,
    Certificate,
    ChunkEntry,
    ChunkResult,
    Commit,
    Extension,
    Finish,
    Lock,
    LockName,
    Plan,
    PrevoteCertificate,
    Proposal,
    Provenance,
    Record,
    RecordProposal,
    Report,
    Signature,
    SourceMean,
    Step,
    UsedBatch,
    ViewChange,
    Vote,
    learned_from,
    losses_from,
    pack,
)
from protocol.wire.presence import Goodbye, Measurement, Role
from protocol.wire.questions import (
    CommitsReply,
    CommitsRequest,
    EvidenceRequest,
    HaveReply,
    HaveRequest,
    LeavesReply,
    PartReply,
    PartRequest,
    TipsReply,
    TipsRequest,
)
from protocol.wire.rollouts import (
    AdmittedSet,
    Amendment,
    Deal,
    Judgement,
    RolloutBatch,
    TaskSet,
)
from tests.protocol.members import a_member
from tests.protocol.peers import a_first_ready, a_heartbeat

ONE = Identity.from_seed(bytes(32))
RUN = hash_bytes("manifest", b"run")
TIP = hash_bytes("record", b"tip")
MEMBER = a_member(ONE.peer_id, 10, TIP)
ENTRY = ChunkEntry(hash=TIP, mask=b"\1")
RECORD = Record(
    round=1,
    fragment=0,
    previous=TIP,
    members=[MEMBER],
    codec="int4",
    result_root=TIP,
    state_digest=TIP,
)
PLAN = Plan(round=1, fragment=0, base=TIP, members=[MEMBER], owners=b"\0\0", state_digest=TIP)
CERTIFICATE = Certificate(attempt=0, absent=[ONE.peer_id], votes=[Signature(peer=ONE.peer_id, signature=bytes(64))])
NAMED = LockName(attempt=0, absent=[], record_hash=TIP)
ROLL = ViewChange(round=1, base=TIP, attempt=1, absent=[], held=b"\1", plan=TIP, lock=NAMED, reduced=None)
PROVENANCE = Provenance(owners=b"\0\0", signers=b"\0\0", signatures=[bytes(64), bytes(64)])
AVERAGE = ChunkResult(plan=TIP, chunk=0, entry=ENTRY)
VOTE = Vote(round=1, base=TIP, attempt=0, step=Step.SECOND, absent=[], record_hash=TIP)
MOTION = RecordProposal(
    attempt=1,
    absent=[],
    record=RECORD,
    index=[ENTRY, ENTRY],
    provenance=PROVENANCE,
    view_changes=[pack(ONE, RUN, ROLL).raw],
    proof=CERTIFICATE,
)
BATCH = RolloutBatch(
    version=1, tip=TIP, number=0, incarnation=1, rollouts=2, tokens=20, precision=Precision.FLOAT32, size=100, root=TIP
)
OFFER = TaskSet(name="sums", count=2, size=100, root=TIP)
AMENDMENT = Amendment(
    number=1,
    percent=50,
    sets=[AdmittedSet(name="sums", count=2, size=100, root=TIP, slot=1, publisher=ONE.peer_id)],
)
BODIES: list[Body] = [
    a_heartbeat(
        measured=Measurement(rounds=1, tip=bytes(32), loss=1.5, samples=["upon a time", "↵"]),
        round=3,
        tip=TIP,
        steps=4,
        loss=5.5,
        tokens_per_s=6.0,
        addresses=["/ip4/127.0.0.1/tcp/1"],
    ),
    Goodbye(incarnation=1, seq=2),
    a_first_ready(base=TIP, serial=1, root=TIP, state_digest=TIP, admission=b"proof"),
    a_first_ready(base=TIP, root=TIP, state_digest=TIP, losses=losses_from([SourceMean(1, 5, 2.5)])),
    a_first_ready(base=TIP, root=TIP, state_digest=TIP, rollouts=learned_from([UsedBatch(ONE.peer_id, TIP, 9)], 0.5)),
    ROLL,
    Proposal(attempt=1, absent=[], plan=PLAN, view_changes=[pack(ONE, RUN, ROLL).raw]),
    Report(round=1, base=TIP, plan=TIP, index=[ENTRY], provenance=PROVENANCE),
    Lock(record=RECORD, index=[ENTRY], provenance=PROVENANCE, proof=CERTIFICATE),
    MOTION.model_copy(update={"absent": [ONE.peer_id]}),
    VOTE,
    PrevoteCertificate(round=1, base=TIP, record_hash=TIP, certificate=CERTIFICATE),
    Commit(record=RECORD, index=[ENTRY], certificate=CERTIFICATE),
    AVERAGE,
    Finish(round=1, base=TIP),
    Accusation(accused=ONE.peer_id, evidence=TIP, size=100),
    BATCH,
    Deal(author=ONE.peer_id, root=TIP),
    Judgement(author=ONE.peer_id, root=TIP, codes=b"\0\2"),
    Judgement(author=ONE.peer_id, root=TIP, codes=b"\0\0", scores=b"\xfe\xff"),
    OFFER,
    AMENDMENT,
    Extension(total=9),
]
QUESTIONS: list[Body] = [
    TipsRequest(start=0, count=64),
    TipsReply(length=1, tips=[TIP]),
    CommitsRequest(start=0, count=2),
    CommitsReply(commits=[next(body for body in BODIES if isinstance(body, Commit)).encode()]),
    HaveRequest(),
    HaveReply(length=3, oldest_result=1, checkpoints=[0, 3]),
    LeavesRequest(blob=TIP),
    LeavesReply(leaves=[TIP, RUN]),
    BlobRequest(blob=TIP, chunks=b"\x03"),
    BlobReply(chunks=b"\x07", more=True, apart=False, neighbours=[ONE.peer_id]),
    ChunkNews(blob=TIP, chunks=[2]),
    ChunksRequest(blob=TIP, chunks=[0, 1]),
    ChunksReply(chunks=[1], busy=[0]),
    ChunkHeader(blob=TIP, chunk=1),
    ExchangeAsk(plan=TIP, fragment=0, chunk=1),
    PartRequest(root=TIP, chunk=0, offset=0, length=9),
    PartReply(proof=[TIP], data=b"data"),
    EvidenceRequest(evidence=TIP, offset=0, length=9),
    HelloReply(protocol=1, version="1", clock=1_700_000_000),
    make_hello(RUN, Role.TRAINER, b"proof", "1"),
]
EVIDENCE = [
    encode_evidence(case)
    for case in (
        WrongAverage(
            plan=PLAN,
            statement=pack(ONE, RUN, AVERAGE).raw,
            parts=[AveragedPart(member=0, proof=[TIP], data=b"part")],
        ),
        TwoStatements(first=seal(ONE, RUN, "ready", BODIES[2].encode()).raw, second=b"second"),
        TwoStatements(first=pack(ONE, RUN, VOTE).raw, second=pack(ONE, RUN, ROLL).raw),
    )
]
GUEST = Identity.from_seed(bytes([1]) * 32).peer_id
PROOFS = [
    make_proof(bound_token(ONE, RUN, GUEST, expires=1), RUN, GUEST),
    make_proof(bearer_token(ONE, RUN, ONE, expires=1, until_round=9), RUN, GUEST, ONE),
]
HEADER = PushHeader(plan=TIP, fragment=0, chunk=0, proof=[TIP], statement=pack(ONE, RUN, AVERAGE).raw)
