"""No well-formed statement makes a handler raise, whatever its sense."""

from __future__ import annotations

from functools import wraps
from random import Random

import pytest

from protocol.membership.handshake import Handshake
from protocol.wire.envelope import Body
from protocol.wire.identity import Identity
from protocol.wire.messages import STATEMENTS
from tests.fuzz.examples import BODIES, QUESTIONS
from tests.fuzz.grammar import Grammar, Words, every_class
from tests.fuzz.statements import fuzz

STATEMENTS_HERE = 400
PEER = Identity.from_seed(bytes(32)).peer_id


@pytest.mark.slow
def test_no_handler_raises() -> None:
    tally = fuzz(STATEMENTS_HERE)
    assert tally.failures == []
    assert tally.statements.total() >= STATEMENTS_HERE and tally.accepted > 0


@pytest.mark.slow
def test_no_handler_raises_in_a_run_with_rollouts() -> None:
    tally = fuzz(STATEMENTS_HERE, rollouts=True)
    assert tally.failures == []
    assert tally.accepted > 0 and tally.statements["amendment by gossip"] + tally.statements["task set by gossip"] > 0


def test_every_class_of_message_can_be_made_and_is_within_its_limits() -> None:
    grammar = Grammar(Words([PEER]), Random(1))
    for example in (*BODIES, *QUESTIONS):
        grammar.words.hear(example)
    for cls in every_class():
        if not cls.__module__.startswith("protocol.run."):  # manifests and invitations: their fields have to fit each other
            made = [grammar.body(cls) for _ in range(30)]
            assert any(isinstance(body, cls) for body in made), cls
    assert set(STATEMENTS.values()) <= set(every_class())


@pytest.mark.slow
def test_a_handler_that_can_raise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    @wraps(Handshake.answer_hello)  # and what it declares to handle
    def fail(*arguments: object) -> Body:
        raise KeyError("found")

    monkeypatch.setattr(Handshake, "answer_hello", fail)
    tally = fuzz(1500)
    assert any("KeyError: 'found'" in failure for failure in tally.failures)
