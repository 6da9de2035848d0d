"""Whatever a handler raises for a remote statement ends in the guard; floods of drops are told with their number."""

from __future__ import annotations

import pytest
import trio

from protocol.events.events import Dropped, Event, HandlerFailed, Notice
from protocol.node.router import MAX_TOLD, TELL_EVERY_S, RateLimitedEmitter
from protocol.transport.handlers import Fault, Guard
from protocol.transport.interface import Offence, Refused
from protocol.wire.hashes import Hash
from tests.protocol.peers import ANN, BOB, ME, TableNetwork, a_session

pytestmark = pytest.mark.usefixtures("virtual_time")
RUN = Hash(b"\x07" * 32)


async def test_a_handler_that_raises_costs_its_sender_the_connection_and_nothing_else() -> None:
    events, network = list[Event](), TableNetwork()
    guard = Guard(a_session(RUN, network, events))

    async def handle() -> None:
        with guard.watch(ANN.peer_id, "record_proposal"):
            await trio.lowlevel.checkpoint()
            raise KeyError("no such attempt")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(handle)
    [event] = events
    assert isinstance(event, HandlerFailed) and (event.peer, event.what) == (ANN.peer_id, "record_proposal")
    assert "KeyError" in event.reason and "test_guard.py" in event.reason
    assert network.forgotten == [ANN.peer_id] and guard.failures == 1


@pytest.mark.parametrize("error", [OSError("no more files"), MemoryError()])
async def test_trouble_of_our_own_is_counted_and_held_against_nobody(error: Exception) -> None:
    events, network = list[Event](), TableNetwork()
    guard = Guard(a_session(RUN, network, events))
    await trio.lowlevel.checkpoint()
    with guard.watch(ANN.peer_id, "question 'chunk'"):
        raise error
    with pytest.raises(Fault), guard.report(ME.peer_id, "tick"):
        raise ValueError
    assert guard.failures == len(events) == 2 and network.forgotten == []


@pytest.mark.parametrize("error", [Refused("no"), Offence("never"), LookupError()])
async def test_refusals_and_what_may_pass_go_through(error: Exception) -> None:
    events, network = list[Event](), TableNetwork()
    guard = Guard(a_session(RUN, network, events))
    await trio.lowlevel.checkpoint()
    with pytest.raises(type(error)), guard.watch(ANN.peer_id, "question", passing=(LookupError,)):
        raise error
    assert events == [] and network.forgotten == []


async def test_of_a_group_the_failure_is_caught_and_the_cancellation_goes_through() -> None:
    events, network = list[Event](), TableNetwork()
    guard = Guard(a_session(RUN, network, events))

    async def fail() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
        raise ZeroDivisionError

    with trio.move_on_after(0.5) as scope:
        with guard.watch(ANN.peer_id, "accusation"):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)
                await trio.sleep_forever()
    assert scope.cancelled_caught
    assert [event.reason.split(":")[0] for event in events if isinstance(event, HandlerFailed)] == ["ZeroDivisionError"]
    with guard.watch(BOB.peer_id, "accusation"):
        raise ExceptionGroup("", [ValueError("one"), ExceptionGroup("", [KeyError("two")])])
    assert network.forgotten == [ANN.peer_id, BOB.peer_id]


async def test_a_flood_of_drops_is_told_once_in_a_while_with_its_number() -> None:
    told: list[Event] = []
    thinned = RateLimitedEmitter(told.append)
    for _ in range(1000):
        thinned(Dropped("ann", "gossip", "malformed"))
    thinned(Dropped("ann", "chunk", "another kind"))
    thinned(Notice("info", "a notice"))
    assert told == [
        Dropped("ann", "gossip", "malformed"),
        Dropped("ann", "chunk", "another kind"),
        Notice("info", "a notice"),
    ]
    await trio.sleep(TELL_EVERY_S)
    thinned(Dropped("ann", "gossip", "again"))
    assert told[-1] == Dropped("ann", "gossip", "again", 1000)


async def test_drops_of_many_peers_are_told_of_some() -> None:
    await trio.lowlevel.checkpoint()
    told: list[Event] = []
    thinned = RateLimitedEmitter(told.append)
    for number in range(5000):
        thinned(Dropped(f"peer {number}", "gossip", "malformed"))
    assert len(told) == MAX_TOLD
