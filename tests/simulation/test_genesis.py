"""Runs whose first state is named by the manifest: one peer has it, the others fetch it, and none begins without it."""

from __future__ import annotations

import numpy as np
import pytest
import trio

from protocol.blobs.blob import Blob, EvenSpans
from protocol.chain.records import genesis_tip
from protocol.chain.results import CheckpointName, Checkpoints
from protocol.chain.stored_run import StoredRun
from protocol.disk import Disk
from protocol.events.events import Event, HandlerFailed, TransferProgress
from protocol.formats.model import ModelConfig
from protocol.run.manifest import SignedManifest
from protocol.wire.hashes import Hash, chunk_hash, tree_root
from tests.attacks.blob_liars import Claimer, Corrupter, turn
from tests.simulation.runs import begin, holds, simulate
from tests.simulation.seat import Seat
from tests.simulation.wire import Weather
from tests.simulation.world import World, changed, simulated_run


def named_run(signed: SignedManifest) -> tuple[SignedManifest, list[Hash], bytes]:
    """This run, if it begins with weights of its own; the state's leaves and bytes."""
    manifest = signed.manifest
    weights = np.random.default_rng(9).standard_normal(manifest.parameters).astype(np.float32)
    state, piece = weights.tobytes() + bytes(weights.nbytes), manifest.checkpoint_chunk_bytes
    leaves = [chunk_hash(state[at : at + piece]) for at in range(0, len(state), piece)]
    return changed(signed, initial_state=tree_root(leaves).hex()), leaves, state


SIGNED, LEAVES, STATE = named_run(simulated_run())
LARGE_MODEL = ModelConfig(vocab=256, dim=64, layers=2, heads=2, kv_heads=1, ffn=64)


def give(seat: Seat, state: bytes = STATE, signed: SignedManifest = SIGNED, leaves: list[Hash] = LEAVES) -> None:
    """The first state, as `peer run create` leaves it."""
    folder = seat.folder / "checkpoints"
    folder.mkdir(parents=True)
    Checkpoints(Disk(durable=False), folder).write(CheckpointName(0, genesis_tip(signed.run)), leaves, memoryview(state))


@pytest.mark.slow
def test_peers_fetch_the_first_state_train_from_it_and_come_back_to_it() -> None:
    async def scenario(world: World) -> None:
        give(world.seats[0])
        await begin(world, 3, within_s=120)
        await world.until_equal(within_s=30)
        node = world.seats[1].node
        assert node is not None
        assert node.commit_at(0).record.state_digest == SIGNED.manifest.genesis
        members = {member.peer for round in range(3) for member in node.commit_at(round).record.members}
        assert members == {seat.peer for seat in world.seats}
        found = StoredRun(SIGNED, world.seats[1].folder).newest()
        assert found.start is not None, "what is exported begins there too"
        world.faults.kill(world.seats[2])
        await trio.sleep(5)
        world.start(world.seats[2])
        await world.until_round(6, within_s=120)
        await world.until_equal(within_s=30)

    holds(simulate(3, scenario, signed=SIGNED))


@pytest.mark.slow
def test_the_first_state_leaves_its_owner_once() -> None:
    async def scenario(world: World) -> None:
        owner, *others = world.seats
        give(owner)
        await begin(world, 1, within_s=120)
        assert owner.node is not None
        copies = owner.node._swarm.up_bytes / len(STATE)
        assert copies < 2, f"{copies:.1f} copies for {len(others)} others"
        await world.until_round(2, within_s=60)
        assert not owner.node._swarm._origins, "once there is a record, it is a checkpoint like others"

    holds(simulate(7, scenario, signed=SIGNED))


def test_the_first_state_reaches_everybody_while_peers_lie_about_it_and_one_is_killed() -> None:
    """One liar sends other bytes, and one promises chunks that it never sends; the killed peer goes on where it was."""
    signed, leaves, state = named_run(changed(simulated_run(), model=LARGE_MODEL))
    blob = Blob.cut(tree_root(leaves), leaves, EvenSpans(len(state), signed.manifest.checkpoint_chunk_bytes))
    done: list[int] = []

    async def scenario(world: World) -> None:
        owner, corrupter, staller, victim, *_ = world.seats

        def listen(seat: Seat, event: Event) -> None:
            if seat is victim and isinstance(event, TransferProgress) and event.blob == blob.name.hex():
                done.append(event.done)

        world.listeners.append(listen)
        give(owner, state, signed, leaves)
        world.start_all()
        await world.until("both can lie", lambda: corrupter.node is not None and staller.node is not None, within_s=5)
        liars = [turn(world, corrupter, Corrupter, blob), turn(world, staller, Claimer, blob)]
        await world.until("half of it at the victim", lambda: bool(done) and 2 * done[-1] > len(blob), within_s=60)
        before, killed_at = done[-1], len(done)
        assert before < len(blob)
        world.faults.kill(victim)
        world.start(victim)
        await world.until_round(1, within_s=180)
        assert done[killed_at:] and min(done[killed_at:]) >= before
        assert all(liar.asked for liar in liars), "they were asked, and it did no harm"
        assert owner.node is not None
        copies = owner.node._swarm.up_bytes / len(state)
        assert copies < 3, f"the owner sent {copies:.1f} copies to six peers, of which two lied"

    run = holds(simulate(7, scenario, weather=Weather(bytes_per_s=60e3), signed=signed))
    assert not any(HandlerFailed.__name__ in line for line in run.trace)


@pytest.mark.slow
def test_nobody_begins_before_somebody_has_the_first_state() -> None:
    async def scenario(world: World) -> None:
        owner, *others = world.seats
        for seat in others:
            world.start(seat)
        await trio.sleep(60)
        assert world.rounds() == [0, 0]
        waiting = others[0].node
        assert waiting is not None and "initial weights" in waiting.status().why_detail
        give(owner)
        world.start(owner)
        await world.until_round(2, within_s=120)
        await world.until_equal(within_s=30)

    holds(simulate(3, scenario, signed=SIGNED))


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [2, 14])
def test_a_joiner_needs_the_first_state_only_while_there_is_no_newer_one(rounds: int) -> None:
    async def scenario(world: World) -> None:
        first, second, joiner = world.seats
        give(first)
        world.start(first)
        world.start(second)
        await world.until_round(rounds, within_s=300)
        world.start(joiner)
        await world.until_round(rounds + 2, within_s=120)
        await world.until_equal(within_s=30)

    holds(simulate(3, scenario, signed=SIGNED))


@pytest.mark.slow
def test_a_false_first_state_is_neither_used_nor_taken_over() -> None:
    async def scenario(world: World) -> None:
        liar, *others = world.seats
        give(liar, STATE[:-4] + b"\x01\x00\x00\x00")
        world.start_all()
        await trio.sleep(60)
        assert world.rounds() == [0, 0, 0]
        assert not list((liar.folder / "checkpoints").glob(f"{0:08}-{genesis_tip(SIGNED.run).hex()}"))
        assert not [path for seat in others for path in (seat.folder / "checkpoints").glob("0*")]

    holds(simulate(3, scenario, signed=SIGNED))
