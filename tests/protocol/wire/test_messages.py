"""Statements come back as they were said; anything else is malformed."""

from __future__ import annotations

import pytest

from protocol.events.status import WhyIdle
from protocol.formats.training import MAX_PROMPTS
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_FRAGMENTS, MAX_VIEW_CHANGE_BYTES, Body, decode_body, seal
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import Identity
from protocol.wire.messages import (
    Certificate,
    Finish,
    LockName,
    PrevoteCertificate,
    Ready,
    Signature,
    Step,
    UsedBatch,
    ViewChange,
    Vote,
    VoterState,
    learned_from,
    member_of,
    pack,
    ready_of,
    unpack,
)
from protocol.wire.presence import MAX_SAMPLE, Goodbye, Heartbeat, Measurement, Phase, Role, sample_line

ONE = Identity.from_seed(bytes(32))
RUN = hash_bytes("manifest", b"run")
TIP = hash_bytes("record", b"tip")
HEARTBEAT = Heartbeat(
    incarnation=1, seq=2, name="n", role=Role.TRAINER, phase=Phase.COMPUTING, why_idle=WhyIdle.BUSY,
    round=3, tip=TIP, steps=4, loss=5.5, tokens_per_s=6.0, up_bytes_per_s=0.0, down_bytes_per_s=0.0,
    addresses=["/ip4/127.0.0.1/tcp/1"], version="1",
)  # fmt: skip
HOSTILE_SAMPLES = [
    [],
    [1],
    ["a"] * (MAX_PROMPTS + 1),
    ["a" * (MAX_SAMPLE + 1)],
    ["a" * (1 << 20)],
    *(
        [f"a{text}b"]
        for text in ("\x1b[2J", "\n", "\0", "\x7f", "\x9b31m", "\u202e", "\u2066", "\u200f", "\u061c", "\u2028")
    ),
]
"""Samples that a terminal would obey, that turn the text beside them, that are too long or too many; and none, written."""
CLAIMING = HEARTBEAT.model_copy(update={"measured": Measurement(rounds=3, tip=TIP, loss=1.5)})
READY = Ready(
    round=1, fragment=0, base=TIP, incarnation=2, serial=0, tokens=3, steps=4, loss=5.0, norm=6.0, root=TIP,
    state_digest=TIP, admission=b"proof",
)  # fmt: skip
ROLL = ViewChange(round=1, base=TIP, attempt=2, absent=[], held=b"\1", plan=None, lock=None, reduced=None)
NAME = LockName(attempt=1, absent=[ONE.peer_id], record_hash=TIP)
VOTE = Vote(round=1, base=TIP, attempt=2, step=Step.SECOND, absent=[ONE.peer_id], record_hash=TIP)
CERTIFICATE = Certificate(attempt=2, absent=[], votes=[Signature(peer=ONE.peer_id, signature=bytes(64))])
PROOF = PrevoteCertificate(round=1, base=TIP, record_hash=TIP, certificate=CERTIFICATE)
KEPT = VoterState(round=1, base=TIP, attempt=2, absent=[], first=TIP, second=None, lock=None, reduced=None)


@pytest.mark.parametrize(
    "body",
    [
        HEARTBEAT,
        CLAIMING,
        HEARTBEAT.model_copy(update={"team": "Night owls"}),
        READY,
        Goodbye(incarnation=1, seq=2),
        Finish(round=1, base=TIP),
        ROLL,
        ROLL.model_copy(update={"plan": TIP, "reduced": NAME}),
        VOTE,
        PROOF,
    ],
)
def test_round_trip(body: Body) -> None:
    sender, heard, envelope = unpack(pack(ONE, RUN, body).raw, RUN)
    assert (sender, heard, envelope.kind) == (ONE.peer_id, body, body.KIND)


def test_a_kind_that_nobody_knows_is_malformed() -> None:
    with pytest.raises(Malformed, match="unknown kind"):
        unpack(seal(ONE, RUN, "gossip", canonical.encode({})).raw, RUN)


def test_a_body_of_another_kind_is_malformed() -> None:
    with pytest.raises(Malformed):
        unpack(seal(ONE, RUN, "goodbye", READY.encode()).raw, RUN)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("round", -1), ("round", 2**60), ("round", True), ("round", "1"), ("tip", b"short"), ("loss", float("nan")),
        ("loss", float("inf")), ("role", "king"), ("name", "x" * 41), ("addresses", ["x"] * 9), ("addresses", "abc"),
        ("team", "x" * 25), ("team", ""), ("team", None), ("extra", 1),
        ("measured", {}), ("measured", {"rounds": 3, "tip": TIP, "loss": float("nan")}),
        ("measured", {"rounds": 3, "tip": TIP, "loss": float("inf")}),
        ("measured", {"rounds": 3, "tip": TIP, "loss": -0.5}), ("measured", {"rounds": -1, "tip": TIP, "loss": 1.5}),
        *(("measured", {"rounds": 3, "tip": TIP, "loss": 1.5, "samples": samples}) for samples in HOSTILE_SAMPLES),
        ("measured", {"rounds": 3, "tip": b"short", "loss": 1.5}), ("measured", {"rounds": 3, "tip": TIP, "loss": 1e7}),
    ],
)  # fmt: skip
def test_values_out_of_range_are_malformed(field: str, value: object) -> None:
    fields = canonical.decode(HEARTBEAT.encode(), max_bytes=10_000)
    body = canonical.encode({**fields, field: value})
    with pytest.raises(Malformed):
        unpack(seal(ONE, RUN, "heartbeat", body).raw, RUN)


