"""The queue of a round: bounded in bytes, by bringer and together; notes come first; closed, it drops."""

from __future__ import annotations

import trio

from protocol.agreement.events import Arrived, ExchangeMoved, StateHashed, Tick
from protocol.events.events import Dropped, Event
from protocol.node.round_runner import QUEUE, QUEUE_BYTES, QUEUE_BYTES_PER_PEER, Inbox
from protocol.wire.hashes import ZERO_HASH, Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import pack
from protocol.wire.presence import Goodbye
from tests.protocol.peers import ANN, BOB, ME, TableNetwork, a_session

RUN = Hash(b"\x07" * 32)
BODY = Goodbye(incarnation=1, seq=1)
ENVELOPE = pack(ANN, RUN, BODY)
SIZE = QUEUE_BYTES // QUEUE
"""What a small statement counts for."""


def an_inbox(events: list[Event]) -> Inbox:
    return Inbox(a_session(RUN, TableNetwork(), events))


async def test_events_come_in_order_and_notes_are_taken_once() -> None:
    events = list[Event]()
    inbox = an_inbox(events)
    inbox.tell(Tick())
    inbox.receive(ANN.peer_id, BODY, ENVELOPE)
    for digest in (ZERO_HASH, RUN):
        inbox.note(StateHashed(digest))
    inbox.note(ExchangeMoved())
    assert [note for note, _ in inbox.take_notes()] == [StateHashed(RUN), ExchangeMoved()]
    assert inbox.take_notes() == []
    assert [await inbox.next(), await inbox.next()] == [Tick(), Arrived(ANN.peer_id, BODY, ENVELOPE.signature)]


async def test_one_bringer_cannot_take_the_room_of_others() -> None:
    events = list[Event]()
    inbox = an_inbox(events)
    for _ in range(QUEUE_BYTES_PER_PEER // SIZE):
        inbox.receive(ANN.peer_id, BODY, ENVELOPE, by=BOB.peer_id)
    assert events == []
    inbox.receive(ANN.peer_id, BODY, ENVELOPE, by=BOB.peer_id)
    assert events == [Dropped(BOB.peer_id, "statement", "too many bytes are waiting")]
    inbox.receive(ANN.peer_id, BODY, ENVELOPE)
    await inbox.next()
    inbox.receive(ANN.peer_id, BODY, ENVELOPE, by=BOB.peer_id)
    assert len(events) == 1, "one was handled, and another has room"


async def test_all_together_are_bounded_and_our_own_events_are_too() -> None:
    events = list[Event]()
    inbox = an_inbox(events)
    await trio.lowlevel.checkpoint()
    for number in range(QUEUE):
        inbox.receive(ANN.peer_id, BODY, ENVELOPE, by=PeerId(f"peer {number % 8}"))
    inbox.receive(ANN.peer_id, BODY, ENVELOPE)
    inbox.tell(Tick())
    assert [event.peer for event in events if isinstance(event, Dropped)] == [ANN.peer_id, ME.peer_id]


async def test_after_the_round_everything_is_dropped_in_silence() -> None:
    events = list[Event]()
    inbox = an_inbox(events)
    await inbox.aclose()
    inbox.tell(Tick())
    inbox.receive(ANN.peer_id, BODY, ENVELOPE)
    assert events == []
