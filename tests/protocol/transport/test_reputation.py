"""Allowances, penalties and bans.  The clock is the test's."""

from __future__ import annotations

from protocol.transport.limits import (
    ADDRESS,
    BAN_S,
    EXCESS,
    FULL_SCORE,
    MAX_PEERS,
    PATIENCE_PER_BAN_S,
    RELAYED,
    VIOLATION,
    Channel,
    Reputation,
)
from protocol.wire.identity import PeerId

ONE, OTHER = PeerId("one"), PeerId("other")


class Watched:
    """A reputation, its clock, and the peers that it banned."""

    def __init__(self) -> None:
        self.now = 0.0
        self.banned: list[tuple[PeerId, str]] = []
        self.reputation = Reputation(
            lambda: self.now, lambda peer, why: self.banned.append((peer, why)), lambda peer: "address"
        )

    def brought(self, channel: Channel, messages: int, size: int = 0, peer: PeerId = ONE) -> int:
        return sum(self.reputation.spend(peer, channel, size) for _ in range(messages))


def test_a_peer_within_its_allowance_is_never_refused() -> None:
    watched, allowance = Watched(), Channel.GOSSIP.value
    for _ in range(1000):
        watched.now += 0.1
        assert watched.brought(Channel.GOSSIP, int(allowance.per_s / 10), 100) == int(allowance.per_s / 10)
    assert not watched.banned


def test_a_burst_is_taken_and_what_is_over_it_dropped_and_counted() -> None:
    watched, allowance = Watched(), Channel.GOSSIP.value
    burst = int(allowance.per_s * allowance.burst_s)
    assert watched.brought(Channel.GOSSIP, burst + 100) == burst
    assert not watched.banned and watched.brought(Channel.GOSSIP, 1, peer=OTHER) == 1
    watched.brought(Channel.GOSSIP, int(FULL_SCORE / EXCESS))
    assert [peer for peer, _ in watched.banned] == [ONE]
    assert watched.brought(Channel.QUESTION, 1) == 0, "a banned peer has no allowance of anything"


def test_the_score_recovers_and_a_ban_ends() -> None:
    watched = Watched()
    for _ in range(100):
        watched.reputation.penalise(ONE, VIOLATION, "once in a while")
        watched.now += VIOLATION
    assert not watched.banned
    while not watched.banned:
        watched.reputation.penalise(ONE, VIOLATION, "all the time")
    watched.reputation.penalise(ONE, VIOLATION, "once more")
    assert watched.banned == [(ONE, "all the time")] and watched.reputation.is_banned(ONE)
    watched.now += BAN_S
    assert not watched.reputation.is_banned(ONE) and watched.brought(Channel.QUESTION, 1) == 1


def test_messages_over_an_origins_allowance_are_dropped_without_a_penalty_for_the_forwarder() -> None:
    watched, allowance = Watched(), Channel.ORIGIN.value
    assert watched.brought(Channel.ORIGIN, 10_000) == int(allowance.per_s * allowance.burst_s)
    assert not watched.banned


def test_too_many_frames_are_a_ban_at_once() -> None:
    watched, allowance = Watched(), Channel.FRAME.value
    watched.brought(Channel.FRAME, int(allowance.per_s * allowance.burst_s) + 1)
    assert len(watched.banned) == 1


def test_bans_use_up_the_patience_with_their_address_and_it_comes_back() -> None:
    watched = Watched()
    bans = 0
    while watched.reputation.admits_connection("address"):
        watched.reputation.penalise(PeerId(f"bad {bans}"), FULL_SCORE, "bad")
        bans += 1
    assert bans == int(ADDRESS.burst_s / PATIENCE_PER_BAN_S) + 1
    assert watched.reputation.admits_connection("elsewhere")
    watched.now += PATIENCE_PER_BAN_S
    assert watched.reputation.admits_connection("address")


def test_no_more_is_remembered_than_the_limit() -> None:
    watched = Watched()
    for number in range(2 * MAX_PEERS):
        watched.brought(Channel.GOSSIP, 1, peer=PeerId(str(number)))
        watched.reputation.admits_connection(str(number))
        watched.reputation.penalise(PeerId(f"bad {number}"), FULL_SCORE, "bad")
    assert len(watched.reputation._peers) <= MAX_PEERS and len(watched.reputation._addresses) <= MAX_PEERS
    assert len(watched.reputation._banned) <= MAX_PEERS


def test_strangers_share_what_they_pass_on_and_each_has_a_little_of_its_own() -> None:
    watched, own = Watched(), Channel.RELAY.value
    little, shared = int(own.per_s * own.burst_s), int(RELAYED.per_s * RELAYED.burst_s)
    relay = watched.reputation.spend_relayed
    assert sum(relay(ONE, 100) for _ in range(little + shared + 100)) == little + shared
    assert sum(relay(OTHER, 100) for _ in range(little + 100)) == little, "a flood by one leaves this to the other"
    assert not watched.banned, "and nobody is to blame for what others say"
    watched.reputation.penalise(OTHER, FULL_SCORE, "something else")
    watched.now += RELAYED.burst_s
    assert relay(ONE, 100) and not relay(OTHER, 100)


def test_each_channel_has_an_allowance_of_its_own() -> None:
    """Of two members with equal values, an enumeration makes one."""
    assert len(Channel) == len(Channel.__members__)
