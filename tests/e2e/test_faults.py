"""Faults with real processes: whatever is done to peers, the others go on, and who comes back has the same state.

Of a swarm of three a member is killed in an exchange.  All other faults are those of a swarm whose members train while a
round of a fragment is agreed on.  Each test ends with a round of all three, so their order does not matter.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from protocol.events import events as ev
from tests.e2e.swarm import PATIENCE_S, TINY_RUN, WAYS, Peer, Swarm

IN_FILES = ("--state", "disk")
"""Options of the second peer, whose state lies in files; its digests equal those of the others."""


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Swarm]:
    with Swarm.created(tmp_path_factory.mktemp("faults"), WAYS[request.param](TINY_RUN)) as swarm:
        for name, options in (("one", []), ("two", IN_FILES), ("three", [])):
            swarm.peer(name).start(*options)
        swarm.whole(*swarm.peers)
        yield swarm
        for peer in swarm.peers:
            assert peer.leave() == 0, peer.log[-2000:]
        left = psutil.wait_procs(swarm.processes(), timeout=PATIENCE_S)[1]
        assert left == [] and os.listdir(swarm.folder / "tmp") == [] and [*swarm.folder.rglob("scratch/*")] == []
        assert [path for path in (swarm.folder / "runtime").rglob("*") if path.suffix != ".lock"] == []


@pytest.fixture(autouse=True)
def all_three_afterwards(swarm: Swarm) -> Iterator[None]:
    yield
    rounds = swarm.whole(*swarm.peers)
    swarm.equal(rounds, *swarm.peers)


def goes_on_without(swarm: Swarm, gone: Peer, rounds: int = 1) -> None:
    """The others commit `rounds` more, without it."""
    others = [peer for peer in swarm.peers if peer is not gone]
    start = max(peer.committed for peer in others)
    swarm.until(
        f"{rounds} rounds without {gone.name}",
        lambda: all(
            sum(gone.peer_id not in peer.members_of(round) for round in peer.commits if round >= start) >= rounds
            for peer in others
        ),
    )


def in_phase(peer: Peer, phase: str) -> bool:
    """Whether its last phase is this one."""
    phases = peer.heard(ev.PhaseChanged)
    return bool(phases) and phases[-1].phase == phase


streamed = pytest.mark.parametrize("swarm", ["streamed"], indirect=True)


@pytest.mark.parametrize(
    ("swarm", "phase"),
    [("plain", "exchanging"), pytest.param("streamed", "computing", marks=pytest.mark.slow)],
    indirect=["swarm"],
)
def test_a_peer_killed_at_any_phase_comes_back_with_the_same_state(swarm: Swarm, phase: str) -> None:
    _, victim, _ = swarm.peers
    swarm.until(f"{victim.name} is {phase}", lambda: in_phase(victim, phase))
    assert {path.name for path in victim.folder.rglob("scratch/*")} == {"state", "contribution"}
    victim.kill()
    goes_on_without(swarm, victim)
    victim.start(*IN_FILES)


@pytest.mark.slow
@streamed
def test_a_killed_trainer_is_replaced_and_the_peer_contributes_again(swarm: Swarm) -> None:
    victim = swarm.peers[0]
    before = victim.status()["trainer_pid"]
    os.kill(before, signal.SIGKILL)
    swarm.until("a new trainer", lambda: any(started.pid != before for started in victim.heard(ev.TrainerStarted)[-1:]))


@pytest.mark.slow
@streamed
def test_a_frozen_peer_is_left_out_and_catches_up_when_it_thaws(swarm: Swarm) -> None:
    victim = swarm.peers[2]
    victim.kill(signal.SIGSTOP)
    goes_on_without(swarm, victim)
    victim.kill(signal.SIGCONT)


@pytest.mark.slow
@streamed
def test_the_founder_leaves_and_the_run_goes_on(swarm: Swarm) -> None:
    founder = swarm.peers[0]
    assert founder.leave() == 0
    goes_on_without(swarm, founder)
    founder.start()


@pytest.mark.slow
@streamed
def test_everybody_is_killed_and_the_run_goes_on_from_its_disks(swarm: Swarm) -> None:
    before = max(peer.committed for peer in swarm.peers)
    for peer in swarm.peers:
        peer.kill()
    for peer in swarm.peers:
        peer.start()
    rounds = swarm.whole(*swarm.peers)
    assert rounds > before - 1, "the run began anew"
    digests = [peer.digests.get(before) for peer in swarm.peers]
    assert len(set(digests) - {None}) == 1
