"""Which inbound connections of a peer are served and which are closed.  The clock is the test's."""

from __future__ import annotations

import math
from dataclasses import replace

from protocol.events import StrangersClosed
from protocol.network.libp2p.close_summary import EVENT_EVERY_S, CloseSummary
from protocol.network.libp2p.inbound_policy import MAX_REMEMBERED, CloseReason, Decision, InboundLimits, InboundPolicy, Stage
from protocol.network.libp2p.token_bucket import Allowance
from protocol.wire.identity import PeerId

LIMITS = replace(InboundLimits(), handshakes=Allowance(1000, math.inf, 10))
"""With handshakes that cost nothing."""


class Lobby:
    """InboundPolicy, their clock, and what became of each."""

    def __init__(self, limits: InboundLimits = LIMITS) -> None:
        self.now = 0.0
        self.policy = InboundPolicy(limits, 0.0)
        self.inside: set[int] = set()
        self.closed: dict[int, CloseReason] = {}
        self.again_at = math.inf
        self._next = 0

    def step(self, passed_s: float = 0.0) -> Decision:
        self.now += passed_s
        decision = self.policy.step(self.now)
        self.inside |= set(decision.handshake)
        self.inside -= set(decision.close)
        self.closed |= decision.close
        self.again_at = decision.again_at
        return decision

    def knock(self, address: str = "there") -> int:
        self._next += 1
        self.policy.opened(self._next, address, self.now)
        return self._next

    def come(self, address: str = "there") -> int:
        """One that says something at once."""
        number = self.knock(address)
        self.policy.received(number, self.now)
        return number

    def crowd(self, count: int, address: str = "there") -> list[int]:
        numbers = [self.come(address) for _ in range(count)]
        self.step()
        return numbers

    def leave(self, number: int) -> None:
        self.policy.closed(number)
        self.inside.discard(number)

    def guest(self, name: str, address: str = "home") -> int:
        number = self.come(address)
        self.step()
        assert number in self.inside
        self.policy.authenticated(number, PeerId(name), self.now)
        self.policy.welcome(PeerId(name))
        return number


def test_who_does_not_greet_in_time_goes_and_who_does_stays() -> None:
    lobby = Lobby()
    silent, guest = lobby.come(), lobby.guest("member")
    assert lobby.step().close == {} and lobby.again_at == LIMITS.greeting_s
    lobby.step(LIMITS.greeting_s - 0.01)
    assert silent in lobby.inside
    assert lobby.step(0.01).close == {silent: CloseReason.SILENT}
    lobby.step(1e6)
    assert guest in lobby.inside and lobby.again_at == math.inf


def test_a_connection_that_says_nothing_gets_no_handshake_and_goes() -> None:
    lobby = Lobby()
    knocks = [lobby.knock() for _ in range(3)]
    assert lobby.step().handshake == []
    lobby.policy.received(knocks[0], lobby.now)
    assert lobby.step().handshake == knocks[:1]
    assert lobby.step(LIMITS.first_byte_s).close == dict.fromkeys(knocks[1:], CloseReason.SILENT)


def test_a_place_is_free_again_when_its_connection_ends() -> None:
    lobby = Lobby()
    for _ in range(2000):
        number = lobby.come()
        assert lobby.step(0.1).handshake == [number]
        lobby.policy.closed(number)
    assert not lobby.closed and lobby.policy.count(*Stage) == 0


def test_strangers_are_limited_for_each_address_and_for_all_together() -> None:
    lobby = Lobby()
    lobby.crowd(200)
    assert len(lobby.inside) == LIMITS.strangers_per_address
    for number in range(100):
        lobby.crowd(2, f"address {number}")
    assert len(lobby.inside) == LIMITS.strangers == lobby.policy.count(Stage.STRANGER)


