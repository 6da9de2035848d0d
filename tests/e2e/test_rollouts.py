"""A run with rollouts among real peers: versions come of verified rollouts, whatever becomes of a trainer.

One swarm for all tests, in their order: the third ends the trainer for good, and the last lets a crowd of keys in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from protocol.events import events as ev
from tests.e2e.swarm import ROLLOUT_RUN, Peer, Swarm

RUN = ROLLOUT_RUN + "kl_weight = 0.5\ndrop_zero_advantage = false\n"
"""Its loss has a KL term, which moves the policy where no reward does."""
VERSIONS, VERSIONS_IN_A_CROWD = 3, 6
"""Rounds that learn from rollouts."""


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    with Swarm.created(tmp_path_factory.mktemp("rollouts"), RUN) as swarm:
        for name, role in (("trainer", "trainer"), ("writer", "rollout"), ("validator", "validator")):
            swarm.peer(name).start("--role", role)
        yield swarm


def learns(swarm: Swarm, trainer: Peer, versions: int) -> list[ev.RolloutsUsed]:
    """Wait until this trainer has learned from rollouts in so many rounds of its life that were committed; these."""
    found: list[ev.RolloutsUsed] = []

    def enough() -> bool:
        found[:] = [event for event in trainer.heard(ev.RolloutsUsed) if event.round in trainer.commits]
        return len(found) >= versions

    swarm.until(f"{versions} versions of {trainer.name}", enough)
    return found


@pytest.mark.slow
def test_versions_come_of_rollouts_that_were_generated_proved_and_verified(swarm: Swarm) -> None:
    trainer, writer, validator = swarm.peers[:3]
    used_in = learns(swarm, trainer, VERSIONS)
    swarm.until("a verdict", lambda: validator.heard(ev.BatchJudged))
    swarm.equal(used_in[-1].round + 1, trainer, writer, validator)

    assert used_in[0].round >= 1, "the first round reads examples"
    made = {event.root for event in writer.heard(ev.RolloutsGenerated)}
    used = [root for event in trainer.heard(ev.RolloutsUsed) for root in event.batches]
    for event in trainer.heard(ev.RolloutsUsed):
        best, typical = event.answers
        assert best["reward"] >= typical["reward"] and best["prompt"] and typical["prompt"]
    assert set(used) <= made and len(set(used)) == len(used), "each batch is learned from once"
    decided = {event.root: event.verdict for event in trainer.heard(ev.BatchDecided)}
    assert all(decided[root] == "accepted" for root in used)
    assert all(event.rejected == 0 for event in validator.heard(ev.BatchJudged))
    assert not trainer.heard(ev.RolloutPeerSetAside) and not trainer.heard(ev.ValidatorSetAside)
    assert all(event.kl is not None and 0 <= event.kl < 0.5 for event in used_in), "and stays near the reference"
    assert all(event.behaviour_kl is not None and event.left_out == 0 for event in used_in), "all versions are held"


def references(peer: Peer) -> dict[str, bytes]:
    """The reference weights that a peer has, by name."""
    return {path.name: path.read_bytes() for path in peer.folder.rglob("reference/*.blob")}


@pytest.mark.slow
def test_everybody_hears_of_rewards_and_accounts_for_them(swarm: Swarm) -> None:
    trainer, writer, validator = swarm.peers[:3]
    learns(swarm, trainer, VERSIONS)
    swarm.until("all to hear of rewards", lambda: all(peer.heard(ev.RolloutsCounted) for peer in swarm.peers[:3]))
    kept = json.loads(swarm.command(validator.folder, "ledger", "--json"))
    (credited,) = (each for each in kept["members"] if each["peer"] == writer.peer_id)
    assert credited["accepted_tokens"] == kept["accepted_tokens"] > 0 == credited["tokens"]
    for peer, text in (
        (writer, "this peer made "),
        (validator, "this peer judged "),
        (trainer, "this trainer learned from "),
    ):
        assert text in swarm.command(peer.folder, "rollouts")
        told = peer.status()["rollouts"]
        assert told["accepted"] > 0 == told["rejected"] and told["version"] > 1


@pytest.mark.slow
def test_versions_go_on_when_the_trainer_is_killed_and_when_another_one_takes_over(swarm: Swarm) -> None:
    trainer, writer, validator = swarm.peers[:3]
    last = learns(swarm, trainer, 1)[-1].round
    trainer.kill()
    trainer.start("--role", "trainer")
    again = learns(swarm, trainer, 1)[0]
    assert again.round > last and again.kl is not None, "it goes on where it was"

    heir = swarm.peer("heir").start("--role", "trainer")
    both = swarm.whole(heir, trainer)  # that the heir has committed: it votes from now on
    trainer.kill()

    def without_it() -> list[int]:
        return [each for each in sorted(heir.commits) if each >= both and trainer.peer_id not in heir.members_of(each)]

    swarm.until("a round without it", lambda: bool(without_it()))
    alone = without_it()[0]
    swarm.until("a version of the heir's alone", lambda: heir.heard(ev.RolloutsUsed)[-1].round > alone)
    swarm.equal(learns(swarm, heir, 1)[-1].round + 1, heir, writer, validator)
    assert not heir.heard(ev.RolloutPeerSetAside) and not heir.heard(ev.ValidatorSetAside)
    assert references(heir) == references(trainer) and len(references(heir)) == 1, "it compares with the same weights"
    assert all(event.kl is not None for event in heir.heard(ev.RolloutsUsed))
    assert not references(writer)
    swarm.until("the validator's copy", lambda: references(validator) == references(heir))


@pytest.mark.slow
def test_a_crowd_of_keys_that_copies_withholds_and_floods_stops_nobody(swarm: Swarm) -> None:
    writer, validator = swarm.peers[1:3]
    (trainer,) = (peer for peer in swarm.up() if peer not in (writer, validator))
    before = len(learns(swarm, trainer, 1))
    crowd = swarm.peer("crowd")
    crowd.program = ("tests.e2e.crowding_peer",)
    crowd.start("--role", "seed")
    used = learns(swarm, trainer, before + VERSIONS_IN_A_CROWD)[before:]
    accepted = [event for event in trainer.heard(ev.BatchDecided) if event.verdict == "accepted"]
    assert {event.author for event in accepted} == {writer.peer_id}, "keys that nobody met count for nothing"
    assert {root for event in used for root in event.batches} <= {event.root for event in accepted}
    assert writer.peer_id not in {event.peer for event in trainer.heard(ev.RolloutPeerSetAside)}
    for peer in (trainer, writer, validator):
        assert not peer.heard(ev.TrainerStopped), "its trainer process lived"
