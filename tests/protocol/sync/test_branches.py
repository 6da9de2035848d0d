"""Whom to follow: who counts as on a branch, what follows from the numbers, and who tells of it."""

from __future__ import annotations

import pytest

from protocol.chain.finality import RecentWork
from protocol.chain.history import Branch
from protocol.chain.records import Rank
from protocol.events.events import SecondHistory
from protocol.sync.fork_choice import Candidate, Constituency, PeerCount, Side, Standpoint, count, follows, is_stuck, returns
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from tests.protocol.chains import a_run, grow, in_run
from tests.protocol.peers import ANN
from tests.protocol.sync.table import FOUR, Table, fork

ELECTORS = tuple(Identity.from_seed(bytes([number]) * 32).peer_id for number in range(1, 10))
FORK, ABOVE, ELSEWHERE, UNKNOWN = (Hash(bytes([number]) * 32) for number in range(4))
BEST, MIDDLE, WORST = (Rank(True, False, unsigned, Hash(bytes([9 + unsigned]) * 32)) for unsigned in (3, 4, 5))
ONE_EACH = dict.fromkeys(ELECTORS, 1)
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
    assert count(ONE_EACH, {ELECTORS[0]: at}, BRANCH) == PeerCount(on, off)


def test_peers_count_with_their_weights_and_those_that_were_away_are_not_off() -> None:
    heard = {
        ELECTORS[0]: Standpoint(ABOVE, was_away=True),
        ELECTORS[1]: Standpoint(ABOVE, was_away=False),
        ELECTORS[2]: Standpoint(FORK, was_away=True),
        ELECTORS[3]: Standpoint(FORK, was_away=False),
    }
    weights = dict(zip(ELECTORS, (5, 3, 100, 7, 11), strict=False))
    assert count(weights, heard, BRANCH) == PeerCount(on=8, off=7)


def test_who_took_part_in_a_branch_and_is_asleep_counts_as_on_it() -> None:
    branch = Candidate(BRANCH.fork, BRANCH.tips, BRANCH.first, part=ELECTORS[:3])
    heard = {ELECTORS[1]: Standpoint(FORK, was_away=False), ELECTORS[3]: Standpoint(FORK, was_away=False)}
    assert count(ONE_EACH, heard, branch) == PeerCount(on=2, off=2, unheard=2), "what it says now is newer than what it did"


def test_who_is_bound_to_another_record_of_the_tip_does_not_come_over() -> None:
    bound = Standpoint(UNKNOWN, False, Side(FORK, WORST), bound=1)
    heard = {ELECTORS[0]: Standpoint(ABOVE, was_away=False), ELECTORS[1]: bound}
    counted = count(ONE_EACH, heard, BRANCH)
    assert counted == PeerCount(on=1, off=0, bound=1) and is_stuck(ELECTORS[:3], counted)
    free = Standpoint(UNKNOWN, False, Side(FORK, WORST, rounds=1), bound=1)
    assert count(ONE_EACH, {**heard, ELECTORS[1]: free}, BRANCH) == PeerCount(on=2, off=0), "it is bound below the tip only"


@pytest.mark.parametrize("electors", range(1, 10))
def test_who_stands_before_a_branch_follows_it_or_those_on_it_return(electors: int) -> None:
    for on in range(1, electors + 1):
        for off in range(1, electors + 1 - on):
            counted = PeerCount(on, off)
            assert follows(counted) is not returns(counted)


def test_nobody_follows_a_branch_on_which_nobody_is() -> None:
    assert not follows(PeerCount(on=0, off=0)) and not follows(PeerCount(on=3, off=0), least=4)
    assert follows(PeerCount(on=0, off=0), least=0)


@pytest.mark.parametrize(
    ("electors", "on", "off", "stuck"),
    [(3, 1, 1, True), (3, 2, 1, False), (3, 1, 0, False), (5, 3, 1, True), (4, 3, 1, False)],
)
def test_who_is_no_quorum_waits_for_a_locked_elector_at_its_tip(electors: int, on: int, off: int, stuck: bool) -> None:
    assert is_stuck(ELECTORS[:electors], PeerCount(on, off)) is stuck
    assert is_stuck(ELECTORS[:electors], PeerCount(on, 0, bound=off)) is stuck
    assert not off or is_stuck(ELECTORS[:electors], PeerCount(on, off, unheard=on)), "who sleeps makes no quorum"


def test_no_number_of_free_keys_moves_an_elector_to_a_record_without_electors() -> None:
    """Three electors and a crowd of strangers are the members of the recent records; only the strangers are on this one."""
    electors, strangers = ELECTORS[:3], [PeerId(f"stranger {number}") for number in range(250)]
    tokens = [*((peer, 100) for peer in electors), *((peer, 10**6) for peer in strangers)]
    heard = {electors[0]: Standpoint(FORK, False), **dict.fromkeys(strangers, Standpoint(ABOVE, False))}
    for is_open in (False, True):
        who = Constituency(electors, RecentWork((tuple(tokens),)), is_open)
        weights = who.weights(electors)
        follows_them = follows(count(weights, heard, BRANCH), who.least(weights, electors[0], heard))
        assert follows_them is not is_open, "an admitted member's work counts in full"


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("has_founders", [False, True])
def test_a_record_of_newcomers_is_followed_unless_one_with_work_has_stayed(is_open: bool, has_founders: bool) -> None:
    """The only member of a young run has left, and a newcomer makes records without it."""
    member, newcomer, me = ELECTORS[:3]
    who = Constituency((member,), RecentWork((((member, 100),),)), is_open, has_founders)
    weights = who.weights([member])

    def follows_it(peer: PeerId, heard: dict[PeerId, Standpoint]) -> bool:
        return follows(count(weights, heard, BRANCH), who.least(weights, peer, heard))

    here = {me: Standpoint(FORK, False)}
    assert follows_it(me, here | {newcomer: Standpoint(ABOVE, False)}), "nobody else goes on"
    assert not follows_it(me, here | {member: Standpoint(FORK, False)})
    is_guarded = is_open and has_founders
    assert follows_it(member, {member: Standpoint(FORK, True)}) is not is_guarded, "it was away; with free keys it is wary"
    assert not follows_it(member, {member: Standpoint(FORK, False)})


@in_run(a_run(*FOUR))
async def test_a_record_that_we_made_meanwhile_is_no_second_one(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch is judged in a thread: when that has seen how much is common, our round may end with the branch's record."""
    grow(table.theirs, 1, [ANN], voters=FOUR)
    branch = table.branch(0, table.theirs)
    grow(table.ours, 1, [ANN], voters=FOUR)
    assert table.ours.history.tip == table.theirs.history.tip
    monkeypatch.setattr(Branch, "common", 0)
    choice = table.choice.judge(branch, ANN.peer_id)
    assert (choice.rounds, choice.lost, choice.news) == (0, False, ())


@in_run(a_run(*FOUR))
async def test_what_a_judgement_finds_is_told_by_whoever_asked_for_it(table: Table) -> None:
    """It is made in a thread, from which no listener may be woken."""
    fork(table, 1, {}, {})
    choice = table.choice.judge(table.branch(1, table.theirs), ANN.peer_id)
    assert [type(event) for event in choice.news] == [SecondHistory] and not table.of(SecondHistory)
