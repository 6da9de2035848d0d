"""Who is silent for too long: bytes count as they come, but not for ever, and lines set the pace."""

from __future__ import annotations

from protocol.allreduce.lateness import SilenceTracker
from protocol.wire.identity import PeerId

A, B, C, D = PEERS = [PeerId(letter) for letter in "abcd"]
OWING = dict.fromkeys((B, C, D), 10.0)
CHUNK_S = 60.0


def silence() -> SilenceTracker:
    made = SilenceTracker(PEERS, 0.0, CHUNK_S)
    assert made.overdue(OWING, 0.0) == []
    return made


def test_who_says_nothing_is_overdue() -> None:
    assert silence().overdue(OWING, 10.0) == [] and silence().overdue(OWING, 10.1) == [B, C, D]


def test_the_bytes_of_a_chunk_are_a_sign_of_life_until_it_should_be_here() -> None:
    known = silence()
    known.announced(B, 1.0)
    for second in range(2, 100):
        known.moving(B, float(second))
        known.moving(C, float(second))
    assert known.overdue(OWING, 12.0) == [C, D], "c has announced nothing"
    assert known.overdue(OWING, 60.0 + 10.0) == [C, D]
    assert known.overdue(OWING, 60.0 + 10.1) == [B, C, D]


def test_whoever_delivers_may_take_as_long_for_its_next_chunk() -> None:
    known = silence()
    known.announced(B, 1.0)
    known.delivered(B, 50.0)
    for second in range(51, 200):
        known.moving(B, float(second))
    assert known.overdue({B: 10.0}, 50.0 + CHUNK_S + 9.0) == []
    assert known.overdue({B: 10.0}, 50.0 + CHUNK_S + 10.1) == [B]


def test_whoever_waits_for_room_here_is_not_silent() -> None:
    known = silence()
    known.held(C, 9.0)
    assert known.overdue(OWING, 12.0) == [B, D]


def test_the_pace_is_that_of_half_of_those_who_have_something_to_send() -> None:
    known = silence()
    known.delivered(B, 4.0)
    known.delivered(B, 5.0)
    known.delivered(C, 6.0)
    known.delivered(D, 30.0)
    assert [known.pace_s(peers, 0.0, 99.0) for peers in ([B], [B, C], [C, B, D], [D])] == [4.0, 4.0, 6.0, 30.0]


def test_until_they_have_it_is_the_time_so_far_but_not_for_ever() -> None:
    known = silence()
    known.delivered(B, 4.0)
    assert [known.pace_s([C, D], 10.0, now) for now in (5.0, 50.0)] == [5.0, 10.0]
    assert known.pace_s([], 10.0, 5.0) == 5.0
