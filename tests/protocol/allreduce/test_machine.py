"""The exchange as a pure state machine: debts and patience, deaths before it has started, who is asked for what."""

from __future__ import annotations

import pytest

from protocol.allreduce.lateness import ExchangeLimits
from protocol.allreduce.machine import (
    AllReduceDone,
    Ask,
    Asked,
    Averaged,
    ContributionReady,
    ExchangeEffect,
    ExchangeEvent,
    ExchangeMachine,
    ExchangeTick,
    Lost,
    Moving,
    PartArrived,
    PeerBack,
    PeerDead,
    Reduce,
    Regained,
    ResultArrived,
    SendPart,
    SendResult,
    SignedEarly,
    SuspicionRaised,
)
from protocol.allreduce.runner import entry_of
from protocol.wire.hashes import chunk_hash
from protocol.wire.identity import Identity, PeerId
from tests.protocol.members import a_plan_of

STALL_S = 10.0
LIMITS = ExchangeLimits(STALL_S)
PEERS = sorted(Identity.from_seed(bytes([number]) * 32).peer_id for number in range(4))


def machine(me: PeerId, owners: bytes, limits: ExchangeLimits = LIMITS) -> ExchangeMachine:
    return ExchangeMachine(me, a_plan_of(PEERS, owners), limits, now=0.0)


def begun(me: PeerId, owners: bytes, limits: ExchangeLimits = LIMITS) -> ExchangeMachine:
    """A machine whose own contribution is ready."""
    made = machine(me, owners, limits)
    made.handle(ContributionReady(), 0.0)
    return made


def finish(exchange: ExchangeMachine, chunk: int, now: float) -> None:
    """Its owner's average arrives."""
    entry = entry_of(chunk_hash(bytes([chunk])), range(4), 4)
    exchange.handle(ResultArrived(exchange.owner(chunk), chunk, entry, exchange.owner(chunk)), now)


def lost_at(exchange: ExchangeMachine, now: float) -> list[PeerId]:
    """Who is given up at this tick."""
    return [effect.peer for effect in exchange.handle(ExchangeTick(), now) if isinstance(effect, Lost)]


def lines_are_quick(exchange: ExchangeMachine, chunk: int, *senders: PeerId) -> None:
    """Half of the others give their part of a chunk of ours at once, so that only `stall_s` counts."""
    for peer in senders:
        exchange.handle(PartArrived(peer, chunk), 0.0)


def test_until_somebody_has_delivered_anything_lines_may_be_slow() -> None:
    """Of members that all are silent, nobody is given up for 2.5 times `stall_s`, and no owner for twice that."""
    exchange = begun(PEERS[0], bytes([0, 3]))
    assert [lost_at(exchange, at * STALL_S) for at in (0.1, 1.1, 2.4, 2.7)] == [[], [], [], PEERS[1:]]
    exchange = begun(PEERS[0], bytes([3, 3]))
    assert [lost_at(exchange, at * STALL_S) for at in (0.1, 2.7, 4.9, 5.2)] == [[], [], [], [PEERS[3]]]


def test_the_patience_with_a_debt_begins_when_the_debt_does() -> None:
    """A member that has delivered everything is silent; when an owner dies, it owes its successor a part anew."""
    me = PEERS[0]
    for chunk in range(8):
        exchange = begun(me, bytes([3] * 8))
        for other in range(8):
            if other != chunk:
                finish(exchange, other, 0.0)
        exchange.handle(Moving(PEERS[3], held=False), 50.0)
        exchange.handle(ExchangeTick(), 50.0)
        exchange.handle(PeerDead(PEERS[3]), 50.0)
        if exchange.owner(chunk) == me:
            break
    assert exchange.owner(chunk) == me, "one of the chunks falls to us"
    assert set(exchange.waiting_for()) == {PEERS[1], PEERS[2]}
    assert not lost_at(exchange, 50.25), "they were silent with good reason"
    assert not lost_at(exchange, 50.0 + STALL_S)
    assert lost_at(exchange, 51.0 + STALL_S) == [PEERS[1], PEERS[2]]


