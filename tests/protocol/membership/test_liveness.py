"""Liveness on a table: heartbeats, goodbyes, silence, and a process that slept."""

from __future__ import annotations

import pytest

from protocol.events import Event, PeerGone, PeerJoined, PeerSuspected
from protocol.membership.liveness import BEAT_S, FORGET_S, GONE_BEATS, MAX_PEERS, SUSPECT_BEATS, Liveness, Membership
from protocol.wire.identity import PeerId
from protocol.wire.messages import Goodbye
from tests.protocol.peers import ANN, BOB, ME, a_heartbeat

PEER = ANN.peer_id
SUSPECT_S, GONE_S = SUSPECT_BEATS * BEAT_S, GONE_BEATS * BEAT_S


def heard(now: float = 0.0) -> Membership:
    """One that has heard the first heartbeat of `PEER`."""
    membership = Membership(ME.peer_id, 0.0)
    membership.on_heartbeat(PEER, a_heartbeat(), now)
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
    assert heard().on_heartbeat(PEER, beat, 1.0) == (news, [PeerJoined(PEER, "ann")] if joined else [])


def test_a_heartbeat_brings_a_suspect_and_a_gone_peer_back() -> None:
    for silent_s in (SUSPECT_S + 1, GONE_S + 1):
        membership = heard()
        ticked(membership, silent_s)
        assert membership.on_heartbeat(PEER, a_heartbeat(seq=2), silent_s) == (True, [PeerJoined(PEER, "ann")])
        assert membership.live_peers() == [PEER]


def test_after_a_goodbye_only_a_later_life_is_heard() -> None:
    membership = heard()
    assert membership.on_goodbye(PEER, Goodbye(incarnation=1, seq=5)) == (True, [PeerGone(PEER, True)])
    assert membership.on_goodbye(PEER, Goodbye(incarnation=1, seq=5)) == (False, [])
    assert not membership.on_heartbeat(PEER, a_heartbeat(seq=4), 1.0)[0]
    assert membership.has_left(PEER) and not membership.is_live(PEER)
    assert membership.on_heartbeat(PEER, a_heartbeat(incarnation=2), 1.0)[0] and membership.is_live(PEER)


def test_a_goodbye_of_an_earlier_life_changes_nothing() -> None:
    membership = Membership(ME.peer_id, 0.0)
    membership.on_heartbeat(PEER, a_heartbeat(incarnation=3), 0.0)
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
    assert not membership.on_heartbeat(PEER, a_heartbeat(incarnation=9), 1.0)[0]
    membership.bar(BOB.peer_id)
    assert membership.has_left(BOB.peer_id)


def test_the_time_in_which_we_slept_is_nobodys_silence() -> None:
    membership = heard()
    membership.tick(1.0)
    assert membership.tick(1000.0) == []
    assert membership.silent_s(PEER, 1000.0) == 1.0 and membership.started == 999.0


def test_a_full_memory_forgets_the_longest_silent() -> None:
    membership = Membership(ME.peer_id, 0.0)
    for number in range(MAX_PEERS + 1):
        membership.on_heartbeat(PeerId(f"peer {number}"), a_heartbeat(), float(number))
    assert membership.get(PeerId("peer 0")) is None and len(list(membership)) == MAX_PEERS


def test_a_peer_is_called_by_its_name_else_by_the_end_of_its_id() -> None:
    membership = heard()
    assert (membership.name(PEER), membership.name(BOB.peer_id)) == ("ann", BOB.peer_id[-6:])
