"""Events as sentences: every event has one."""

from __future__ import annotations

import math

import pytest

from protocol.events import events as ev
from protocol.formatting import naming, short
from tests.hostile_texts import EACH_HOSTILE, HARMFUL, every_event
from tests.protocol.example_status import OTHER


def test_a_held_out_loss_is_said_with_who_measured_it() -> None:
    names = naming({OTHER: "kitchen"})
    assert ev.EvalLoss(3, 1.8712, OTHER).sentence(names) == (
        f"held-out loss after 3 rounds: 1.871 (measured by kitchen ({short(OTHER)}))"
    )


def test_a_rollback_says_how_many_rounds_and_for_whom() -> None:
    names = naming({OTHER: "bob"})
    assert ev.RolledBack(12, 3, OTHER).sentence(names) == (
        f"went back 3 rounds: the branch of {names(OTHER)} won, and its rounds replace rounds 12 to 14"
    )
    assert ev.RolledBack(12, 1, "").sentence() == (
        "went back 1 round: most voters do not stand on round 12, or nobody here has the results: computed anew"
    )


def test_a_departure_is_told_as_what_it_was() -> None:
    left = ev.Left(goodbye=True, heard_by=2, rounds=5, exit_code=0, problem="")
    assert left.sentence() == "left: said goodbye to 2 peers, 5 rounds committed, state on disk"
    assert "no peer was connected" in ev.Left(True, 0, 1, 0, "").sentence()
    assert ev.Left(False, 0, 1, 9, "full").sentence().endswith("without a goodbye, 1 round committed, state on disk; full")
    assert ev.Left(False, 0, None, 0, "").sentence() == "left: before it began"
    assert ev.PeerGone(OTHER, True).sentence() == f"{short(OTHER)} said goodbye and left"
    assert "broke" in ev.PeerSuspected(OTHER, 1.0, True).sentence()
    assert "silent for 7 s" in ev.PeerSuspected(OTHER, 7.0, False).sentence()


def test_every_event_has_a_sentence_and_a_level() -> None:
    for event in every_event("x", OTHER, 1, 1.0):
        assert event.sentence() and event.severity, event


@pytest.mark.parametrize("text", EACH_HOSTILE)
@pytest.mark.parametrize(("whole", "number"), [(-1, -math.inf), (0, math.nan), (2**63, 1e308)])
def test_a_sentence_is_a_harmless_line_whoever_wrote_the_event(text: str, whole: int, number: float) -> None:
    short_text = text[: 1 << 16]
    for event in every_event(short_text, short_text, whole, number):
        for name in (short, naming({short_text: short_text})):
            line = event.sentence(name)
            assert len(line) <= 2000 and line.isprintable() and not HARMFUL.search(line), type(event)


def test_what_a_round_learned_from_is_said_with_what_of_it_is_ours() -> None:
    told = ev.RolloutsCounted(4, 0.25, 3, 1500, {OTHER: 1500}, 0, ["aa"])
    assert told.sentence() == (
        "round 4: the swarm learned from 3 batches of rollouts, 1.5 k tokens, mean reward 0.250; 1 of them is ours"
    )
    assert (
        ev.RolloutsCounted(4, None, 1, 10, {}, 0, []).sentence()
        == "round 4: the swarm learned from 1 batch of rollouts, 10 tokens"
    )


def test_a_round_is_said_with_its_fragment_and_a_phase_with_what_is_trained_ahead() -> None:
    assert ev.ReadySent(6, 900, 5, 0.5, fragment=2, fragments=4).sentence() == (
        "round 6, fragment 3 of 4: ready with 900 tokens in 5 steps, loss 0.500"
    )
    committed = ev.RoundCommitted(6, "ab" * 32, [OTHER], 900, 0.5, True, fragment=2, fragments=4)
    assert committed.sentence() == "round 6, fragment 3 of 4, committed: 1 member, 900 tokens, training loss 0.500"
    assert ev.ComputeProgress(7, 2, 5, 0.5, 100.0, 3.0, ahead=True).sentence().startswith("round 7, ahead: step 2 of 5")
    assert ev.PhaseChanged("exchanging", "", "with 2 others").sentence() == "exchanging, training ahead: with 2 others"
    assert ev.PhaseChanged("exchanging", "exchanging", "with 2 others").sentence() == "exchanging: with 2 others"
    assert ev.PhaseChanged("computing", "", "").sentence() == "computing"
