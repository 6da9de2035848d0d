"""What a round gets: its bounded queue, and what membership has heard of the others."""

from __future__ import annotations

import trio
import trio.testing

from protocol.agreement.events import Arrived, ExchangeMoved, StateHashed, Tick
from protocol.chain.base import Base
from protocol.events.events import Dropped, Event
from protocol.membership.liveness import Membership
from protocol.node.round_parts import QUEUE, QUEUE_BYTES, QUEUE_BYTES_PER_PEER, Inbox, Surroundings
from protocol.wire.hashes import ZERO_HASH, Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import pack
from protocol.wire.presence import Goodbye, Phase
from tests.protocol.peers import ANN, BOB, ME, TableNetwork, TheseMembers, a_heartbeat, a_session

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


TIP = Hash(b"\x09" * 32)
US, *OTHERS = PEERS = sorted(Identity.from_seed(bytes([number]) * 32).peer_id for number in range(5))


def ahead(steps: dict[PeerId, int], electors: list[PeerId], tip: Hash = TIP, phase: Phase = Phase.COMPUTING) -> int:
    """By how much the others are ahead when these peers have done so many steps on `tip`."""

    async def main() -> int:
        membership = Membership(US, 0.0, TheseMembers(*PEERS))
        for peer, done in steps.items():
            beat = a_heartbeat(round=7, tip=tip, steps=done, phase=phase)
            membership.on_connected(peer, trio.current_time())
            membership.on_heartbeat(peer, beat, trio.current_time(), peer)
        return Surroundings(US, membership, Base(7, 0, TIP, tuple(electors), tuple(electors))).steps_ahead()

    return trio.run(main, clock=trio.testing.MockClock())


def test_the_others_are_ahead_by_what_more_than_half_of_them_have_done() -> None:
    for done, steps in ([], 0), ([6], 6), ([4, 6], 4), ([0, 5, 9], 5), ([1, 3, 5, 7], 3):
        electors = OTHERS[: len(done)]
        assert ahead(dict(zip(electors, done, strict=True)), [US, *electors]) == steps


def test_strangers_peers_elsewhere_and_those_that_do_not_train_now_are_ahead_of_nobody() -> None:
    done = dict.fromkeys(OTHERS, 6)
    assert ahead(done, []) == 0 and ahead(done, [US]) == 0
    assert ahead(done, OTHERS, tip=Hash(b"\x08" * 32)) == 0
    assert ahead(done, OTHERS, phase=Phase.SYNCING) == 0
    assert ahead({OTHERS[0]: 6}, OTHERS) == 0, "the others were not heard"
    assert ahead(done, OTHERS, phase=Phase.EXCHANGING) == 6
