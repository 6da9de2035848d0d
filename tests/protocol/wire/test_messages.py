"""Statements come back as they were said; anything else is malformed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import seal
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import Identity
from protocol.wire.messages import (
    MAX_FRAGMENTS,
    Body,
    Finish,
    Goodbye,
    Heartbeat,
    Measurement,
    Phase,
    Ready,
    Role,
    WhyIdle,
    pack,
    unpack,
)

ONE = Identity.from_seed(bytes(32))
RUN = hash_bytes("manifest", b"run")
TIP = hash_bytes("record", b"tip")
HEARTBEAT = Heartbeat(
    incarnation=1, seq=2, name="n", role=Role.TRAINER, phase=Phase.COMPUTING, why_idle=WhyIdle.BUSY, why_detail="",
    round=3, tip=TIP, steps=4, loss=5.5, tokens_per_s=6.0, up_bytes_per_s=0.0, down_bytes_per_s=0.0,
    addresses=["/ip4/127.0.0.1/tcp/1"], version="1",
)  # fmt: skip
CLAIMING = HEARTBEAT.model_copy(update={"measured": Measurement(rounds=3, tip=TIP, loss=1.5)})
READY = Ready(
    round=1, fragment=0, base=TIP, incarnation=2, serial=0, tokens=3, steps=4, loss=5.0, norm=6.0, root=TIP,
    state_digest=TIP, admission=b"proof",
)  # fmt: skip


@pytest.mark.parametrize("body", [HEARTBEAT, CLAIMING, READY, Goodbye(incarnation=1, seq=2), Finish(round=1, base=TIP)])
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
        ("extra", 1), ("measured", {}), ("measured", {"rounds": 3, "tip": TIP, "loss": float("nan")}),
        ("measured", {"rounds": 3, "tip": TIP, "loss": float("inf")}),
        ("measured", {"rounds": 3, "tip": TIP, "loss": -0.5}), ("measured", {"rounds": -1, "tip": TIP, "loss": 1.5}),
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


@given(st.sampled_from(["heartbeat", "ready", "proposal", "promise", "motion", "commit", "x"]), st.binary(max_size=60))
def test_signed_rubbish_is_malformed(kind: str, body: bytes) -> None:
    with pytest.raises(Malformed):
        unpack(seal(ONE, RUN, kind, body).raw, RUN)


@given(st.binary(max_size=300))
def test_random_bytes_are_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        unpack(data, RUN)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**63) | st.floats() | st.text(max_size=5) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(READY.model_dump())), json_like)
def test_a_field_of_any_value_is_accepted_or_malformed(field: str, value: object) -> None:
    body = canonical.encode({**READY.model_dump(), field: value})
    try:
        unpack(seal(ONE, RUN, "ready", body).raw, RUN)
    except Malformed:
        pass
