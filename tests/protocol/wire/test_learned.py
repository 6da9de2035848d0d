"""The batches that a contribution was made of: one encoding, bounded, and small enough for the largest record."""

from __future__ import annotations

import math

import pytest

from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_GOSSIP_BYTES
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import Identity
from protocol.wire.messages import (
    ENTRY_BYTES,
    MAX_USED,
    Learned,
    Ready,
    UsedBatch,
    UsedOfAuthor,
    check_learned,
    learned_from,
    pack,
    unpack,
)
from tests.protocol.peers import a_first_ready

ANN, BOB = sorted(Identity.from_seed(bytes([number]) * 32).peer_id for number in (1, 2))
RUN = hash_bytes("test", b"run")


def root(number: int) -> Hash:
    return hash_bytes("test", number.to_bytes(4, "big"))


def test_batches_come_back_whatever_their_order() -> None:
    batches = [UsedBatch(BOB, root(1), 300), UsedBatch(ANN, root(2), 2**33), UsedBatch(ANN, root(3), 0)]
    learned = learned_from(batches, 0.25)
    assert set(learned.batches) == set(batches) and learned == learned_from(batches[::-1], 0.25)
    check_learned(learned, 3, 2**33)
    ready = a_first_ready(rollouts=learned)
    sender, body, _ = unpack(pack(Identity.from_seed(bytes(32)), RUN, ready).raw, RUN)
    assert body == ready and isinstance(body, Ready) and body.rollouts is not None and body.rollouts.root == learned.root


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 1e300, None])
def test_a_reward_that_is_no_number_is_not_said(reward: float | None) -> None:
    assert learned_from([UsedBatch(ANN, root(1), 1)], reward).reward is None


@pytest.mark.parametrize(
    "used, flaw",
    [
        ([(ANN, bytes(ENTRY_BYTES + 1))], "in the middle"),
        ([(ANN, bytes(ENTRY_BYTES) * 2)], "twice, or not in order"),
        ([(ANN, b"\x01" * ENTRY_BYTES + bytes(ENTRY_BYTES))], "twice, or not in order"),
        ([(BOB, bytes(ENTRY_BYTES)), (ANN, bytes(ENTRY_BYTES))], "twice, or not in order"),
        ([(ANN, bytes(ENTRY_BYTES)), (ANN, b"\x01" + bytes(ENTRY_BYTES - 1))], "twice, or not in order"),
        ([(ANN, b"".join(bytes([number]) + bytes(ENTRY_BYTES - 1) for number in range(4)))], "at most 3 in a round"),
        ([(ANN, bytes(ENTRY_BYTES - 1) + b"\x65")], "more tokens"),
    ],
)
def test_what_no_honest_member_says_is_refused(used: list[tuple[str, bytes]], flaw: str) -> None:
    learned = Learned(used=[UsedOfAuthor(author=author, batches=batches) for author, batches in used], reward=None)
    with pytest.raises(Malformed, match=flaw):
        check_learned(learned, 3, 100)


def test_the_most_batches_of_as_many_peers_fit_into_a_gossiped_ready() -> None:
    authors = [Identity.from_seed(number.to_bytes(32, "big")).peer_id for number in range(MAX_USED)]
    learned = learned_from([UsedBatch(author, root(number), 2**39) for number, author in enumerate(authors)], 0.5)
    ready = a_first_ready(rollouts=learned, weights=bytes(32), admission=bytes(512))
    assert len(pack(Identity.from_seed(bytes(32)), RUN, ready).raw) < MAX_GOSSIP_BYTES
