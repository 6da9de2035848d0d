"""What a trainer and a validator found of the same rollouts is compared: their verdicts, and their scores."""

from __future__ import annotations

import pytest

from protocol.events.events import ValidatorSetAside
from protocol.rollouts.events import (
    BatchVerified,
    CompareScores,
    EmitEvent,
    GossipVerdicts,
    JudgementHeard,
    PoolEffect,
    TrainerIdle,
)
from protocol.wire.presence import Role
from protocol.wire.rollouts import Judgement
from tests.protocol.rollouts.test_pool import BAD, GOOD, ROOT, WORKER, Table

OURS, THEIRS = b"\xfe\xfe", b"\xfe\x00"


def judged(
    codes: bytes, scores: bytes | None, ours: bytes | None, exact: frozenset[int], *, ours_first: bool = False
) -> tuple[Table, list[PoolEffect]]:
    """A trainer that checks a batch which was dealt to a validator, and what it does.  exact: rollouts with such scores."""
    table = Table(Role.TRAINER, draw=0.0)
    table.take()
    table.deal()
    said = JudgementHeard(table.order[0], Judgement(author=WORKER, root=ROOT, codes=codes, scores=scores))
    checked = BatchVerified(WORKER, ROOT, GOOD, ours, exact)
    effects = []
    for event in (checked, said) if ours_first else (said, TrainerIdle(), checked):
        effects += table.tell(event)
    assert all(effect.body.scores == ours for effect in effects if isinstance(effect, GossipVerdicts)), "our own are told"
    return table, effects


def compared(
    codes: bytes, scores: bytes | None, ours: bytes | None, *, ours_first: bool = False
) -> list[tuple[bytes, bytes]]:
    """What a trainer compares of scores that may differ from one computer to another."""
    table, effects = judged(codes, scores, ours, frozenset(), ours_first=ours_first)
    assert codes != GOOD or not table.pool.standing.aside(table.order[0]), "nobody lied"
    return [(effect.ours, effect.theirs) for effect in effects if isinstance(effect, CompareScores)]


@pytest.mark.parametrize("ours_first", [False, True])
def test_scores_of_both_are_compared_whoever_was_first(ours_first: bool) -> None:
    assert compared(GOOD, THEIRS, OURS, ours_first=ours_first) == [(OURS, THEIRS)]


@pytest.mark.parametrize(
    ("codes", "scores", "ours"),
    [(GOOD, None, OURS), (GOOD, THEIRS, None), (GOOD, THEIRS + b"\0", OURS), (BAD, THEIRS, OURS)],
    ids=["none said", "none found", "of another batch", "a false verdict"],
)
def test_nothing_else_is_compared(codes: bytes, scores: bytes | None, ours: bytes | None) -> None:
    assert compared(codes, scores, ours) == []


@pytest.mark.parametrize("ours_first", [False, True])
def test_whose_score_every_computer_contradicts_is_set_aside_and_counts_for_nothing(ours_first: bool) -> None:
    table, effects = judged(GOOD, THEIRS, OURS, frozenset({1}), ours_first=ours_first)
    [aside] = [
        effect.event for effect in effects if isinstance(effect, EmitEvent) and isinstance(effect.event, ValidatorSetAside)
    ]
    assert aside.peer == table.order[0] and "score" in aside.reason
    assert table.pool.standing.aside(table.order[0]) == aside.reason
    assert not [effect for effect in effects if isinstance(effect, CompareScores)], "no set is disputed for it"


@pytest.mark.parametrize("theirs", [OURS, b"\xfe\xff", None, b"\xfe"], ids=["the same", "not scored", "none", "too few"])
def test_who_says_no_false_score_is_not_set_aside(theirs: bytes | None) -> None:
    table, _ = judged(GOOD, theirs, OURS, frozenset({0, 1}))
    assert not table.pool.standing.aside(table.order[0])


@pytest.mark.parametrize(("ours", "theirs"), [(GOOD, BAD), (BAD, GOOD)])
@pytest.mark.parametrize("ours_first", [False, True])
@pytest.mark.parametrize("sure", [False, True])
def test_a_verdict_that_another_device_may_not_come_to_sets_no_validator_aside(
    ours: bytes, theirs: bytes, ours_first: bool, sure: bool
) -> None:
    """Else whoever makes rollouts that just pass, or just do not, had honest ones set aside for it."""
    table = Table(Role.TRAINER, draw=0.0)
    validator = table.order[0]
    table.pool.standing.right(validator)
    table.take()
    table.deal()
    said = JudgementHeard(validator, Judgement(author=WORKER, root=ROOT, codes=theirs))
    checked = BatchVerified(WORKER, ROOT, ours, sure=sure)
    for event in (checked, said) if ours_first else (said, TrainerIdle(), checked):
        table.tell(event)
    standing = table.pool.standing
    assert bool(standing.aside(validator)) is sure and standing.chance(validator) == 1.0, "all of it is checked"
    assert bool(standing.aside(WORKER)) is (ours == BAD), "no honest peer makes what is beyond the tolerances"


def test_scores_of_validators_that_were_not_asked_dispute_no_set() -> None:
    """Keys are free, and who was asked would be outvoted."""
    table, effects = judged(GOOD, OURS, OURS, frozenset())
    for validator in table.order[1:]:
        said = Judgement(author=WORKER, root=ROOT, codes=GOOD, scores=THEIRS)
        effects += table.tell(JudgementHeard(validator, said))
    batch = table.pool.find(WORKER, ROOT)
    assert batch is not None and len(batch.judgements) == len(table.order) + 1 > 2, "all are heard"
    assert [effect.theirs for effect in effects if isinstance(effect, CompareScores)] == [OURS]
