"""Nothing that is said about rollouts raises, or is taken for what it is not."""

from __future__ import annotations

import pytest

from protocol.rollouts.pool import Pool
from tests.fuzz import proofs
from tests.fuzz.rollouts import fuzz
from trainer.rl.verification import FormChecker, Judged, Verifier

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("cases", [800, 3000])
def test_changed_proofs_rollouts_batches_and_statements_are_refused_or_mean_the_same(cases: int) -> None:
    tally = fuzz(cases)
    assert tally.failures == []
    assert tally.cases == cases
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
        (proofs, "check_form", lambda *arguments: None, "Malformed"),
        (FormChecker, "_check_bounds", lambda self, rollout: None, "Malformed"),
        (Pool, "_is_possible", lambda self, body: True, "a pool passes on"),
    ],
)
def test_a_check_that_is_left_out_is_found(
    monkeypatch: pytest.MonkeyPatch, where: object, what: str, instead: object, said: str
) -> None:
    monkeypatch.setattr(where, what, instead)
    assert any(said in failure for failure in fuzz(2000).failures)
