"""The clock of a node on a table: whose silence it judges."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from protocol.events.events import Event, PeerSuspected
from protocol.membership.heartbeats import FailureDetector
from protocol.membership.liveness import BEAT_S, SUSPECT_BEATS, Membership
from protocol.node.lifecycle import TICK_S, LivenessTicker
from protocol.transport.handlers import Guard
from protocol.wire.hashes import Hash, chunk_hash
from protocol.wire.identity import PeerId
from tests.protocol.peers import ANN, ME, TableNetwork, TheseMembers, a_heartbeat, a_session

RUN: Hash = chunk_hash(b"a run")
MOVING_S = 15.0


class MovingNetwork(TableNetwork):
    """Its address is gone for the first `MOVING_S`."""

    def is_moving(self) -> bool:
        return trio.current_time() < MOVING_S


def suspected_at(network: TableNetwork) -> float:
    """When Ann is suspected, who was heard at the start and never again."""
    events: list[Event] = []
    dead: dict[PeerId, float] = {}
    nobody_else: Any = SimpleNamespace(move=None, has_claims=lambda known: False, wants_back=lambda: False)
    rounds: Any = SimpleNamespace(eviction_s=60.0)

    def peer_dead(peer: PeerId) -> None:
        dead.setdefault(peer, trio.current_time())

    async def main() -> None:
        membership = Membership(ME.peer_id, 0.0, TheseMembers())
        membership.on_connected(ANN.peer_id, 0.0)
        membership.on_heartbeat(ANN.peer_id, a_heartbeat(), 0.0, ANN.peer_id)
        current: Any = SimpleNamespace(runner=None, peer_dead=peer_dead)
        activity: Any = SimpleNamespace(was_away=False)
        session = a_session(RUN, network, events)
        detector = FailureDetector(session, Guard(session), membership, current)
        watch = LivenessTicker(rounds, detector, activity, nobody_else, current, trio.current_time)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            await trio.sleep(MOVING_S * 2)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert isinstance(events[0], PeerSuspected) and not events[0].disconnected
    return dead[ANN.peer_id]


def test_a_silent_peer_is_suspected_after_three_heartbeats() -> None:
    assert 0 < suspected_at(TableNetwork()) - SUSPECT_BEATS * BEAT_S <= TICK_S


def test_nobody_is_silent_while_our_own_address_is_gone() -> None:
    assert 0 <= suspected_at(MovingNetwork()) - MOVING_S - SUSPECT_BEATS * BEAT_S <= TICK_S
