"""Rollouts in a simulated swarm: committed, dealt, judged and learned from, whoever lies and dies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from protocol.events.events import RolloutsGenerated, RolloutsUsed
from protocol.rollouts.rollouts import SAVE_S
from protocol.run.admission import bound_token, make_proof
from protocol.run.manifest import Admission
from protocol.trainer_link import Generated, RolloutTask
from protocol.wire.presence import Role
from tests.attacks.rollout_liars import (
    AcceptsAll,
    Cheat,
    Contrary,
    Deviates,
    OneBad,
    OtherProblems,
    OtherWeights,
    Overstates,
    RejectsAll,
    Rubbish,
)
from tests.simulation.rollout_trainer import RolloutTrainer
from tests.simulation.rollouts import ROLES, RolloutJudge, Seats, played, rl_run
from tests.simulation.runs import begin
from tests.simulation.seat import Seat
from tests.simulation.wire import Weather
from tests.simulation.world import ORGANISER, World, changed
from tests.tiers import first_fast

TROUPE = {Role.TRAINER: 4, Role.ROLLOUT: 4, Role.VALIDATOR: 4}
LOSSY = Weather(gossip_loss=0.25, gossip_copies=0.2, gossip_late=0.1, request_loss=0.004)
CHEATS = (OtherWeights, OneBad, OtherProblems, Rubbish)
REASONS: dict[type[Cheat], str] = {
    OtherWeights: "wrong computation",
    OneBad: "bad sampling",
    OtherProblems: "wrong prompt",
    Rubbish: "malformed",
}
LIARS = (AcceptsAll, RejectsAll, Contrary)
ANSWERS = [
    {"reward": 1.0, "prompt": "What is 2 + 2?↵", "text": "4�[2J"},
    {"reward": 0.5, "prompt": "sort�", "text": "x" * 300},
]
"""Answers of `RolloutTrainer`, as people may see them."""


@pytest.mark.slow
def test_trainers_learn_from_rollouts_that_validators_accepted() -> None:
    used: list[RolloutsUsed] = []

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        world.listeners.append(lambda seat, event: used.append(event) if isinstance(event, RolloutsUsed) else None)
        await begin(world, 6, within_s=240)
        assert all(judge.learned[seat.number] >= 8 for seat in seats[Role.TRAINER])
        assert not judge.aside and judge.decisions["rejected"] == 0
        assert used and all(event.answers == ANSWERS for event in used)

    played(scenario)


async def until_aside(world: World, judge: RolloutJudge, liar: Seat, judges: list[Seat]) -> None:
    """Each of these peers has found out about a liar."""
    await world.until(
        f"{liar.number} is set aside", lambda: {seat.peer for seat in judges} <= {*judge.aside[liar.peer]}, within_s=240
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 3])
def test_a_third_of_each_role_lies_and_others_die(seed: int) -> None:
    """One of four trainers accuses everybody, one of four rollout peers cheats, one of four validators lies."""
    cheat, liar = CHEATS[seed % len(CHEATS)], LIARS[seed % len(LIARS)]

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        await begin(world, 2, within_s=240)
        honest = seats[Role.TRAINER][1:]
        for role in (Role.VALIDATOR, Role.ROLLOUT, Role.TRAINER):
            victim = world.random.choice(seats[role][1:])
            world.faults.kill(victim)
            await trio.sleep(world.random.random() * 10)
            world.start(victim)
            await trio.sleep(world.random.random() * 10)
        await until_aside(world, judge, seats[Role.ROLLOUT][0], honest)
        before = max(world.rounds())
        await world.until_round(before + 3, within_s=240)
        assert all(judge.learned[seat.number] for seat in honest)

    liars = {(Role.TRAINER, 0): RejectsAll, (Role.ROLLOUT, 0): cheat, (Role.VALIDATOR, 0): liar}
    played(scenario, TROUPE, liars, seed=seed, weather=LOSSY if seed % 2 else None)


@pytest.mark.slow
@pytest.mark.parametrize("liar", LIARS)
def test_a_validator_that_lies_is_set_aside_by_whoever_dealt_with_it(liar: type[RolloutTrainer]) -> None:
    """Beside a cheating rollout peer, without which one that accepts all says nothing wrong."""
    roles = {**ROLES, Role.VALIDATOR: 1}

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        cheater = seats[Role.ROLLOUT][0]
        world.start_all(but=[cheater])
        await world.until_round(3, within_s=240)
        world.start(cheater)
        lies = seats[Role.VALIDATOR][0].peer
        await world.until("somebody found out", lambda: bool(judge.aside[lies]), within_s=240)
        await world.until_round(max(world.rounds()) + 2, within_s=240)

    played(scenario, roles, {(Role.VALIDATOR, 0): liar, (Role.ROLLOUT, 0): OneBad})


@pytest.mark.parametrize("cheat", first_fast(CHEATS))
def test_a_rollout_peer_that_cheats_is_told_why_and_learned_from_by_nobody(cheat: type[Cheat]) -> None:
    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        world.start_all()
        cheater = seats[Role.ROLLOUT][0]
        await until_aside(world, judge, cheater, seats[Role.TRAINER])
        await world.until("it is told why", lambda: bool(judge.told[cheater.peer][REASONS[cheat]]), within_s=10)
        assert all(REASONS[cheat] in why for why in judge.aside[cheater.peer].values())
        await world.until_round(max(world.rounds()) + 2, within_s=240)

    played(scenario, ROLES, {(Role.ROLLOUT, 0): cheat})


@pytest.mark.slow
def test_who_states_more_tokens_than_it_made_is_set_aside() -> None:
    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        world.start_all()
        await until_aside(world, judge, seats[Role.ROLLOUT][0], seats[Role.TRAINER])

    played(scenario, ROLES, {(Role.ROLLOUT, 0): Overstates})


@pytest.mark.slow
def test_restarted_trainers_find_a_cheat_again() -> None:
    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        world.start_all()
        cheater, trainers = seats[Role.ROLLOUT][0], seats[Role.TRAINER]
        await until_aside(world, judge, cheater, trainers)
        for trainer in trainers:
            world.faults.kill(trainer)
        judge.aside.clear()
        for trainer in trainers:
            world.start(trainer)
        await world.until_round(max(world.rounds()) + 2, within_s=240)
        await until_aside(world, judge, cheater, trainers)

    played(scenario, ROLES, {(Role.ROLLOUT, 0): OneBad})


@pytest.mark.slow
def test_who_deviates_within_all_tolerances_is_set_aside_also_after_a_restart() -> None:
    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        world.start_all()
        cheater, trainer = seats[Role.ROLLOUT][0], seats[Role.TRAINER][0]
        await until_aside(world, judge, cheater, [trainer])
        assert "add up" in judge.aside[cheater.peer][trainer.peer]
        await trio.sleep(2 * SAVE_S)
        world.faults.kill(trainer)
        world.start(trainer)

        def is_aside() -> bool:
            rollouts = trainer.node._rollouts if trainer.node is not None else None
            return rollouts is not None and bool(rollouts._pool.trust.aside(cheater.peer))

        await world.until("its disk tells, and the next batch", is_aside, within_s=60)

    played(scenario, ROLES, {(Role.ROLLOUT, 0): Deviates})


@pytest.mark.slow
def test_by_invitation_peers_that_have_never_met_hear_each_others_rollouts_and_verdicts() -> None:
    """Between rollout peers, validators and two of three trainers only gossip passes, by way of the third."""
    signed = changed(rl_run(), admission=Admission.INVITE)

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        for seat in world.seats:
            token = bound_token(ORGANISER, signed.run, seat.peer, expires=1_000_000)
            seat.admission = make_proof(token, signed.run, seat.peer)
        trainers = seats[Role.TRAINER]
        strangers = [*seats[Role.ROLLOUT], *seats[Role.VALIDATOR]]
        for trainer in trainers[1:]:
            for stranger in strangers:
                world.faults.cut(trainer, stranger)
                world.faults.cut(stranger, trainer)
        world.start_all()

        def has_heard(trainer: Seat) -> bool:
            node = trainer.node
            if node is None or node._rollouts is None:
                return False
            authors = {batch.author for batch in node._rollouts._pool}
            judges = {peer for batch in node._rollouts._pool for peer in batch.judgements}
            return {seat.peer for seat in seats[Role.ROLLOUT]} <= authors and bool(
                {seat.peer for seat in seats[Role.VALIDATOR]} & judges
            )

        await world.until("all are heard", lambda: all(map(has_heard, trainers)), within_s=240)
        await world.until_round(3, within_s=240)
        assert not judge.aside

    played(scenario, signed=signed)


@pytest.mark.slow
def test_rollouts_that_nobody_serves_are_rejected_and_their_maker_is_not_blamed() -> None:
    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        await begin(world, 1, within_s=120)
        stingy = seats[Role.ROLLOUT][0]
        assert stingy.node is not None
        stingy.node._swarm.serves = False
        await world.until("it is told so", lambda: bool(judge.told[stingy.peer]["withheld"]), within_s=240)
        assert not judge.aside
        await world.until_round(max(world.rounds()) + 2, within_s=240)

    played(scenario)


@pytest.mark.slow
def test_without_validators_trainers_check_everything_themselves() -> None:
    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        await begin(world, 4, within_s=240)
        await until_aside(world, judge, seats[Role.ROLLOUT][0], seats[Role.TRAINER])

    played(scenario, {Role.TRAINER: 2, Role.ROLLOUT: 2}, {(Role.ROLLOUT, 0): OneBad})


@pytest.mark.slow
def test_a_batch_that_takes_until_it_is_too_old_is_given_up_for_one_of_newer_weights() -> None:
    begun: list[int] = []

    class Slow(RolloutTrainer):
        async def generate(self, task: RolloutTask, path: Path, on_progress: Callable[[int, int], None]) -> Generated:
            begun.append(task.version)
            if len(begun) > 1:
                return await super().generate(task, path, on_progress)
            self._alone()
            try:
                await trio.sleep_forever()
            finally:
                self._busy = False

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        slow = seats[Role.ROLLOUT][0]
        slow.make_trainer = Slow
        made: list[RolloutsGenerated] = []
        world.listeners.append(
            lambda seat, event: made.append(event) if isinstance(event, RolloutsGenerated) and seat is slow else None
        )
        world.start_all()
        await world.until("it makes others", lambda: len(made) > 2, within_s=240)
        assert begun[0] < min(event.version for event in made)

    played(scenario)


@pytest.mark.slow
def test_where_the_chain_goes_back_no_batch_is_decided_on_or_stated_twice() -> None:
    """Two of five trainers are parted from the others, make records of their own, and give them up."""

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        await begin(world, 3, within_s=120)
        few = [*seats[Role.TRAINER][3:], *seats[Role.ROLLOUT][1:], *seats[Role.VALIDATOR][1:]]
        world.faults.partition([seat for seat in world.seats if seat not in few], few)
        await trio.sleep(25)
        world.faults.heal()
        await world.until_equal(within_s=120)
        await trio.sleep(30)

    run = played(scenario, {Role.TRAINER: 5, Role.ROLLOUT: 3, Role.VALIDATOR: 2}, seed=5)
    assert any("RolledBack" in line for line in run.trace)
