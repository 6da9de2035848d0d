"""Liveness on a table: heartbeats, goodbyes, silence, and a process that slept."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.events.events import Event, PeerGone, PeerJoined, PeerSuspected
from protocol.membership.liveness import (
    BEAT_S,
    COUNTED_STRANGERS,
    FORGET_S,
    GONE_BEATS,
    LONGEST_S,
    MAX_MEMBERS,
    MAX_STRANGERS,
    SLOW_ABOVE,
    SUSPECT_BEATS,
    Intervals,
    Liveness,
    Membership,
    beat_interval_s,
)
from protocol.wire.identity import PeerId
from protocol.wire.presence import Goodbye
from tests.protocol.peers import ANN, BOB, ME, TheseMembers, a_heartbeat

PEER = ANN.peer_id
SUSPECT_S, GONE_S = SUSPECT_BEATS * BEAT_S, GONE_BEATS * BEAT_S


def heard(now: float = 0.0, **changes: Any) -> Membership:
    """One that is connected to `PEER`, a stranger, and has heard its first heartbeat."""
    membership = Membership(ME.peer_id, 0.0, TheseMembers())
    membership.on_connected(PEER, now)
    membership.on_heartbeat(PEER, a_heartbeat(**changes), now, PEER)
    return membership


def ticked(membership: Membership, until_s: float) -> list[Event]:
    """The events of ticks every second up to this time, and at it."""
    events: list[Event] = []
    for now in range(int(until_s) + 1):
        events += membership.tick(float(now))
    return events + membership.tick(until_s)


def liveness(membership: Membership) -> Liveness | None:
    known = membership.get(PEER)
    return known.liveness if known is not None else None


@pytest.mark.parametrize(
    "silent_s, expected, events",
    [
        (SUSPECT_S, Liveness.ALIVE, []),
        (SUSPECT_S + 0.5, Liveness.SUSPECT, [PeerSuspected(PEER, SUSPECT_S + 0.5, disconnected=False)]),
        (GONE_S + 0.5, Liveness.GONE, [PeerSuspected(PEER, SUSPECT_S + 1, disconnected=False), PeerGone(PEER, False)]),
        (FORGET_S + 0.5, None, [PeerSuspected(PEER, SUSPECT_S + 1, disconnected=False), PeerGone(PEER, False)]),
    ],
)
def test_silence_makes_a_peer_suspect_then_gone_then_forgotten(
    silent_s: float, expected: Liveness | None, events: list[Event]
) -> None:
    membership = heard()
    assert ticked(membership, silent_s) == events
    assert liveness(membership) is expected


@pytest.mark.parametrize(
    "incarnation, seq, news, joined",
    [(1, 1, False, False), (1, 0, False, False), (1, 2, True, False), (2, 0, True, True), (0, 9, False, False)],
)
def test_only_newer_heartbeats_are_news(incarnation: int, seq: int, news: bool, joined: bool) -> None:
    beat = a_heartbeat(incarnation=incarnation, seq=seq)
    assert heard().on_heartbeat(PEER, beat, 1.0, PEER) == (news, [PeerJoined(PEER, "ann")] if joined else [])


@pytest.mark.parametrize(
    ("said", "team"), [("Night owls", "Night owls"), ("\u202eslwo", ""), ("E\u0301", "\u00c9"), ("", "")]
)
def test_who_joins_is_told_with_its_team_if_that_is_one(said: str, team: str) -> None:
    joined = heard().on_heartbeat(PEER, a_heartbeat(incarnation=2, team=said), 1.0, PEER)
    assert joined == (True, [PeerJoined(PEER, "ann", team)])


def test_a_heartbeat_brings_a_suspect_and_a_gone_peer_back() -> None:
    for silent_s in (SUSPECT_S + 1, GONE_S + 1):
        membership = heard()
        ticked(membership, silent_s)
        assert membership.on_heartbeat(PEER, a_heartbeat(seq=2), silent_s, PEER) == (True, [PeerJoined(PEER, "ann")])
        assert membership.live_peers() == [PEER]


def test_after_a_goodbye_only_a_later_life_is_heard() -> None:
    membership = heard()
    assert membership.on_goodbye(PEER, Goodbye(incarnation=1, seq=5)) == (True, [PeerGone(PEER, True)])
    assert membership.on_goodbye(PEER, Goodbye(incarnation=1, seq=5)) == (False, [])
    assert not membership.on_heartbeat(PEER, a_heartbeat(seq=4), 1.0, PEER)[0]
    assert membership.has_left(PEER) and not membership.is_live(PEER)
    assert membership.on_heartbeat(PEER, a_heartbeat(incarnation=2), 1.0, PEER)[0] and membership.is_live(PEER)


def test_a_goodbye_of_an_earlier_life_changes_nothing() -> None:
    membership = heard(incarnation=3)
    assert membership.on_goodbye(PEER, Goodbye(incarnation=2, seq=9)) == (False, [])
    assert membership.is_live(PEER)


def test_a_broken_connection_is_suspicious_at_once_and_only_once() -> None:
    membership = heard()
    assert membership.on_disconnected(PEER, 1.0) == [PeerSuspected(PEER, 1.0, disconnected=True)]
    assert membership.on_disconnected(PEER, 2.0) == []
    assert membership.on_disconnected(BOB.peer_id, 2.0) == []


def test_a_barred_peer_is_never_heard_again() -> None:
    membership = heard()
    membership.bar(PEER)
    assert liveness(membership) is Liveness.LEFT
    assert not membership.on_heartbeat(PEER, a_heartbeat(incarnation=9), 1.0, PEER)[0]
    membership.bar(BOB.peer_id)
    assert membership.has_left(BOB.peer_id)


def test_of_very_many_liars_the_first_are_forgotten_but_no_members_for_strangers() -> None:
    membership = Membership(ME.peer_id, 0.0, TheseMembers(PEER))
    most = MAX_MEMBERS + MAX_STRANGERS
    liars = [PeerId(f"liar {number}") for number in range(most + 40)]
    membership.bar(PEER)
    for liar in liars:
        membership.bar(liar)
    assert membership.has_left(PEER)
    assert [membership.has_left(liar) for liar in liars] == [False] * 41 + [True] * (most - 1)


def test_the_time_in_which_we_slept_is_nobodys_silence() -> None:
    membership = heard()
    membership.tick(1.0)
    assert membership.tick(1000.0) == []
    assert membership.silent_s(PEER, 1000.0) == 1.0 + LONGEST_S and membership.started == 999.0 - LONGEST_S


def test_on_a_busy_computer_six_turns_without_a_sign_of_life_are_silence_however_long_they_take() -> None:
    """What came between two turns may still wait to be read; but nobody is alive for ever because we are slow."""
    for turn_s in (1.5, 2.5, 4.0):
        membership = heard()
        events = [event for turn in range(1, 9) for event in membership.tick(turn * turn_s)]
        assert events == [PeerSuspected(PEER, SUSPECT_S + LONGEST_S, disconnected=False)], turn_s


def test_a_peer_that_connects_anew_has_shown_that_it_is_alive() -> None:
    membership = heard()
    assert ticked(membership, 5.0) == [] and membership.on_connected(PEER, 5.0) == []
    assert ticked(membership, 5.0 + SUSPECT_S) == [] and membership.silent_s(PEER, 5.0 + SUSPECT_S) == SUSPECT_S


def test_the_time_in_which_we_were_deaf_is_counted_once_though_we_slept_as_well() -> None:
    membership = heard()
    membership.tick(1.0)
    membership.excuse(999.0, 1000.0)
    assert membership.tick(1000.0) == []
    assert membership.silent_s(PEER, 1000.0) == 1.0 and membership.started == 999.0


def crowd(membership: Membership, first: int, count: int, forwarder: PeerId = BOB.peer_id, now: float = 1.0) -> int:
    """The first heartbeats of so many keys, which this neighbour forwards; how many were news."""
    keys = [PeerId(f"key {number}") for number in range(first, first + count)]
    return sum(membership.on_heartbeat(key, a_heartbeat(), now, forwarder)[0] for key in keys)


@pytest.mark.slow
def test_free_keys_displace_no_member_and_leave_the_pace_as_it_is() -> None:
    membership = Membership(ME.peer_id, 0.0, TheseMembers(PEER))
    membership.on_connected(PEER, 0.0)
    membership.on_heartbeat(PEER, a_heartbeat(), 0.0, PEER)
    for wave in range(4):
        crowd(membership, 1000 * wave, 1000, now=1.0 + wave)
    assert membership.live_peers() == [PEER] and len(list(membership)) == 1 + MAX_STRANGERS
    assert membership.beat_s == BEAT_S
    assert membership.tick(SUSPECT_S) == [] and liveness(membership) is Liveness.ALIVE


def swarm(me: PeerId, members: int, strangers: int) -> Membership:
    """One that is connected to so many members and strangers, and has just heard them; `member 0` is a member, too."""
    named = [PeerId(f"member {number}") for number in range(1 + members)]
    membership = Membership(me, 0.0, TheseMembers(*named))
    for peer in [*named[1:], *(PeerId(f"stranger {number}") for number in range(strangers))]:
        membership.on_connected(peer, 0.0)
        membership.on_heartbeat(peer, a_heartbeat(), 0.0, peer)
    return membership


A_MEMBER, A_STRANGER = PeerId("member 0"), ME.peer_id


@pytest.mark.parametrize("strangers", [2 * COUNTED_STRANGERS, 400])
def test_members_and_only_so_many_connected_strangers_slow_a_member_down(strangers: int) -> None:
    assert swarm(A_MEMBER, 0, strangers).beat_s == beat_interval_s(1 + COUNTED_STRANGERS)
    assert swarm(A_MEMBER, SLOW_ABOVE, strangers).beat_s == beat_interval_s(1 + SLOW_ABOVE + COUNTED_STRANGERS)


def test_each_peer_slows_a_stranger_down_unless_there_are_no_members_yet() -> None:
    assert swarm(A_STRANGER, SLOW_ABOVE, 400).beat_s == beat_interval_s(1 + SLOW_ABOVE + 400)
    assert swarm(A_STRANGER, 0, 400).beat_s == beat_interval_s(COUNTED_STRANGERS)


@pytest.mark.parametrize("me", [A_MEMBER, A_STRANGER])
def test_the_silence_of_a_stranger_is_judged_by_the_interval_of_strangers(me: PeerId) -> None:
    membership = swarm(me, SLOW_ABOVE, 400)
    members_beat_s = swarm(A_MEMBER, SLOW_ABOVE, 400).beat_s
    events = ticked(membership, SUSPECT_BEATS * members_beat_s + 0.5)
    suspects = {event.peer for event in events if isinstance(event, PeerSuspected)}
    assert len(suspects) == len(events)
    assert suspects == {f"member {number}" for number in range(1, 1 + SLOW_ABOVE)}


@pytest.mark.parametrize("strangers", [1000, 10_000])
def test_the_heartbeats_of_all_peers_together_are_at_most_so_many_a_second(strangers: int) -> None:
    for members in (1, 64, 256):
        intervals = Intervals.among(members, strangers)
        assert members / intervals.of_member + strangers / intervals.of_stranger <= 2 * SLOW_ABOVE / BEAT_S


@pytest.mark.slow
def test_the_room_of_strangers_is_shared_by_the_neighbours_that_bring_them() -> None:
    membership = Membership(ME.peer_id, 0.0, TheseMembers())
    assert crowd(membership, 0, 2000) == MAX_STRANGERS
    assert crowd(membership, 2000, 2000, PEER) == MAX_STRANGERS // 2
    assert crowd(membership, 4000, 2000) == crowd(membership, 6000, 2000, PEER) == 0, "both have their share"


@pytest.mark.slow
def test_a_connected_stranger_displaces_one_that_is_not_and_keeps_its_place() -> None:
    membership = Membership(ME.peer_id, 0.0, TheseMembers())
    crowd(membership, 0, 2000)
    membership.on_connected(PEER, 1.0)
    assert membership.on_heartbeat(PEER, a_heartbeat(), 1.0, PEER) == (True, [PeerJoined(PEER, "ann")])
    crowd(membership, 2000, 2000, ME.peer_id)
    assert membership.live_peers() == [PEER] and len(list(membership)) == MAX_STRANGERS


def test_of_very_many_members_the_longest_silent_makes_room() -> None:
    members = [PeerId(f"member {number}") for number in range(MAX_MEMBERS + 1)]
    membership = Membership(ME.peer_id, 0.0, TheseMembers(*members))
    for number, peer in enumerate(members):
        membership.on_heartbeat(peer, a_heartbeat(), float(number), peer)
    assert membership.get(members[0]) is None and len(list(membership)) == MAX_MEMBERS


def test_a_recording_of_heartbeats_is_no_life_until_its_author_is_connected() -> None:
    membership = Membership(ME.peer_id, 0.0, TheseMembers(PEER))
    for beat in range(30):  # in the order and at the pace at which they were signed, last week
        now = beat * BEAT_S
        assert membership.on_heartbeat(PEER, a_heartbeat(seq=beat), now, BOB.peer_id) == (True, [])
        assert ticked(membership, now) == [] and liveness(membership) is Liveness.UNPROVEN
    assert membership.live_peers() == [] and membership.silent_s(PEER, now) == now
    assert membership.on_connected(PEER, now) == [PeerJoined(PEER, "ann")]
    assert membership.is_live(PEER) and membership.silent_s(PEER, now) == 0


def test_a_recording_brings_nobody_back_that_was_forgotten() -> None:
    membership = heard(seq=9)
    ticked(membership, FORGET_S + 1)
    assert membership.get(PEER) is None
    assert not membership.on_heartbeat(PEER, a_heartbeat(seq=9), FORGET_S + 1, BOB.peer_id)[0]
    membership.on_disconnected(PEER, FORGET_S + 1)
    membership.on_heartbeat(PEER, a_heartbeat(seq=10), FORGET_S + 1, BOB.peer_id)
    assert liveness(membership) is Liveness.UNPROVEN


def test_who_was_connected_once_is_heard_by_any_way() -> None:
    membership = heard()
    membership.on_disconnected(PEER, 1.0)
    assert membership.on_heartbeat(PEER, a_heartbeat(seq=2), 1.0, BOB.peer_id)[0] and membership.is_live(PEER)


def test_an_unproven_peer_is_forgotten_soon_and_its_goodbye_at_once() -> None:
    membership = Membership(ME.peer_id, 0.0, TheseMembers())
    membership.on_heartbeat(PEER, a_heartbeat(), 0.0, BOB.peer_id)
    assert ticked(membership, GONE_S) == [] and liveness(membership) is Liveness.UNPROVEN
    assert ticked(membership, GONE_S + 1) == [] and liveness(membership) is None
    membership.on_heartbeat(PEER, a_heartbeat(seq=2), GONE_S + 1, BOB.peer_id)
    assert membership.on_goodbye(PEER, Goodbye(incarnation=1, seq=3)) == (True, [])
    assert liveness(membership) is None and not membership.has_left(PEER)


def test_goodbyes_of_unknown_strangers_are_no_news_and_those_of_members_are_kept() -> None:
    membership = Membership(ME.peer_id, 0.0, TheseMembers(PEER))
    assert membership.on_goodbye(PEER, Goodbye(incarnation=1, seq=5)) == (True, [])
    for number in range(2 * MAX_MEMBERS):
        assert membership.on_goodbye(PeerId(f"key {number}"), Goodbye(incarnation=1, seq=5)) == (False, [])
    assert not membership.on_heartbeat(PEER, a_heartbeat(seq=4), 1.0, PEER)[0]


def test_a_peer_is_called_by_its_name_else_by_the_end_of_its_id() -> None:
    membership = heard()
    assert (membership.name(PEER), membership.name(BOB.peer_id)) == ("ann", f"…{BOB.peer_id[-6:]}")


# -- signs of life that are no heartbeats ------------------------------------------------------------------------------


def test_who_sends_anything_over_its_connection_is_not_suspected() -> None:
    membership = heard()
    for now in range(1, 60):
        membership.on_message(PEER, float(now))
        assert not membership.tick(now + 0.5)
    assert membership.silent_s(PEER, 60.0) == 1.0
    assert ticked(membership, 59.0 + SUSPECT_S + 1) == [PeerSuspected(PEER, SUSPECT_S + 1, disconnected=False)]


@pytest.mark.parametrize("silent_s", [SUSPECT_S + 1, GONE_S + 1])
def test_a_message_ends_a_suspicion_for_silence(silent_s: float) -> None:
    membership = heard()
    assert ticked(membership, silent_s)
    assert membership.on_message(PEER, silent_s) == [PeerJoined(PEER, "ann")]
    assert membership.is_live(PEER) and membership.on_message(PEER, silent_s) == []


def test_a_message_after_a_broken_connection_proves_nothing_before_the_next_heartbeat() -> None:
    """Behind the new connection may be another process, which has no contribution."""
    membership = heard()
    membership.on_disconnected(PEER, 1.0)
    membership.on_connected(PEER, 2.0)
    assert membership.on_message(PEER, 2.0) == [] and not membership.is_live(PEER)
    membership.on_heartbeat(PEER, a_heartbeat(seq=2), 3.0, PEER)
    assert membership.is_live(PEER) and membership.on_message(PEER, 4.0) == []
    assert membership.silent_s(PEER, 4.0) == 0.0


def test_a_message_brings_nobody_back_who_left_or_lied_or_is_unproven() -> None:
    left, lied, unproven = heard(), heard(), Membership(ME.peer_id, 0.0, TheseMembers())
    left.on_goodbye(PEER, Goodbye(incarnation=1, seq=5))
    lied.bar(PEER)
    unproven.on_heartbeat(PEER, a_heartbeat(), 0.0, BOB.peer_id)
    for membership in (left, lied, unproven):
        assert membership.on_message(PEER, 1.0) == [] and not membership.is_live(PEER)
    assert unproven.on_message(BOB.peer_id, 1.0) == [], "nor anybody of whom nothing is known"
