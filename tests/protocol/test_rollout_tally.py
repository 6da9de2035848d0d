"""What became of rollouts, from the events of a rollout peer, a validator and a trainer."""

from __future__ import annotations

import pytest

from protocol.events import events as ev
from protocol.events.rollout_tally import (
    ACCEPTED,
    KEPT_BATCHES,
    REJECTED,
    STALE,
    UNSURE,
    WAITING,
    Aside,
    RolloutTally,
)

ME, ANN, BOB = "me", "ann", "bob"


def made(number: int = 0, root: str = "aa") -> ev.Event:
    return ev.RolloutsGenerated(3, number, root, 8, 100, 900, 2.0)


def judged(good: int, bad: int, unsure: int = 0, by: str = ANN, author: str = ME, root: str = "aa") -> ev.Event:
    return ev.BatchJudged(author, 3, 0, root, by, good, bad, unsure, ["bad sampling"] if bad else [])


def of(*events: ev.Event) -> RolloutTally:
    tally = RolloutTally(ME)
    for at, event in enumerate(events):
        tally.apply(event, float(at))
    return tally


@pytest.mark.parametrize(
    "verdicts, outcome, reason",
    [
        ([], WAITING, ""),
        ([judged(8, 0)], ACCEPTED, ""),
        ([judged(7, 1)], REJECTED, "bad sampling"),
        ([judged(7, 0, 1)], UNSURE, ""),
        ([judged(7, 0, 1), judged(8, 0, by=BOB)], ACCEPTED, ""),
        ([judged(8, 0), judged(7, 0, 1, by=BOB)], ACCEPTED, ""),
        ([judged(7, 1), judged(8, 0, by=BOB)], REJECTED, "bad sampling"),
    ],
)
def test_a_batch_of_ours_is_what_its_judges_make_of_it(verdicts: list[ev.Event], outcome: str, reason: str) -> None:
    tally = of(made(), *verdicts)
    (batch,) = tally.last(author=ME)
    assert (batch.verdict, batch.reason, batch.tokens) == (outcome, reason, 100)
    assert tally.counts[outcome] == 1 and sum(tally.counts.values()) == 1
    assert len(batch.judges) == len(verdicts)


def test_what_a_validator_judged_is_counted_and_listed() -> None:
    tally = of(judged(8, 0, by=ME, author=ANN, root="aa"), judged(0, 8, by=ME, author=BOB, root="bb"))
    assert tally.judged == 2
    assert [batch.author for batch in tally.last(judge=ME)] == [BOB, ANN] and tally.last(author=ME) == []


def test_a_trainers_decision_stands_above_the_judgements() -> None:
    tally = of(
        judged(0, 8, author=BOB),
        ev.BatchDecided(BOB, 3, 0, "aa", ACCEPTED, "", 8, True),
        ev.RolloutsUsed(4, ["aa"], 8, 0.5, "r"),
    )
    (batch,) = tally.last()
    assert (batch.verdict, batch.reason, batch.round) == (ACCEPTED, "", 4) and tally.used == 1
    assert of(made(), ev.BatchDecided(ME, 3, 0, "aa", STALE, "", 8, False), judged(8, 0)).counts[STALE] == 1


def test_a_record_says_the_reward_and_which_of_ours_were_learned_from() -> None:
    counted = ev.RolloutsCounted(7, 0.25, 2, 300, {ME: 100, ANN: 200}, 0, ["aa"])
    tally = of(made(), judged(8, 0), counted, ev.RolloutsCounted(8, None, 1, 50, {ANN: 50}, 0, []))
    assert [*tally.rewards] == [(7, 0.25)] and tally.accepted_tokens == 100
    assert tally.last()[0].round == 7


@pytest.mark.parametrize("verdicts, outcome", [([], ACCEPTED), ([judged(7, 1)], REJECTED), ([judged(7, 0, 1)], ACCEPTED)])
def test_a_batch_that_was_learned_from_was_accepted_also_where_we_did_not_hear_it(
    verdicts: list[ev.Event], outcome: str
) -> None:
    tally = of(made(), *verdicts, ev.RolloutsCounted(7, 0.25, 1, 100, {ME: 100}, 0, ["aa"]))
    assert tally.last()[0].verdict == outcome and tally.counts[outcome] == 1
    stale = of(made(), ev.BatchDecided(ME, 3, 0, "aa", STALE, "", 8, False))
    stale.apply(ev.RolloutsCounted(7, 0.25, 1, 100, {ME: 100}, 0, ["aa"]), 9.0)
    assert stale.counts[ACCEPTED] == 1 and stale.counts[STALE] == 0
    tally.apply(ev.BatchDecided(ME, 3, 0, "aa", STALE, "", 8, False), 10.0)
    assert tally.last()[0].verdict == outcome and tally.counts[STALE] == 0, "nor does it get too old afterwards"


def test_a_record_that_another_branch_replaced_counts_no_more() -> None:
    tally = of(
        made(),
        made(1, "bb"),
        ev.RolloutsCounted(6, 0.5, 1, 10, {ANN: 10}, 0, [], 4),
        ev.RolloutsCounted(7, 0.25, 1, 100, {ME: 100}, 0, ["aa"]),
        ev.RolloutsCounted(8, 0.75, 1, 100, {ME: 100}, 0, ["bb"], 16),
        ev.RolloutsCounted(7, 0.125, 1, 100, {ME: 100}, 0, ["bb"], 16),
    )
    assert tally.accepted_tokens == 100 and [*tally.rewards] == [(6, 0.5), (7, 0.125)]
    assert [*tally.lengths] == [(6, 2.5), (7, 6.25)]
    assert {batch.root: batch.round for batch in tally.last()} == {"aa": None, "bb": 7}


def test_what_is_learned_from_or_judged_again_after_a_restart_counts_once() -> None:
    again = [ev.RolloutsUsed(4, ["aa", "bb"], 16, 0.5, "r"), ev.RolloutsUsed(5, ["bb", "cc"], 16, 0.5, "r")]
    assert of(*again).used == 3
    twice = of(judged(8, 0, by=ME, author=ANN), judged(8, 0, by=ME, author=ANN))
    assert (twice.judged, twice.last()[0].judges) == (1, (ME,))


def test_who_was_set_aside_is_remembered_with_the_reason() -> None:
    tally = of(ev.RolloutPeerSetAside(ANN, "it cheated"), ev.ValidatorSetAside(BOB, "it lied"))
    assert [*tally.aside] == [Aside(0.0, ANN, "rollout", "it cheated"), Aside(1.0, BOB, "validator", "it lied")]


def test_it_is_bounded_and_a_copy_goes_its_own_way() -> None:
    tally = of(*(made(number, f"{number}") for number in range(KEPT_BATCHES + 5)))
    assert len(tally.batches) == KEPT_BATCHES and tally.generated == KEPT_BATCHES + 5 == tally.counts[WAITING]
    other = tally.copy()
    other.apply(ev.RolloutPeerSetAside(ANN, "x"), 0.0)
    other.apply(made(9, "new"), 0.0)
    assert not tally.aside and (ME, "new") not in tally.batches
