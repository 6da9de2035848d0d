"""Events: each has a meaning and a sentence, and survives the flat form.  tests/test_reference.py compares the docs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from protocol.events import events as ev
from protocol.events.events import EVENTS, Event, Notice, from_fields
from protocol.formatting import naming, short
from tests.hostile_texts import EACH_HOSTILE, HARMFUL, every_event
from tests.protocol.example_status import OTHER

NAMES = naming({OTHER: "kitchen"})
KITCHEN = NAMES(OTHER)
FOURTH: dict[str, Any] = {"fragment": 2, "fragments": 4}


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (ev.EvalLoss(3, 1.8712, OTHER), f"held-out loss after 3 rounds: 1.871 (measured by {KITCHEN})"),
        (
            ev.RolledBack(12, 3, OTHER),
            f"went back 3 rounds: the branch of {KITCHEN} won, and its rounds replace rounds 12 to 14",
        ),
        (
            ev.RolledBack(12, 1, ""),
            "went back 1 round: most voters do not have round 12 in their chains, or no peer here has their results",
        ),
        (ev.Left(True, 2, 5, 0, ""), "left: said goodbye to 2 peers, 5 rounds committed, state on disk"),
        (ev.Left(False, 0, 1, 9, "full"), "without a goodbye, 1 round committed, state on disk; full"),
        (ev.PeerGone(OTHER, True), f"{KITCHEN} said goodbye and left"),
        (ev.PeerSuspected(OTHER, 7.0, False), "silent for 7 s"),
        (
            ev.RolloutsCounted(4, 0.25, 3, 1500, {OTHER: 1500}, 0, ["aa"]),
            "round 4: the swarm learned from 3 batches of rollouts, 1.5 k tokens, mean reward 0.250; 1 of them is ours",
        ),
        (
            ev.RoundCommitted(6, "ab" * 32, [OTHER], 900, 0.5, True, **FOURTH),
            "round 6, fragment 3 of 4, committed: 1 member, 900 tokens, training loss 0.500",
        ),
        (ev.ComputeProgress(7, 2, 5, 0.5, 100.0, 3.0, ahead=True), "round 7, ahead: step 2 of 5"),
        (ev.PhaseChanged("exchanging", "", "with 2 others"), "exchanging, training ahead: with 2 others"),
    ],
    ids=str,
)
def test_an_event_is_told_as_what_it_was(event: ev.Event, sentence: str) -> None:
    assert sentence in event.sentence(NAMES)


@pytest.mark.parametrize("text", EACH_HOSTILE)
@pytest.mark.parametrize(("whole", "number"), [(-1, -math.inf), (0, math.nan), (2**63, 1e308)])
def test_a_sentence_is_a_harmless_line_whoever_wrote_the_event(text: str, whole: int, number: float) -> None:
    short_text = text[: 1 << 16]
    for event in every_event(short_text, short_text, whole, number):
        for name in (short, naming({short_text: short_text})):
            line = event.sentence(name)
            assert len(line) <= 2000 and line.isprintable() and not HARMFUL.search(line), type(event)


@pytest.mark.parametrize("cls", EVENTS.values())
def test_every_event_says_what_it_means(cls: type[Event]) -> None:
    assert cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}("), "dataclasses write one of their own"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"event": "Unheard"},
        {"event": "Notice"},
        {"event": "Notice", "text": "x"},
        {"event": "Notice", "level": "info", "text": "x", "more": 1},
    ],
)
def test_what_is_no_event_is_a_value_error(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="event"):
        from_fields(given)
    assert from_fields(Notice("info", "x").to_fields()) == Notice("info", "x")