ENTRY = entry_of(chunk_hash(b"average"), range(4), 4)
STRANGER = Identity.from_seed(b"\xff" * 32).peer_id


@pytest.mark.parametrize(
    ("event", "effects"),
    [
        (Asked(PEERS[1], 1), [SendPart(PEERS[1], 1)]),
        (Asked(PEERS[1], 2), []),
        (Asked(PEERS[1], -1), []),
        (Asked(STRANGER, 0), []),
        (Asked(PEERS[0], 0), []),
        (Moving(STRANGER, held=False), []),
        (PeerDead(STRANGER), []),
        (PeerDead(PEERS[0]), []),
        (PeerDead(PEERS[3]), [Lost(PEERS[3])]),
        (SuspicionRaised(STRANGER), []),
        (SuspicionRaised(PEERS[3]), [Lost(PEERS[3])]),
        (PeerBack(PEERS[3], restarted=False), []),
        (Averaged(0, ENTRY), [SendResult(peer, 0) for peer in PEERS[1:]]),
        (ResultArrived(PEERS[1], 1, ENTRY, PEERS[1]), []),
        (ExchangeTick(), []),
    ],
    ids=str,
)
def test_events_after_the_start(event: ExchangeEvent, effects: list[ExchangeEffect]) -> None:
    """We own the first of two chunks, the second peer owns the other one."""
    exchange = machine(PEERS[0], bytes([0, 1]))
    assert exchange.handle(ContributionReady(), 0.0) == [SendPart(PEERS[1], 1)]
    assert exchange.handle(event, 1.0) == effects


@pytest.mark.parametrize(
    ("ended", "restarted"),
    [
        ([PeerDead(PEERS[3])], False),
        ([SuspicionRaised(PEERS[3])], True),
        ([SuspicionRaised(PEERS[3]), PeerDead(PEERS[3])], False),
    ],
)
def test_a_member_that_left_or_was_started_again_is_sent_averages_and_not_waited_for(
    ended: list[ExchangeEvent], restarted: bool
) -> None:
    exchange = machine(PEERS[0], bytes([0, 1]))
    for event in (ContributionReady(), *ended):
        exchange.handle(event, 0.0)
    assert exchange.handle(Averaged(0, ENTRY), 1.0) == [SendResult(PEERS[1], 0), SendResult(PEERS[2], 0)]
    assert exchange.handle(PeerBack(PEERS[3], restarted), 2.0) == [SendResult(PEERS[3], 0)]
    assert exchange.handle(PeerBack(PEERS[3], restarted=False), 3.0) == [SendResult(PEERS[3], 0)]
    assert PEERS[3] in exchange.lost, "nobody waits for it"


def test_a_member_that_was_only_suspected_gives_its_part_when_it_is_heard_again() -> None:
    exchange = begun(PEERS[0], bytes([0, 0]))
    for peer in PEERS[1:3]:
        exchange.handle(PartArrived(peer, 0), 0.0)
    assert exchange.handle(SuspicionRaised(PEERS[3]), 6.0) == [Lost(PEERS[3]), Reduce(0, (0, 1, 2))]
    assert exchange.handle(SuspicionRaised(PEERS[3]), 10.0) == [], "it is silent for longer"
    assert exchange.handle(PeerBack(PEERS[3], restarted=False), 11.0) == [Regained(PEERS[3])]
    for peer in PEERS[1:3]:
        assert exchange.handle(PartArrived(peer, 1), 12.0) == [], "the fourth is waited for again"
    assert exchange.handle(PartArrived(PEERS[3], 1), 12.0) == [Reduce(1, (0, 1, 2, 3))]


