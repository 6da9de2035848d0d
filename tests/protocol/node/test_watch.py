"""The clock of a node on a table: whose silence it judges."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from protocol.events.events import Event, PeerSuspected
from protocol.membership.activity import Activity
from protocol.membership.heartbeats import FailureDetector
from protocol.membership.liveness import BEAT_S, SUSPECT_BEATS, Membership
from protocol.node.lifecycle import TICK_S, LivenessTicker
from protocol.node.rounds import Behind
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

    def peer_suspected(peer: PeerId) -> None:
        dead.setdefault(peer, trio.current_time())

    async def main() -> None:
        membership = Membership(ME.peer_id, 0.0, TheseMembers())
        membership.on_connected(ANN.peer_id, 0.0)
        membership.on_heartbeat(ANN.peer_id, a_heartbeat(), 0.0, ANN.peer_id)
        current: Any = SimpleNamespace(running=None, peer_suspected=peer_suspected)
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


def test_nobody_is_silent_while_our_own_address_is_gone() -> None:
    assert 0 <= suspected_at(MovingNetwork()) - MOVING_S - SUSPECT_BEATS * BEAT_S <= TICK_S


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize(
    ("eviction_s", "gap_s", "deciding", "comes_back", "gives_up"),
    [
        (20.0, 17.0, False, True, True),
        (20.0, 17.0, True, True, False),
        (20.0, 12.0, False, False, False),
        (1.0, 0.1, False, False, False),
        (1.0, 0.6, False, True, True),
    ],
)
async def test_a_peer_that_did_not_run_gives_up_its_round_unless_it_is_certified(
    eviction_s: float, gap_s: float, deciding: bool, comes_back: bool, gives_up: bool
) -> None:
    """A computer was suspended: the clock of the boot has gone on, and the other one has not."""
    nobody_else: Any = SimpleNamespace(move=None, has_claims=lambda known=None: False, wants_back=lambda: False)
    rounds: Any = SimpleNamespace(eviction_s=eviction_s)
    ended: list[object] = []
    jumped = [0.0]
    activity = Activity(lambda event: None)
    activity.note_present()
    runner = SimpleNamespace(deciding=deciding, end=ended.append, exchanges=SimpleNamespace(any=False))
    current: Any = SimpleNamespace(running=runner, peer_suspected=lambda peer: None)
    session = a_session(RUN, TableNetwork(), [])
    detector = FailureDetector(session, Guard(session), Membership(ME.peer_id, 0.0, TheseMembers()), current)
    ticker = LivenessTicker(rounds, detector, activity, nobody_else, current, lambda: trio.current_time() + jumped[0])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ticker.run)
        await trio.sleep(10 * TICK_S)
        assert not activity.was_away and not ended
        jumped[0] = gap_s
        await trio.sleep(10 * TICK_S)
        nursery.cancel_scope.cancel()
    assert activity.was_away is comes_back
    assert ended == ([Behind()] if gives_up else [])
