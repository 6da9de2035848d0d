"""Whom to follow: who counts as on a branch, and what follows from the numbers."""

from __future__ import annotations

import pytest

from protocol.chain.records import Rank
from protocol.sync.fork_choice import Candidate, ElectorCount, Side, Standpoint, count, follows, returns
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity

ELECTORS = tuple(Identity.from_seed(bytes([number]) * 32).peer_id for number in range(1, 10))
FORK, ABOVE, ELSEWHERE, UNKNOWN = (Hash(bytes([number]) * 32) for number in range(4))
BEST, MIDDLE, WORST = (Rank(True, unsigned, Hash(bytes([9 + unsigned]) * 32)) for unsigned in (3, 4, 5))
BRANCH = Candidate(FORK, {MIDDLE.record, ABOVE}, MIDDLE)


def seen(fork: Hash, first: Rank) -> Standpoint:
    """On a tip that we do not know, of a chain that leaves ours like this."""
    return Standpoint(UNKNOWN, False, Side(fork, first))


@pytest.mark.parametrize(
    ("at", "on", "off"),
    [
        (Standpoint(ABOVE, False), 1, 0),
        (Standpoint(FORK, False), 0, 1),
        (Standpoint(FORK, False, Side(FORK, WORST)), 0, 1),
        (Standpoint(ELSEWHERE, False), 0, 0),
        (seen(FORK, WORST), 1, 0),
        (seen(FORK, BEST), 0, 0),
        (seen(FORK, MIDDLE._replace(unsigned=1)), 1, 0),
        (seen(ABOVE, BEST), 1, 0),
        (seen(ELSEWHERE, WORST), 0, 0),
    ],
    ids=[
        "on the branch",
        "on the tip before it",
        "back on that tip",
        "elsewhere",
        "on one that loses to it",
        "on one that wins",
        "further on the same record, with another certificate",
        "on one that leaves the branch higher up",
        "on one that leaves our chain elsewhere",
    ],
)
def test_who_counts(at: Standpoint, on: int, off: int) -> None:
    counted = count(ELECTORS, {ELECTORS[0]: at}, BRANCH)
    assert (counted.on, counted.off) == (counted.present_on, counted.present_off) == (on, off)


def test_only_electors_that_are_heard_count_and_those_that_were_away_apart() -> None:
    heard = {
        ELECTORS[0]: Standpoint(ABOVE, was_away=True),
        ELECTORS[1]: Standpoint(ABOVE, was_away=False),
        ELECTORS[2]: Standpoint(FORK, was_away=True),
        ELECTORS[3]: Standpoint(FORK, was_away=False),
    }
    assert count(ELECTORS[:3], heard, BRANCH) == ElectorCount(on=2, off=1, present_on=1, present_off=0)


def test_nobody_returns_from_a_branch_that_enough_are_coming_over_to() -> None:
    """Three at the tip, two on the better branch and four on the other, which went round in a circle."""
    stands = [Standpoint(FORK, False)] * 3 + [Standpoint(MIDDLE.record, False)] * 2 + [seen(FORK, WORST)] * 4
    heard = dict(zip(ELECTORS, stands, strict=True))
    counted = count(ELECTORS, heard, BRANCH)
    assert (counted.on, counted.off) == (6, 3)
    assert follows(ELECTORS, counted, was_away=False) and not returns(ELECTORS, counted)
    alone = count(ELECTORS, heard, Candidate(FORK, BRANCH.tips, None))
    assert (alone.on, alone.off) == (2, 3) and returns(ELECTORS, alone)


@pytest.mark.parametrize("electors", range(1, 10))
def test_who_stands_before_a_branch_follows_it_or_those_on_it_return(electors: int) -> None:
    for on in range(1, electors + 1):
        for off in range(1, electors + 1 - on):
            counted = ElectorCount(on, off, on, off)
            assert follows(ELECTORS[:electors], counted, was_away=False) is not returns(ELECTORS[:electors], counted)


def test_below_four_electors_who_was_away_follows_who_was_not() -> None:
    one_stayed = ElectorCount(on=1, off=2, present_on=1, present_off=0)
    assert follows(ELECTORS[:3], one_stayed, was_away=True) and not returns(ELECTORS[:3], one_stayed)
    assert not follows(ELECTORS[:4], one_stayed, was_away=True) and returns(ELECTORS[:4], one_stayed)
