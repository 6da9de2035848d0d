"""What it costs a peer that a link brings nothing, or half of something."""

from __future__ import annotations

import socket

import pytest
import trio
import trio.testing

from protocol.transport.bulk import GRACE_S, Receiving
from protocol.transport.bulk_link import HEAD, TAG_BYTES, FrameKind, Keys, Link
from protocol.transport.rate_limit import RateLimit
from protocol.transport.reputation import FULL_SCORE, SLOWNESS, Reputation
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import Identity, PeerId
from tests.protocol.transport.recorder import Recorder

PEER, ME = Identity.from_seed(b"\x01" * 32).peer_id, Identity.from_seed(b"\x02" * 32).peer_id
KEYS = Keys.agree(hash_bytes("manifest", b"receiving"), PEER, ME, bytes(16), bytes(64))


@pytest.mark.parametrize(
    ("came", "penalty"),
    [(b"", 0.0), (HEAD.pack(TAG_BYTES + 20, FrameKind.OPEN, 0), SLOWNESS)],
    ids=["nothing", "the head of a frame"],
)
def test_an_idle_link_ends_and_only_half_a_frame_costs_something(came: bytes, penalty: float) -> None:
    banned: list[PeerId] = []

    async def main() -> None:
        reputation = Reputation(lambda: 0.0, lambda peer, why: banned.append(peer))
        with socket.create_server(("127.0.0.1", 0)) as server:
            there = socket.create_connection(server.getsockname())
            here, _ = server.accept()
        there.sendall(came)
        assert here.recv(len(came), socket.MSG_PEEK | socket.MSG_WAITALL) == came
        link = Link(here, KEYS, dialled=False)
        await Receiving(Recorder(), RateLimit(), reputation).serve(PEER, link)
        assert trio.current_time() == GRACE_S
        reputation.penalise(PEER, FULL_SCORE - penalty - 1, "all but one of what is left")
        assert not banned
        reputation.penalise(PEER, 1, "the last")
        assert banned == [PEER]
        link.close()
        there.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
