"""Whose averages are late: when others had the time to average, and who cannot make anybody look late."""

from __future__ import annotations

from collections.abc import Collection

from protocol.allreduce.lateness import AverageDeadline
from protocol.wire.identity import PeerId

A, B, C, D, E, F, G = JURY = [PeerId(letter) for letter in "abcdefg"]


def late(owners: str, here: Collection[int], *, then: Collection[int] = (), later: float = 1.5) -> str:
    """Who is late when some averages are here after a second, and further ones later."""
    by = [PeerId(owner) for owner in owners]
    ownership = AverageDeadline(by, len(JURY), 0.0)
    ownership.late(here, JURY, lambda chunk: by[chunk], 1.0)
    return "".join(sorted(ownership.late({*here, *then}, JURY, lambda chunk: by[chunk], later)))


def test_an_owner_is_late_when_all_averages_of_more_than_half_are_here() -> None:
    assert late("abcdefg", {0, 1, 2}) == ""
    assert late("abcdefg", {0, 1, 2, 3}) == "efg"
    assert late("abcdefabcdef", {0, 1, 2, 3, 6, 7, 8}) == "", "all of a's, b's and c's, and one of d's"
    assert late("abcdefabcdef", {0, 1, 2, 3, 4, 6, 7, 8, 9}) == "ef"


def test_lines_that_are_half_as_slow_again_are_not_late() -> None:
    """Where an exchange is long, that is much; where it is short, it is nothing."""
    assert late("abcdefg", {0, 1, 2, 3}, later=1.49) == ""
    assert late("abcdefg", {0, 1, 2, 3}, then={4}, later=1.5) == "fg"


def test_who_owns_nothing_or_little_makes_nobody_look_late() -> None:
    assert late("abc", {0}) == "", "four of seven own nothing"
    assert late("abc", {0, 1}) == "c"
    assert late("aaaabbbbccccdef", {12, 13, 14, 0, 1, 2}, later=9.0) == "", "three with one chunk each"
    assert late("aaaabbbbccccdef", {12, 13, 14, 0, 1, 2, 3}, later=9.0) == "", "most owners, less than half of the chunks"
    assert late("aaaabbbbccccdef", {12, 13, 14, *range(8)}, later=2.1) == "c"


def test_who_owns_more_has_as_much_more_time_as_it_has_more_to_send() -> None:
    """The others own 8 of 11 chunks, and 1.6 of them each; three times five and eleven are 26, and not 19."""
    owners, here = "ab" + "cde" * 2 + "fff", range(8)
    assert late(owners, here) == ""
    assert late(owners, here, later=1.5 * 1.35) == ""
    assert late(owners, here, later=1.5 * 1.375) == "f"


def test_a_successor_is_not_late() -> None:
    by = [PeerId(owner) for owner in "abcdefg"]
    ownership = AverageDeadline(by, len(JURY), 0.0)
    ownership.late({0, 1, 2, 3}, JURY, lambda chunk: by[chunk], 1.0)
    assert ownership.late({0, 1, 2, 3}, JURY, lambda chunk: A if chunk == 4 else by[chunk], 2.0) == {F, G}


def test_who_owns_less_has_no_less_time_for_its_line_may_be_slower() -> None:
    """Shares are made so that all lines end together."""
    owners = "a" * 7 + "bbbbbbbbbbccccccccccdddddddddd"
    assert late(owners, range(7, 37), later=1.49) == ""
    assert late(owners, range(7, 37), later=1.5) == "a"


def test_a_plan_of_one_member_has_nobody_who_is_late() -> None:
    ownership = AverageDeadline([A] * 8, 1, 0.0)
    assert ownership.late(range(8), JURY, lambda chunk: A, 1.0) == set()
    assert ownership.late(range(8), JURY, lambda chunk: A, 9.0) == set()
