"""What a trainer and a validator gave the same rollouts is compared, where both say it."""

from __future__ import annotations

import pytest

from protocol.rollouts.happenings import Checked, Compare, Idle, Judge, JudgementHeard
from protocol.wire.presence import Role
from protocol.wire.rollouts import Judgement
from tests.protocol.rollouts.test_pool import BAD, GOOD, ROOT, WORKER, Table

OURS, THEIRS = b"\xfe\xfe", b"\xfe\x00"


def compared(
    codes: bytes, scores: bytes | None, ours: bytes | None, *, ours_first: bool = False
) -> list[tuple[bytes, bytes]]:
    """What a trainer compares that checks a batch which was dealt to a validator."""
    table = Table(Role.TRAINER, draw=0.0)
    table.hear()
    table.deal()
    table.fetched()
    validator = table.order[0]
    said = JudgementHeard(validator, Judgement(author=WORKER, root=ROOT, codes=codes, scores=scores))
    checked = Checked(WORKER, ROOT, GOOD, ours)
    effects = []
    for event in (checked, said) if ours_first else (said, Idle(), checked):
        effects += table.tell(event)
    assert all(effect.body.scores == ours for effect in effects if isinstance(effect, Judge)), "our own are told"
    return [(effect.ours, effect.theirs) for effect in effects if isinstance(effect, Compare)]


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
