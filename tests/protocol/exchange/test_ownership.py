"""Whose averages are late: when others had the time to average, and who cannot make anybody look late."""

from __future__ import annotations

from collections.abc import Collection

from protocol.exchange.ownership import Ownership
from protocol.wire.identity import PeerId

A, B, C, D, E, F, G = JURY = [PeerId(letter) for letter in "abcdefg"]


def late(
    owners: str, here: Collection[int], *, me: PeerId = G, at: float = 1.0, then: Collection[int] = (), later: float = 1.0
) -> str:
    """Who is late at a time, and with more averages at a later one."""
    by = [PeerId(owner) for owner in owners]
    ownership = Ownership(me, by, len(JURY), 0.0)
    ownership.late(here, JURY, lambda chunk: by[chunk], at)
    return "".join(sorted(ownership.late({*here, *then}, JURY, lambda chunk: by[chunk], later)))


def test_an_owner_is_late_when_all_averages_of_more_than_half_are_here() -> None:
    assert late("abcdefg", {0, 1, 2}, me=G) == ""
    assert late("abcdefg", {0, 1, 2, 3}, me=G) == "ef", "we are not, whatever others think"
    assert late("abcdefabcdef", {0, 1, 2, 3, 6, 7, 8}, me=G) == "", "all of a's, b's and c's, and one of d's"
    assert late("abcdefabcdef", {0, 1, 2, 3, 4, 6, 7, 8, 9}, me=G) == "ef"


def test_who_owns_nothing_or_little_makes_nobody_look_late() -> None:
    assert late("abc", {0}) == "", "four of seven own nothing"
    assert late("abc", {0, 1}) == "c"
    assert late("aaaabbbbccccdef", {12, 13, 14, 0, 1, 2}) == "", "three with one chunk each"
    assert late("aaaabbbbccccdef", {12, 13, 14, 0, 1, 2, 3}) == "", "most of the owners, and less than half of the chunks"
    assert late("aaaabbbbccccdef", {12, 13, 14, *range(8)}, later=1.4) == "c"


def test_who_owns_more_has_as_much_more_time_as_it_has_more_to_send() -> None:
    """The others own 8 of 11 chunks, and 1.6 of them each; three times five and eleven are 26, and not 19."""
    owners, here = "ab" + "cde" * 2 + "fff", range(8)
    assert late(owners, here, at=10.0, later=10.0) == ""
    assert late(owners, here, at=10.0, later=13.5) == ""
    assert late(owners, here, at=10.0, later=13.75) == "f"


def test_our_own_averages_tell_of_owners_of_no_more_than_we_own() -> None:
    assert late("abg", {2}) == "ab", "two liars of seven may own two of three chunks"
    assert late("aabg", {3}) == "b"
    assert late("aabgg", {3}) == ""
    assert late("aabgg", {3, 4}) == "ab"


def test_a_successor_is_not_late() -> None:
    by = [PeerId(owner) for owner in "abcdefg"]
    ownership = Ownership(G, by, len(JURY), 0.0)
    assert ownership.late({0, 1, 2, 3}, JURY, lambda chunk: A if chunk == 4 else by[chunk], 1.0) == {F}