def test_an_owner_that_was_only_suspected_averages_once_it_is_heard_again() -> None:
    """Its successor has averaged meanwhile: it gives its part as well, since the owner knows of no successor."""
    exchanges = {peer: machine(peer, bytes([3])) for peer in PEERS[:3]}
    for exchange in exchanges.values():
        exchange.handle(ContributionReady(), 0.0)
        exchange.handle(SuspicionRaised(PEERS[3]), 6.0)
    (successor,) = {exchange.owner(0) for exchange in exchanges.values()}
    waiting, other = [peer for peer in exchanges if peer != successor]
    averaging = exchanges[successor]
    averaging.handle(PartArrived(waiting, 0), 6.5)
    assert Reduce(0, tuple(sorted(map(PEERS.index, exchanges)))) in averaging.handle(PartArrived(other, 0), 6.5)
    averaging.handle(Averaged(0, ENTRY), 7.0)
    back = PeerBack(PEERS[3], restarted=False)
    assert [effect for effect in averaging.handle(back, 8.0) if isinstance(effect, SendPart)] == [SendPart(PEERS[3], 0)]
    assert averaging.is_needed(SendPart(PEERS[3], 0))
    for peer in (waiting, other):
        assert exchanges[peer].handle(back, 8.0) == [Regained(PEERS[3]), SendPart(PEERS[3], 0)]
        assert exchanges[peer].owner(0) == PEERS[3]
        assert exchanges[peer].failover.may_sign(successor, 0), "its average, for which we have asked, counts as well"


def test_who_is_suspected_again_and_again_gains_no_time() -> None:
    """A silent member that sends a heartbeat now and then is given up when one that is silent throughout is."""
    exchange = begun(PEERS[0], bytes([0, 0]))
    lines_are_quick(exchange, 1, *PEERS[1:3])
    given_up = []
    for second in range(1, 31):
        if second % 4 == 2:
            exchange.handle(SuspicionRaised(PEERS[3]), float(second))
        elif second % 4 == 3:
            exchange.handle(PeerBack(PEERS[3], restarted=False), float(second))
        given_up += [float(second)] * (PEERS[3] in lost_at(exchange, float(second)))
    assert len(given_up) == 1 and STALL_S < given_up[0] <= STALL_S + 2, given_up
    assert exchange.handle(PeerBack(PEERS[3], restarted=False), 31.0) == [], "what is silent for too long stays lost"


def test_the_last_result_ends_the_exchange_and_later_ones_change_nothing() -> None:
    exchange = machine(PEERS[0], bytes([1, 1]))
    assert exchange.handle(ResultArrived(PEERS[1], 0, ENTRY, PEERS[1]), 0.0) == []
    assert exchange.handle(ResultArrived(PEERS[1], 1, ENTRY, PEERS[1]), 0.0) == [AllReduceDone()]
    other = entry_of(chunk_hash(b"another"), range(4), 4)
    assert exchange.handle(ResultArrived(PEERS[2], 1, other, PEERS[1]), 0.0) == []
    assert exchange.adopt([ENTRY, other]) == [1] and exchange.adopt([ENTRY, ENTRY]) == []


def test_what_a_successor_signed_before_its_turn_is_asked_for_when_its_turn_comes() -> None:
    exchange = begun(PEERS[0], bytes([3, 0]))
    lines_are_quick(exchange, 1, PEERS[1], PEERS[3])
    assert all(exchange.handle(SignedEarly(peer, 0), 1.0) == [] for peer in PEERS[1:3])
    effects = exchange.handle(PeerDead(PEERS[3]), 2.0)
    owner = exchange.owner(0)
    assert owner in PEERS[1:3], "one of the others comes first"
    assert effects == [Lost(PEERS[3]), Ask(owner, 0)], "no part is sent for what is averaged"
    assert exchange.handle(ExchangeTick(), 5.0) == [Ask(owner, 0)], "until it comes, or its signer is given up"
    assert Lost(owner) in exchange.handle(ExchangeTick(), 5.5 + 2 * STALL_S)


def test_bytes_of_a_push_are_a_sign_of_life() -> None:
    exchange = machine(PEERS[0], bytes([0, 0]))
    exchange.handle(ContributionReady(), 0.0)
    lines_are_quick(exchange, 1, *PEERS[2:])
    assert lost_at(exchange, 1.0) == []
    exchange.handle(Moving(PEERS[1], held=False), STALL_S)
    assert lost_at(exchange, 1.1 + STALL_S) == PEERS[2:]
    assert lost_at(exchange, 0.1 + 2 * STALL_S) == [PEERS[1]]


