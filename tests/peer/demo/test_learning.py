"""What a demo with rollouts tells, from what its trainer says: versions, reward, and who was set aside."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from peer.commands.demo import RL_ROUNDS
from peer.demo.cast import Cheat, DemoMember, with_rollouts
from peer.demo.learning import (
    Comparison,
    Examiner,
    Learning,
    MeasuredState,
)
from peer.demo.swarm import LEAST_VERSIONS, learning_play, learning_run
from peer.errors import ExitCode, PeerError
from protocol.events import events as ev
from protocol.run.manifest import RunManifest
from protocol.run.run_file import parse_run_file
from protocol.wire.identity import Identity
from tests.e2e.swarm import ROLLOUT_RUN
from trainer.config import TrainingConfig
from trainer.models.llama.initial import initial_parameters


@pytest.fixture(autouse=True, scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A data directory in which the examples of a run are built once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEER_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield


# ------------------------------------------------------------------------------------------------------------------------
# An examination: the same problems for each state, and no difference between a state and itself.


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
    assert (other.rollouts, len(other.scores), other.prompt) == (16, 8, one.prompt)
    assert other.answer != one.answer


# ------------------------------------------------------------------------------------------------------------------------


class Stage:
    """A demo's members without processes; their peer IDs are their names with an exclamation mark."""

    def __init__(self, versions: int, cheat: Cheat | None = None) -> None:
        manifest, _ = learning_run(Identity.generate())
        assert manifest.rl is not None
        self.warm, cast = manifest.rl.warm_rounds, with_rollouts(cheat)
        self.members = {part.name: DemoMember(part, Path(), None, peer=f"{part.name}!") for part in cast}  # type: ignore[arg-type]
        self.aim = Learning(cast, versions, manifest)
        for name in self.members:
            self.says(name, ev.PhaseChanged("starting", "", ""))

    def says(self, name: str, *events: ev.Event) -> None:
        for event in events:
            self.aim.apply(self.members[name], event)

    def version(self, reward: float | None) -> None:
        round = self.warm + len(self.aim.rewards)
        self.says(
            "trainer", ev.RolloutsUsed(round, ["aa"], 64, reward, "", behaviour_kl=(reward or 0) / 10), committed(round)
        )

    @property
    def over(self) -> bool:
        return all(self.aim.has_arrived(name) for name in self.members)


def committed(round: int) -> ev.Event:
    return ev.RoundCommitted(round, "", [], 0, math.nan, True)


@pytest.mark.slow
def test_versions_are_rounds_that_learned_and_were_committed() -> None:
    stage = Stage(versions=2)
    stage.says("trainer", committed(0), ev.RolloutsUsed(stage.warm, ["aa"], 64, 0.1, ""))
    assert stage.aim.rewards == [], "a contribution is no version yet"
    stage.says("trainer", ev.RolloutsUsed(stage.warm, ["bb"], 64, 0.3, ""), committed(stage.warm), committed(stage.warm))
    assert stage.aim.rewards == [0.3], "made anew, it counts once"
    assert not stage.over
    stage.version(0.5)
    assert stage.over and stage.aim.rewards == [0.3, 0.5]
    stage.version(0.9)
    assert stage.aim.rewards == [0.3, 0.5], "what comes while they leave is not told"


def measured(rounds: int, *scores: float, prompt: str = "sort 21\n", answer: str = "12") -> MeasuredState:
    return MeasuredState(rounds, scores, 2 * len(scores), prompt, answer, scores[0])