def test_a_full_house_makes_room_by_the_oldest_stranger_of_the_busiest_address() -> None:
    lobby = Lobby()
    many, few = lobby.crowd(LIMITS.strangers_per_address), lobby.crowd(LIMITS.strangers // 4, "elsewhere")
    for number in range(LIMITS.strangers - len(many) - len(few)):
        lobby.crowd(1, f"address {number}")
    newcomer = lobby.come("fresh")
    assert lobby.step().handshake == [], "they have just come, and may be about to greet"
    decision = lobby.step(LIMITS.protected_s)
    assert decision.handshake == [newcomer] and decision.close == {many[0]: CloseReason.CROWDED}


def test_a_newcomer_of_a_full_address_displaces_one_of_its_own() -> None:
    lobby = Lobby()
    elsewhere = lobby.crowd(10, "elsewhere")
    many = lobby.crowd(LIMITS.strangers_per_address)
    lobby.step(LIMITS.protected_s)
    newcomer = lobby.come()
    decision = lobby.step()
    assert decision.handshake == [newcomer] and decision.close == {many[0]: CloseReason.CROWDED}
    assert lobby.inside.issuperset(elsewhere)


def test_guests_take_no_place_of_strangers_however_many_are_behind_one_address() -> None:
    lobby = Lobby()
    guests = [lobby.guest(f"peer {number}") for number in range(2 * LIMITS.strangers_per_address)]
    strangers = lobby.crowd(LIMITS.strangers_per_address, "home")
    lobby.step()
    assert lobby.inside == {*guests, *strangers} and not lobby.closed


def test_a_member_comes_in_at_once_from_where_it_has_been_whoever_fills_the_house() -> None:
    lobby = Lobby()
    lobby.leave(lobby.guest("member", "its home"))
    for number in range(LIMITS.strangers + LIMITS.queue):
        lobby.come(f"address {number}")
        lobby.step()
    member = lobby.come("its home")
    assert member in lobby.step().handshake
    lobby.policy.authenticated(member, PeerId("member"), lobby.now)
    lobby.step(1e6)
    assert lobby.inside == {member}, "it has greeted before"


def test_somebody_new_comes_in_too_in_the_time_that_a_crowd_may_stay() -> None:
    lobby = Lobby()
    for _ in range(50):  # 254 strangers from one address that come back as soon as they are closed
        gone = 254 - lobby.policy.count(*Stage)
        lobby.crowd(gone)
        lobby.step(0.1)
    newcomer = lobby.come()
    began = lobby.now
    while newcomer not in lobby.inside:
        assert newcomer not in lobby.closed and lobby.now < began + LIMITS.queued_s
        lobby.crowd(254 - lobby.policy.count(*Stage))
        lobby.step(0.1)
    assert lobby.now - began < 4 * LIMITS.protected_s


def test_one_address_keeps_nobody_else_out_though_a_guest_has_been_there() -> None:
    lobby = Lobby(replace(LIMITS, handshakes=Allowance(10, math.inf, 1)))
    lobby.guest("member", "trusted")
    for _ in range(20):
        lobby.crowd(2 * LIMITS.queue, "trusted")
        lobby.step(0.1)
    newcomer = lobby.come("fresh")
    lobby.crowd(2 * LIMITS.queue, "trusted")
    lobby.step(0.1)
    assert newcomer in lobby.inside


def test_who_took_long_over_its_handshake_still_has_time_to_greet() -> None:
    lobby = Lobby()
    crowd = lobby.crowd(LIMITS.strangers_per_address)
    lobby.step(LIMITS.protected_s - 0.1)
    lobby.policy.authenticated(crowd[0], PeerId("slow"), lobby.now)
    lobby.step(0.1)
    newcomer = lobby.come()
    assert lobby.step().close == {crowd[1]: CloseReason.CROWDED} and newcomer in lobby.inside


def test_the_line_is_bounded_and_drops_the_silent_and_then_the_newest_of_the_busiest_address() -> None:
    lobby = Lobby(replace(LIMITS, handshakes=Allowance(1e-9, math.inf, 0)))  # nobody comes in
    silent, first = [lobby.knock() for _ in range(10)], lobby.come("elsewhere")
    crowd = lobby.crowd(LIMITS.queue)
    assert lobby.closed == dict.fromkeys([*silent, crowd[-1]], CloseReason.CROWDED)
    assert lobby.policy.count(Stage.QUEUED) == LIMITS.queue and first not in lobby.closed
    lobby.step(LIMITS.queued_s)
    assert lobby.policy.count(*Stage) == 0


def test_handshakes_have_a_pace_and_each_address_its_turn() -> None:
    lobby = Lobby(replace(LIMITS, handshakes=Allowance(10, math.inf, 1)))
    lobby.crowd(50)
    assert len(lobby.inside) == 10
    other = lobby.come("elsewhere")
    assert lobby.step(0.1).handshake == [other]
    assert len(lobby.step(0.5).handshake) == 5


def test_handshakes_are_rarer_when_the_computer_is_short() -> None:
    limits = replace(LIMITS, handshakes=Allowance(10, math.inf, 1))
    lobby = Lobby(limits)
    for _ in range(20):
        lobby.come()
    assert len(lobby.policy.step(0.0, overloaded=True).handshake) == 10 / limits.overload_price
    assert not lobby.policy.step(0.4, overloaded=True).handshake
    assert len(lobby.policy.step(0.5, overloaded=True).handshake) == 1
    assert len(lobby.policy.step(1.0).handshake) == 5


def test_when_turns_are_rare_they_go_to_those_who_still_wait_for_them() -> None:
    lobby = Lobby(replace(LIMITS, handshakes=Allowance(1, math.inf, 1)))
    served: dict[int, float] = {}
    came: dict[int, float] = {}
    for _ in range(600):  # ten times as many as there are turns
        came[lobby.come()] = lobby.now
        for number in lobby.step(0.1).handshake:
            served[number] = lobby.now - came[number]
            lobby.leave(number)
    late = [wait for number, wait in served.items() if came[number] > 10]
    assert len(late) > 40 and max(late) <= LIMITS.fresh_s + 0.2


def test_one_peer_has_few_connections_and_its_oldest_go() -> None:
    lobby = Lobby()
    numbers = []
    for _ in range(LIMITS.per_peer + 2):
        numbers.append(lobby.come())
        lobby.step()
        lobby.policy.authenticated(numbers[-1], PeerId("one key"), lobby.now)
        lobby.step()
    assert lobby.closed == dict.fromkeys(numbers[:2], CloseReason.SURPLUS)


def test_guests_are_limited_too_and_those_who_came_in_numbers_go_first() -> None:
    lobby = Lobby()
    friends = [lobby.guest(f"friend {number}", f"home {number}") for number in range(10)]
    crowd = [lobby.guest(f"key {number}", "hall") for number in range(LIMITS.greeted)]
    lobby.step()
    assert lobby.closed == dict.fromkeys(crowd[-10:], CloseReason.CROWDED) and lobby.inside.issuperset(friends)


def test_who_was_shut_out_is_a_stranger_again() -> None:
    lobby = Lobby()
    lobby.policy.closed(lobby.guest("member"))
    lobby.policy.revoke(PeerId("member"))
    number = lobby.come()
    lobby.step()
    lobby.policy.authenticated(number, PeerId("member"), lobby.now)
    assert lobby.step(LIMITS.greeting_s).close == {number: CloseReason.SILENT}


def test_what_is_remembered_is_bounded() -> None:
    lobby = Lobby()
    for number in range(MAX_REMEMBERED + 100):
        lobby.policy.closed(lobby.guest(f"peer {number}", f"address {number}"))
        lobby.step(0.01)
    assert len(lobby.policy._greeted) == len(lobby.policy._trusted) == MAX_REMEMBERED


def test_events_are_sums_and_come_once_a_minute() -> None:
    summary, told = CloseSummary(), []
    for tick in range(10 * int(EVENT_EVERY_S)):
        summary.count("busy", CloseReason.SILENT)
        summary.count(f"address {tick}", CloseReason.CROWDED)
        summary.count("busy", CloseReason.SURPLUS)
        told += [event for event in [summary.take(float(tick))] if event is not None]
    assert told[0] == StrangersClosed(1, 1, "busy") and told[1] == StrangersClosed(60, 60, "busy")
    assert len(told) == 10
    assert summary.take(1e6) is not None and summary.take(2e6) is None and summary.due_at == math.inf