@pytest.mark.parametrize("fragment", [-1, MAX_FRAGMENTS, 2**40, True, 0.0, None])
def test_a_fragment_that_no_run_has_is_malformed(fragment: object) -> None:
    fields = canonical.decode(READY.encode(), max_bytes=10_000)
    with pytest.raises(Malformed):
        unpack(seal(ONE, RUN, "ready", canonical.encode({**fields, "fragment": fragment})).raw, RUN)


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        (VOTE, "step", 0),
        (VOTE, "step", 3),
        (VOTE, "step", True),
        (VOTE, "absent", ["nobody"]),
        (VOTE, "absent", [ONE.peer_id] * 65),
        (ROLL, "attempt", -1),
        (ROLL, "held", bytes(9)),
        (ROLL, "plan", b"short"),
        (ROLL, "lock", {"attempt": 1}),
        (PROOF, "certificate", None),
    ],
)
def test_votes_and_view_changes_that_nobody_casts_are_malformed(body: Body, field: str, value: object) -> None:
    fields = canonical.decode(body.encode(), max_bytes=10_000)
    with pytest.raises(Malformed):
        unpack(seal(ONE, RUN, body.KIND, canonical.encode({**fields, field: value})).raw, RUN)


def test_the_two_votes_of_a_ballot_are_different_statements() -> None:
    first = VOTE.model_copy(update={"step": Step.FIRST})
    assert first.encode() != VOTE.encode()
    assert pack(ONE, RUN, first).signature != pack(ONE, RUN, VOTE).signature


def test_the_largest_view_change_is_within_its_limit() -> None:
    electors: list[str] = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(64)]
    name = LockName(attempt=2**53, absent=[], record_hash=TIP)
    largest = ViewChange(
        round=2**53,
        base=TIP,
        attempt=2**53,
        absent=electors,
        held=bytes(8),
        plan=TIP,
        lock=name,
        reduced=name.model_copy(update={"absent": electors}),
    )
    raw = pack(ONE, RUN, largest).raw
    assert len(raw) <= MAX_VIEW_CHANGE_BYTES
    assert unpack(raw, RUN, max_bytes=MAX_VIEW_CHANGE_BYTES)[1] == largest


def test_what_binds_an_elector_is_kept_and_never_said() -> None:
    assert decode_body(VoterState, KEPT.encode()) == KEPT
    with pytest.raises(Malformed, match="unknown kind"):
        unpack(pack(ONE, RUN, KEPT).raw, RUN)


def test_what_came_later_is_not_written_where_it_says_nothing() -> None:
    member = member_of(ONE.peer_id, READY, pack(ONE, RUN, READY).signature)
    assert not {"rollouts", "weights"} & {
        *canonical.decode(READY.encode(), max_bytes=1 << 12),
        *canonical.decode(member.encode(), max_bytes=1 << 12),
    }
    fields = canonical.decode(READY.encode(), max_bytes=1 << 12)
    assert isinstance(fields, dict)
    with pytest.raises(Malformed):
        decode_body(Ready, canonical.encode({**fields, "rollouts": None}))
    batches = learned_from([UsedBatch(ONE.peer_id, hash_bytes("b", b""), 7)], 0.5)
    learned = READY.model_copy(update={"rollouts": batches, "weights": bytes(32)})
    assert decode_body(Ready, learned.encode()) == learned and learned.state == READY.state_digest + bytes(32)
    named = member_of(ONE.peer_id, learned, pack(ONE, RUN, learned).signature)
    assert ready_of(named, READY.round, READY.fragment, READY.base, learned.state) == learned


@pytest.mark.parametrize(
    "text",
    ["x" * 999, "宽" * 999, "\x1b[2J\x9b31m", "a\u202eb\u2066c", "\0", "\n\r\t\u2028\u00a0", "👩\u200d🚀", "\ufffd"],
    ids=["long", "wide", "escapes", "bidi", "zero", "spaces", "joined", "unknown"],
)
def test_whatever_a_model_writes_becomes_a_sample_that_peers_accept(text: str) -> None:
    line = sample_line(text)
    assert line.isprintable() and len(line) <= MAX_SAMPLE
    claim = Measurement(rounds=3, tip=TIP, loss=1.5, samples=[line] * MAX_PROMPTS)
    beat = HEARTBEAT.model_copy(update={"measured": claim})
    assert unpack(pack(ONE, RUN, beat).raw, RUN)[1] == beat
