"""Nothing that is said about rollouts raises, or is taken for what it is not."""

from __future__ import annotations

import pytest

from protocol.rollouts.pool import Pool
from tests.fuzz.rollouts import fuzz
from trainer.rl.verification import Judged, Verifier

pytestmark = pytest.mark.slow


def test_changed_proofs_rollouts_batches_and_statements_are_refused_or_mean_the_same() -> None:
    tally = fuzz(800)
    assert tally.failures == []
    assert tally.cases == 800
    assert set(tally.outcomes) == {"proofs", "rollouts", "batches", "statements"}


@pytest.mark.parametrize(
    ("where", "what", "instead", "said"),
    [
        (
            Verifier,
            "_judge",
            lambda self, rollout, flaw, measured, *turns: Judged(None, measured=measured),
            "is accepted",
        ),
        (Pool, "_is_possible", lambda self, body: True, "a pool passes on"),
    ],
)
def test_a_check_that_is_left_out_is_found(
    monkeypatch: pytest.MonkeyPatch, where: object, what: str, instead: object, said: str
) -> None:
    monkeypatch.setattr(where, what, instead)
    assert any(said in failure for failure in fuzz(2000).failures)
