"""The signed envelope lets in what its sender said, in this run, as this kind; nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import is_authentic, open_envelope, rebuild, seal
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import Identity

ONE = Identity.from_seed(bytes(32))
TWO = Identity.from_seed(bytes([2]) * 32)
RUN = hash_bytes("manifest", b"run")
OTHER_RUN = hash_bytes("manifest", b"other")
GOOD = seal(ONE, RUN, "ready", b"body")


def test_round_trip() -> None:
    assert open_envelope(GOOD.raw, RUN) == GOOD
    assert is_authentic(GOOD)


def test_another_run_is_refused() -> None:
    with pytest.raises(Malformed, match="another run"):
        open_envelope(GOOD.raw, OTHER_RUN)


@pytest.mark.parametrize(
    "change", [{"run": OTHER_RUN}, {"kind": "vote"}, {"sender": TWO.peer_id}, {"body": b"Body"}, {"signature": bytes(64)}]
)
def test_a_changed_part_breaks_the_signature(change: dict[str, object]) -> None:
    forged = replace(GOOD, **change)  # type: ignore[arg-type]
    raw = rebuild(forged.run, forged.kind, forged.sender, forged.body, forged.signature).raw
    assert not is_authentic(forged)
    with pytest.raises(Malformed, match="false signature"):
        open_envelope(raw, forged.run)


@pytest.mark.parametrize("version", [0, 2, True, "1", None, 1.0])
def test_another_version_is_refused(version: object) -> None:
    fields = canonical.decode(GOOD.raw, max_bytes=1000)
    with pytest.raises(Malformed, match="version"):
        open_envelope(canonical.encode({**fields, "v": version}), RUN)


def test_an_additional_field_is_refused() -> None:
    fields = canonical.decode(GOOD.raw, max_bytes=1000)
    with pytest.raises(Malformed):
        open_envelope(canonical.encode({**fields, "x": 1}), RUN)


@given(st.integers(0, len(GOOD.raw) - 1), st.integers(0, 255))
def test_one_changed_byte_is_refused(place: int, byte: int) -> None:
    raw = bytearray(GOOD.raw)
    raw[place] = byte
    if bytes(raw) != GOOD.raw:
        with pytest.raises(Malformed):
            open_envelope(bytes(raw), RUN)
