"""What a demo with rollouts tells, from what its trainer says: versions, reward, and who was set aside."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from peer.demo.cast import Cheat, with_rollouts
from peer.demo.learning import CLEARLY, FIRST, LAST, MOST_VERSIONS, Learning
from peer.demo.member import Member
from peer.demo.plays import learning_manifest, learning_play
from peer.errors import ExitCode, PeerError
from protocol import events as ev
from protocol.wire.identity import Identity
from protocol.wire.presence import Role


class Stage:
    """A demo's members without processes; their peer IDs are their names with an exclamation mark."""

    def __init__(self, versions: int | None, cheat: Cheat | None = None) -> None:
        manifest = learning_manifest(Identity.generate())
        assert manifest.rl is not None
        self.warm, cast = manifest.rl.warm_rounds, with_rollouts(cheat)
        self.members = {part.name: Member(part, Path(), None, peer=f"{part.name}!") for part in cast}  # type: ignore[arg-type]
        self.aim = Learning(cast, versions, manifest)
        for name in self.members:
            self.says(name, ev.PhaseChanged("starting", "", ""))

    def says(self, name: str, *events: ev.Event) -> None:
        for event in events:
            self.aim.apply(self.members[name], event)

    def version(self, reward: float | None) -> None:
        round = self.warm + len(self.aim.rewards)
        self.says("trainer", ev.RolloutsUsed(round, ["aa"], 64, reward, ""), committed(round))

    @property
    def over(self) -> bool:
        return all(self.aim.has_arrived(name) for name in self.members)


def committed(round: int) -> ev.Event:
    return ev.RoundCommitted(round, "", [], 0, math.nan, True)


def decided(root: str, verdict: str) -> ev.Event:
    return ev.BatchDecided("rollout-1!", 3, 0, root, verdict, "", 64, True)


def test_the_cast_has_one_cheat_at_most_and_a_liar_has_an_honest_one_beside_it() -> None:
    roles = [Role.TRAINER, Role.ROLLOUT, Role.ROLLOUT, Role.VALIDATOR]
    assert [part.role for part in with_rollouts(None)] == roles
    assert all(part.program == ("peer",) for part in with_rollouts(None))
    lazy = with_rollouts(Cheat.ROLLOUT)
    assert [part.role for part in lazy] == roles
    assert [part.name for part in lazy if part.program == ("peer.demo.cheats", "rollout")] == ["rollout-2"]
    lying = with_rollouts(Cheat.VALIDATOR)
    assert [part.role for part in lying] == [*roles, Role.VALIDATOR]
    assert [part.name for part in lying if part.cheat is not None] == ["validator-2"]


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


def test_it_is_over_when_the_reward_has_clearly_risen_or_never_does() -> None:
    rising, flat = Stage(versions=None), Stage(versions=None)
    for _ in range(FIRST):
        rising.version(0.25)
    for _ in range(LAST):
        assert not rising.over
        rising.version(0.25 + CLEARLY)
    assert rising.over
    for _ in range(MOST_VERSIONS):
        assert not flat.over
        flat.version(0.25)
    assert flat.over and "not clearly risen" in "\n".join(flat.aim.lines(9.0, unicode=False))


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


def test_only_the_trainers_decisions_count_and_each_batch_once() -> None:
    stage = Stage(versions=1)
    stage.says("validator-1", decided("aa", "accepted"))
    stage.says("trainer", decided("aa", "accepted"), decided("aa", "accepted"), decided("bb", "rejected"))
    stage.says("trainer", decided("cc", "stale"))
    fields = stage.aim.fields(9.0)
    assert (fields["accepted"], fields["rejected"], fields["versions"]) == (1, 1, 0)
    assert fields["reward_start"] is None and fields["reward_end"] is None


def test_peers_are_told_apart_by_what_they_did() -> None:
    stage = Stage(versions=1)
    judged = ev.BatchJudged("rollout-1!", 3, 0, "aa", "validator-1!", 64, 0, 0, [])
    stage.says("rollout-1", ev.RolloutsGenerated(3, 0, "aa", 64, 500, 9000, 1.0), judged)
    stage.says("validator-1", judged)
    assert [stage.aim.remark(name) for name in stage.members] == [
        "",
        "1 batches made",
        "0 batches made",
        "1 batches judged",
    ]


def test_the_built_in_run_begins_with_examples_and_every_demo_has_a_run_of_its_own() -> None:
    one, two = learning_play(None, None, None), learning_play(None, None, None)
    assert one.signed.run != two.signed.run
    manifest = one.signed.manifest
    assert manifest.rl is not None and manifest.rl.warm_rounds > 0 and manifest.data.corpus == "examples"
    assert manifest.outer_step(manifest.rl.warm_rounds, [1]).momentum == 0, "with one trainer, a version is its own weights"


def test_a_run_file_without_rollouts_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.toml").write_text('name = "text"\n')
    with pytest.raises(PeerError, match=r"no section \[rl\]") as refused:
        learning_play(None, None, tmp_path / "text.toml")
    assert refused.value.exit_code is ExitCode.INPUT
