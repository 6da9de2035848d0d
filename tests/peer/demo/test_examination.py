"""An examination: the same problems for each state, and no difference between a state and itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from peer.demo.examination import Examiner, StateExamination, newest_state
from peer.demo.learning import Comparison
from peer.demo.plays import learning_play
from peer.errors import PeerError
from protocol.run.manifest import RunManifest
from protocol.run.run_file import parse_run_file
from protocol.wire.identity import Identity
from tests.e2e.swarm import ROLLOUT_RUN
from trainer.config import TrainingConfig
from trainer.models.llama.initial import initial_parameters


def tiny() -> RunManifest:
    return parse_run_file(ROLLOUT_RUN, Identity.generate().peer_id, "tiny.toml")


def theta(manifest: RunManifest, seed: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    values = np.empty(manifest.parameters, np.float32)
    initial_parameters(TrainingConfig.from_sections(manifest.trainer_sections()).model, seed, values)
    return values


def test_a_state_that_answers_twice_has_gained_nothing_and_another_one_answers_the_same_problems() -> None:
    manifest = tiny()
    examiner = Examiner(manifest, {}, problems=8)
    values = 30 * theta(manifest, 1)
    one, again, other = (examiner.measure(*state) for state in ((1, values), (2, values), (3, -values)))
    assert replace(again, rounds=1) == one, "the same noise for the same problems"
    assert Comparison(one, again).gain == Comparison(one, again).error == 0
    assert (other.rollouts, len(other.scores), other.sample.prompt) == (16, 8, one.sample.prompt)
    assert other.sample.answer != one.sample.answer


def test_before_the_first_round_the_newest_state_is_that_of_the_seed(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(ROLLOUT_RUN)
    play = learning_play(2, None, tmp_path / "tiny.toml")
    state = newest_state(play.signed, tmp_path / "run")
    assert state.rounds == 0
    assert np.array_equal(state.theta, theta(play.signed.manifest, play.signed.manifest.seed))


def test_a_demo_without_a_start_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(ROLLOUT_RUN)
    play = learning_play(2, None, tmp_path / "tiny.toml")
    examination = StateExamination(play.signed, tmp_path / "run", play.aim)  # type: ignore[arg-type]
    examination.look()
    with pytest.raises(PeerError, match="no state down after the warm-up"):
        examination.conclude()
