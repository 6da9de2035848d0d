"""The losses of several sources in READYs and records: one encoding, and means by tokens."""

from __future__ import annotations

import math

import pytest

from protocol.chain.records import check_claims
from protocol.run.manifest import RunManifest
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import Identity
from protocol.wire.messages import (
    MAX_CLAIMED,
    SourceMean,
    losses_from,
    losses_in,
    member_of,
    pack,
    ready_of,
    unpack,
)
from tests.protocol.council import BASE, PEERS, RECORD, SETTINGS, a_ready, members

ANN = Identity.from_seed(bytes([1]) * 32)
RUN = hash_bytes("test", b"run")
TWO = [SourceMean(0, 30, 2.0), SourceMean(3, 10, 4.0)]
STATED = losses_from(TWO)


def mixing(sources: int) -> RunManifest:
    """A run that mixes so many sources."""
    data = SETTINGS.manifest.data.model_copy(update={"sources": [object()] * sources})
    return SETTINGS.manifest.model_copy(update={"data": data})


def test_losses_come_back_and_are_not_written_if_there_are_none() -> None:
    ready = a_ready(losses=STATED)
    assert unpack(pack(ANN, RUN, ready).raw, RUN)[1] == ready and losses_in(ready.losses) == TWO
    assert ready_of(member_of(ANN.peer_id, ready, bytes(64)), 5, 0, ready.base, ready.state) == ready
    assert b"losses" in ready.encode() and b"losses" not in a_ready().encode()
    assert losses_from(TWO[::-1]) == STATED, "one order"


@pytest.mark.parametrize(
    "stated",
    [
        STATED[:-1],
        losses_from([SourceMean(4, 1, 1.0)]),
        losses_from(TWO[1:]) + losses_from(TWO[:1]),
        losses_from([TWO[0], TWO[0]]),
        losses_from([SourceMean(0, 0, 1.0)]),
        losses_from([SourceMean(0, MAX_CLAIMED + 1, 1.0)]),
        losses_from([SourceMean(0, 1, math.nan)]),
        losses_from([SourceMean(0, 1, -math.inf)]),
        losses_from([SourceMean(0, 1, 1e30)]),
    ],
)
def test_losses_are_finite_numbers_of_the_sources_of_the_run_in_order(stated: bytes) -> None:
    check_claims(mixing(4), BASE, PEERS[0], a_ready(losses=STATED))
    with pytest.raises(Malformed, match="loss"):
        check_claims(mixing(4), BASE, PEERS[0], a_ready(losses=stated))


def test_a_run_without_sources_has_no_losses_of_sources() -> None:
    with pytest.raises(Malformed, match="does not have"):
        check_claims(SETTINGS.manifest, BASE, PEERS[0], a_ready(losses=STATED[:13]))


def test_a_record_has_the_mean_of_each_source_by_tokens() -> None:
    other = losses_from([SourceMean(3, 30, 8.0)])
    named = [*members(PEERS[0], losses=STATED), *members(PEERS[1], losses=other), *members(PEERS[2])]
    record = RECORD.model_copy(update={"members": named})
    assert record.losses == {0: 2.0, 3: 7.0} and RECORD.losses == {}