@pytest.mark.slow
def test_the_end_is_compared_with_the_start_on_the_same_problems() -> None:
    stage = Stage(versions=2)
    stage.version(0.3)
    stage.version(0.2)
    start, end = measured(stage.warm, 0.0, 0.5, 0.5, 1.0, answer="21"), measured(stage.warm + 2, 1.0, 1.0, 1.0, 1.0)
    stage.aim.conclude(Comparison(start, end))
    fields = stage.aim.fields(9.0)
    assert fields["by_version"] == [
        {"version": 1, "reward": 0.3, "rollouts": 64, "behaviour_kl": 0.03},
        {"version": 2, "reward": 0.2, "rollouts": 64, "behaviour_kl": 0.02},
    ]
    sample = {"prompt": "sort 21", "answer": "21", "score": 0.0}
    assert fields["start"] == {"version": 0, "reward": 0.5, "problems": 4, "rollouts": 8, "sample": sample}
    assert (fields["end"]["version"], fields["end"]["reward"], fields["gain"]) == (2, 1.0, 0.5)
    assert fields["gain_error"] == pytest.approx(0.408 / 2, abs=0.001), "of four differences: 1, 0.5, 0.5, 0"
    text = "\n".join(stage.aim.lines(9.0, unicode=False))
    assert "0.500 at version 0 (8 rollouts) -> 1.000 at version 2 (8 rollouts)" in text and "NOT" not in text
    assert "sort 21 -> 21: wrong" in text and "sort 21 -> 12: right" in text and "KL 0.0250 to the policy" in text


@pytest.mark.parametrize(
    "text", ["\x1b[2J", "a\nb", "\r", "\u202e", "\x00", "\x9b31m", "\ufffd\x07", "x" * 5000, "\n" * 500, "\ud800", "\u2028"]
)
def test_samples_are_one_short_line_each_that_can_be_printed(text: str) -> None:
    stage = Stage(versions=1)
    stage.version(0.3)
    shown = measured(stage.warm, 0.5, prompt=f"p{text}", answer=f"a{text}z")
    stage.aim.conclude(Comparison(shown, shown))
    lines = stage.aim.lines(9.0, unicode=False)
    assert all(line.isprintable() and len(line) < 220 for line in lines)
    told = stage.aim.fields(9.0)["end"]["sample"]
    assert told["prompt"].isprintable() and told["answer"].isprintable() and len(told["answer"]) < 100


@pytest.mark.parametrize("versions", [1, 8, LEAST_VERSIONS - 1])
def test_fewer_versions_than_suffice_are_refused_with_the_number_and_the_time(versions: int) -> None:
    with pytest.raises(PeerError, match=rf"--rounds {LEAST_VERSIONS} or more, which takes about \d minutes") as refused:
        learning_play(versions, None, None)
    assert refused.value.exit_code is ExitCode.USAGE
    assert learning_play(LEAST_VERSIONS, None, None) and RL_ROUNDS == LEAST_VERSIONS


def test_it_goes_on_until_a_cheat_is_set_aside() -> None:
    stage = Stage(versions=1, cheat=Cheat.ROLLOUT)
    stage.version(0.5)
    assert not stage.over and "not found out" in stage.aim.fault()
    stage.says("trainer", ev.RolloutPeerSetAside("rollout-2!", "bad termination"))
    assert stage.over and stage.aim.fault() == ""
    assert stage.aim.fields(9.0)["ejected"] == [
        {"peer": "rollout-2!", "name": "rollout-2", "role": "rollout", "reason": "bad termination"}
    ]
    assert "SET ASIDE: bad termination" in stage.aim.remark("rollout-2")


def test_an_honest_peer_set_aside_is_a_fault() -> None:
    stage = Stage(versions=1)
    stage.says("trainer", ev.ValidatorSetAside("validator-1!", "it lied"))
    assert "validator-1" in stage.aim.fault() and "honest" in stage.aim.fault()


def test_the_built_in_run_begins_with_examples_and_every_demo_has_a_run_of_its_own() -> None:
    one, two = learning_play(None, None, None), learning_play(None, None, None)
    assert one.signed.run != two.signed.run
    manifest = one.signed.manifest
    assert manifest.rl is not None and manifest.rl.warm_rounds > 0
    assert [source.name for source in manifest.data.sources] == ["examples"]
    assert manifest.outer_step(manifest.rl.warm_rounds, [1], memoryview(manifest.layouts.result.zeros())).momentum == 0, (
        "with one trainer, a version is its own weights"
    )


def test_a_run_file_without_rollouts_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.toml").write_text('name = "text"\n')
    with pytest.raises(PeerError, match=r"no section \[rl\]") as refused:
        learning_play(None, None, tmp_path / "text.toml")
    assert refused.value.exit_code is ExitCode.INPUT
