"""The role of a peer whose owner leaves it open follows from the manifest, its ID and what is free, and is explained."""

from __future__ import annotations

import pytest
import trio

from peer.resources import check
from peer.resources.check import choose_role
from peer.resources.computer import StatePlace, memory_need
from protocol.events.events import Event, Notice, NoticeCode
from protocol.run.manifest import RunManifest, run_id
from protocol.run.run_file import parse_run_file
from protocol.wire.identity import Identity, PeerId
from protocol.wire.presence import Role
from trainer.memory import TrainerSetup

PEERS = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(40)]
FOUNDER, OTHERS = PEERS[0], PEERS[1:]
GB = 10**9


def a_run(more: str = "", head: str = "") -> RunManifest:
    text = f'name = "roles"\n{head}\n[model]\ndim = 1024\nlayers = 12\n[rl]\nenvironment = "sort"\nmax_tokens = 256\n'
    return parse_run_file(text + "row_tokens = 512\nmicro_batch_tokens = 2048\n" + more, FOUNDER)


RUN = a_run()
ANYBODYS = a_run(head='founders = "anyone"')


def role_of(
    manifest: RunManifest, peer: PeerId, available: int = 1 << 50, gpu: int | None = None, state: str = "auto"
) -> Role:
    role, reason = choose_role(manifest, run_id(manifest), peer, available, gpu, state)
    assert reason and "\n" not in reason and not reason.endswith(".")
    return role


def test_in_a_run_without_rollouts_everybody_trains() -> None:
    plain = parse_run_file('name = "plain"', FOUNDER)
    assert {role_of(plain, peer, available=1) for peer in PEERS} == {Role.TRAINER}


@pytest.mark.parametrize("gpu", [None, 80 * GB])
def test_founders_train_and_of_the_others_one_in_eight_verifies(gpu: int | None) -> None:
    assert role_of(RUN, FOUNDER, gpu=gpu) is Role.TRAINER
    roles = [role_of(RUN, peer, gpu=gpu) for peer in OTHERS]
    assert set(roles) == {Role.ROLLOUT, Role.VALIDATOR} and 1 <= roles.count(Role.VALIDATOR) <= len(roles) // 4
    assert roles == [role_of(RUN, peer, gpu=gpu) for peer in OTHERS], "the same again"


def test_where_anybody_begins_the_organiser_and_gpus_train() -> None:
    assert {role_of(ANYBODYS, peer, gpu=80 * GB) for peer in PEERS} == {Role.TRAINER}
    assert [peer for peer in PEERS if role_of(ANYBODYS, peer) is Role.TRAINER] == [FOUNDER], "the organiser"
    enough_for_rollouts = memory_need(ANYBODYS, Role.ROLLOUT, TrainerSetup("cuda")).gpu
    assert Role.TRAINER not in {role_of(ANYBODYS, peer, gpu=enough_for_rollouts) for peer in OTHERS}


@pytest.mark.parametrize("state", ["auto", "ram", "disk"])
def test_less_memory_takes_a_lesser_role_once_files_do_not_help(state: str) -> None:
    place = StatePlace.RAM if state == "ram" else StatePlace.DISK
    needs = {role: memory_need(RUN, role, place=place).host for role in Role}
    assert needs[Role.TRAINER] > needs[Role.ROLLOUT] > needs[Role.VALIDATOR] > needs[Role.SEED]
    assert role_of(RUN, FOUNDER, needs[Role.TRAINER], state=state) is Role.TRAINER
    assert role_of(RUN, FOUNDER, needs[Role.TRAINER] - 1, state=state) is Role.ROLLOUT
    assert role_of(RUN, FOUNDER, needs[Role.ROLLOUT] - 1, state=state) is Role.VALIDATOR
    assert role_of(RUN, FOUNDER, needs[Role.VALIDATOR] - 1, state=state) is Role.SEED
    assert role_of(RUN, FOUNDER, gpu=GB) is Role.SEED, "a peer with a GPU computes on nothing else"


def test_who_does_not_meet_the_requirements_of_those_who_train_takes_another_role() -> None:
    role, reason = choose_role(RUN, run_id(RUN), FOUNDER, 1 << 50, None, may_train=False)
    assert role is Role.ROLLOUT and "does not meet the run's requirements for training" in reason
    assert choose_role(RUN, run_id(RUN), FOUNDER, 1, None, may_train=False).role is Role.SEED
    plain = parse_run_file('name = "plain"', FOUNDER)
    assert choose_role(plain, run_id(plain), FOUNDER, 1, None, may_train=False).role is Role.TRAINER, "and is told why not"


def test_it_is_told_in_a_run_with_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "available_memory", lambda: 1 << 50)
    monkeypatch.setattr(check, "free_gpu_memory", lambda: None)
    told: list[Event] = []
    assert trio.run(check.chosen_role, RUN, run_id(RUN), FOUNDER, told.append) is Role.TRAINER
    (event,) = told
    assert isinstance(event, Notice) and event.code == NoticeCode.ROLE_CHOSEN and "founder" in event.text
    assert event.details["role"] == "trainer"
    plain = parse_run_file('name = "plain"', FOUNDER)
    assert trio.run(check.chosen_role, plain, run_id(plain), FOUNDER, told.append) is Role.TRAINER and len(told) == 1


@pytest.mark.parametrize("role", [Role.ROLLOUT, Role.VALIDATOR, Role.SEED, Role.TRAINER])
def test_a_founder_that_is_not_to_train_is_warned_that_the_run_waits_for_it(role: Role) -> None:
    told: list[Event] = []
    for manifest, peer in ((RUN, FOUNDER), (RUN, OTHERS[0]), (ANYBODYS, FOUNDER)):
        assert trio.run(check.chosen_role, manifest, run_id(manifest), peer, told.append, role) is role
    assert len(told) == (role is not Role.TRAINER)
    assert all(isinstance(notice, Notice) and f"does not vote with the role {role.value}:" in notice.text for notice in told)
