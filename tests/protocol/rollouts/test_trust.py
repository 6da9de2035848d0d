"""Histories of peers: who is checked how often, who is set aside, and what of it outlives a restart."""

from __future__ import annotations

import pytest

from protocol.rollouts.trust import FADES, MAX_KNOWN, MOST_ACCUSERS, RARELY, TrustScores
from protocol.wire.identity import Identity, PeerId

ANN, BOB, CID, DOT = (Identity.from_seed(bytes([number]) * 32).peer_id for number in range(4))
PLAIN = [PeerId(f"peer {number}") for number in range(7)]


def scores(ann: int = 0) -> TrustScores:
    """Ann was right so often."""
    made = TrustScores()
    for _ in range(ann):
        made.right(ANN)
    return made


def test_all_of_a_stranger_is_checked_and_a_clean_history_makes_checks_rare() -> None:
    trust = TrustScores()
    assert trust.chance(ANN) == 1.0
    trust.right(ANN)
    assert trust.chance(ANN) == FADES
    for _ in range(100):
        trust.right(ANN)
    assert trust.chance(ANN) == RARELY


def test_who_is_set_aside_stays_so_for_the_first_reason() -> None:
    trust = TrustScores()
    assert trust.set_aside(ANN, "one") and not trust.set_aside(ANN, "two")
    assert trust.aside(ANN) == "one" and trust.chance(ANN) == 1.0


def test_two_accusers_and_more_electors_than_can_be_liars_are_needed() -> None:
    of_four, of_seven = frozenset([CID, DOT, *PLAIN[:2]]), frozenset([CID, DOT, *PLAIN[:5]])
    trust = TrustScores()
    assert not trust.reproduced(ANN, [BOB, CID], of_four)
    assert not trust.reproduced(ANN, [BOB, DOT], of_four), "one accuser"
    assert trust.reproduced(ANN, [CID, DOT], of_four)
    other = TrustScores()
    assert not other.reproduced(ANN, [BOB, PLAIN[6]], of_four), "no elector"
    assert not other.reproduced(ANN, [BOB, PLAIN[6], DOT], of_four), "one elector, which may lie"
    assert not other.reproduced(ANN, [CID, BOB], of_seven), "two of them, which may lie"
    assert other.reproduced(ANN, [PLAIN[0], BOB], of_seven)


def test_who_is_no_elector_any_more_counts_as_none() -> None:
    """Else liars that vote one after the other were as good as many."""
    trust = TrustScores()
    assert not trust.reproduced(ANN, [BOB, PLAIN[6], CID], frozenset([CID, *PLAIN[:3]]))
    assert not trust.reproduced(ANN, [BOB, PLAIN[6], DOT], frozenset([DOT, *PLAIN[:3]]))


@pytest.mark.slow
def test_what_is_remembered_is_bounded_and_who_was_set_aside_is_forgotten_last() -> None:
    trust = TrustScores()
    trust.set_aside(ANN, "why")
    for number in range(2 * MAX_KNOWN):
        trust.right(PeerId(f"stranger {number}"))
    assert trust.aside(ANN) == "why" and trust.clean(PeerId("stranger 0")) == 0
    assert len(trust._known) == MAX_KNOWN


@pytest.mark.slow
def test_a_crowd_that_is_set_aside_takes_nobodys_clean_history() -> None:
    """Two batches of one number set a key aside, and keys are free."""
    trust = scores(ann=3)
    for number in range(2 * MAX_KNOWN):
        trust.set_aside(PeerId(f"liar {number}"), "it lied")
    assert trust.clean(ANN) == 3 and trust.aside(PeerId(f"liar {2 * MAX_KNOWN - 1}"))


@pytest.mark.slow
def test_a_crowd_that_was_right_once_takes_no_longer_history() -> None:
    """To agree with a verdict is free for a validator."""
    trust = scores(ann=3)
    for number in range(2 * MAX_KNOWN):
        trust.right(PeerId(f"key {number}"))
    assert trust.clean(ANN) == 3
    trust.right(BOB)
    trust.right(BOB)
    assert trust.clean(BOB) == 2, "who is new is remembered as well"


def test_accusers_are_bounded_for_keys_are_free() -> None:
    trust, electors = TrustScores(), frozenset([BOB, CID, *PLAIN[:2]])
    for number in range(1000):
        assert not trust.reproduced(ANN, [PeerId(f"key {number}"), BOB], electors)
    assert trust.reproduced(ANN, [PeerId("one more"), CID], electors)
    assert len(trust._known[ANN].accusers) == MOST_ACCUSERS