def test_who_waits_for_room_is_not_silent_if_it_gave_what_is_averaged_next() -> None:
    """Two members gave a part each, and wait for room; that of the first chunk waits for the third, and no longer."""
    exchange = begun(PEERS[0], bytes([0, 0, 0]))
    for peer, chunk in ((PEERS[1], 0), (PEERS[2], 1)):
        exchange.handle(PartArrived(peer, chunk), 0.0)
        exchange.handle(Moving(peer, held=True), STALL_S)
    assert not lost_at(exchange, 1.0)
    for peer in PEERS[1:3]:
        exchange.handle(Moving(peer, held=True), STALL_S)
    assert lost_at(exchange, 1.1 + STALL_S) == PEERS[2:]


def test_a_member_that_does_not_count_is_not_waited_for_and_counts_when_it_is_in_time() -> None:
    exchange = begun(PEERS[0], bytes([0, 0]), ExchangeLimits(STALL_S, ignored=[PEERS[3]]))
    exchange.handle(PartArrived(PEERS[3], 0), 0.5)
    reductions = []
    for chunk in (0, 1):
        for peer in PEERS[1:3]:
            reductions += exchange.handle(PartArrived(peer, chunk), 1.0)
    assert reductions == [Reduce(0, (0, 1, 2, 3)), Reduce(1, (0, 1, 2))]


FIVE = sorted(Identity.from_seed(bytes([number]) * 32).peer_id for number in range(5))
QUICK = {(peer, chunk): 2.0 for peer in FIVE[1:3] for chunk in (0, 1)}
"""Two members give their parts of our two chunks after 2 s, so the others are late after 3 s; we may wait for 4 s then."""
LIAR, SLOWER = FIVE[3:]
NEVER = 1e9


@pytest.mark.parametrize(
    ("liar", "slower", "left_out", "blamed"),
    [
        ((2.0, 2.0), (2.5, 2.9), [], []),
        ((2.0, 2.0), (2.5, 5.0), [], []),
        ((2.0, 2.0), (2.5, NEVER), [SLOWER], [SLOWER]),
        ((NEVER, 2.0), (2.5, NEVER), [LIAR, SLOWER], [LIAR]),
        ((NEVER, 2.0), (2.5, 7.5), [LIAR, SLOWER], [LIAR]),
        ((9.0, 2.0), (2.5, 9.5), [LIAR, SLOWER], [LIAR]),
        ((NEVER, NEVER), (NEVER, NEVER), [LIAR, SLOWER], [LIAR, SLOWER]),
        ((6.5, 2.0), (2.5, 9.5), [SLOWER], [SLOWER]),
    ],
    ids=[
        "nobody is late",
        "late, and in time",
        "later than it may be",
        "late once the liar has used the time up",
        "late by less than it could be",
        "the liar gives its part too late",
        "both use it up",
        "the liar ends its delay before",
    ],
)
def test_only_members_for_which_we_waited_when_the_time_was_used_up_are_blamed(
    liar: tuple[float, float], slower: tuple[float, float], left_out: list[PeerId], blamed: list[PeerId]
) -> None:
    """liar, slower: when the two other members give their parts of our two chunks.  We average the first chunk first."""
    limits = ExchangeLimits(STALL_S, {FIVE[0]: 4.0})
    exchange = ExchangeMachine(FIVE[0], a_plan_of(FIVE, bytes([0, 0])), limits, now=0.0)
    exchange.handle(ContributionReady(), 0.0)
    given = {**QUICK, **{(peer, chunk): at[chunk] for peer, at in ((LIAR, liar), (SLOWER, slower)) for chunk in (0, 1)}}
    for now in (quarter / 4 for quarter in range(45)):
        for (peer, chunk), at in given.items():
            if now - 0.25 < at <= now:
                exchange.handle(PartArrived(peer, chunk), now)
        exchange.handle(ExchangeTick(), now)
    assert sorted(exchange.left_out) == sorted(left_out)
    assert sorted(exchange.observed().stalled) == sorted(blamed)
