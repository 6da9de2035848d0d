"""Tasks of the crowd in simulation: the same for everybody, whoever comes late or dies, and out when they teach nothing."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import pytest
import trio

from protocol.events.events import Event, Notice, NoticeCode
from protocol.short_id import short_id
from protocol.tasks.commands import CannotAmend, TaskSetCommands
from protocol.tasks.counting import LEAST_SCORED_TWICE
from protocol.tasks.library import SetFiles
from protocol.tasks.task_sets import MOST, MOST_OF_ONE, MOST_TOLD, REPEAT_S
from protocol.transport.interface import Acceptance
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity
from protocol.wire.messages import pack
from protocol.wire.presence import Role
from protocol.wire.rollouts import MAX_SET_BYTES, AdmittedSet, Amendment, TaskSet
from tests.attacks.rollout_liars import FalseScores, FalseScoresOfPrograms
from tests.simulation.rollouts import ROLES, RolloutJudge, Seats, played, rl_run
from tests.simulation.runs import begin, is_notice
from tests.simulation.seat import Seat
from tests.simulation.wire import Weather
from tests.simulation.world import ORGANISER, World, changed
from tests.tiers import first_fast

LOSSY = Weather(gossip_loss=0.25, gossip_copies=0.2, gossip_late=0.1, request_loss=0.004)
SIGNED = rl_run()
NOTHING = memoryview(SIGNED.manifest.layouts.contribution.zeros())
"""What a trainer contributes that has nothing to learn from."""
COUNTED = ("verdicts", "scored_twice")


def some_tasks(answer: str, count: int = 3) -> bytes:
    lines = [
        {
            "problem_id": f"{answer} {number}",
            "task_type": "exact_answer",
            "prompt": "?",
            "verification_info": {"ground_truth": answer},
        }
        for number in range(count)
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def desk_of(seat: Seat) -> TaskSetCommands:
    assert seat.node is not None and seat.node.tasks is not None
    return seat.node.tasks


async def publish(seat: Seat, data: bytes) -> str:
    """A volunteer offers tasks; the ID."""
    path = desk_of(seat).folder / ".given-1.new"
    path.write_bytes(data)
    return (await desk_of(seat).publish(path, "sums", data.count(b"\n"))).root.hex()


def states(seat: Seat) -> dict[str, str]:
    """Of the sets that a peer knows, by ID; with a `!` where the bytes are here."""
    if seat.node is None or not seat.up:
        return {}
    return {each["id"]: each["state"] + "!" * each["here"] for each in desk_of(seat).status()["sets"]}


async def admitted(world: World, publisher: Seat, organiser: Seat, data: bytes, percent: int | None = None) -> str:
    name = await publish(publisher, data)
    await world.until("the organiser hears of the set", lambda: name in states(organiser), within_s=120)
    await desk_of(organiser).admit(name[:12], percent, data.count(b"\n"))
    await world.until(
        "everybody has the set",
        lambda: all(states(seat).get(name) == "admitted!" for seat in world.seats if seat.up),
        within_s=240,
    )
    return name


def crowd_problems(seat: Seat) -> int:
    """Problems of the crowd that this peer's present trainer process has learned from."""
    counting = desk_of(seat).status()["sets"]
    return sum(each["attempts"] for each in counting)


class FallenSets(dict[str, int]):
    """At which version each peer left a set out."""

    def listen(self, seat: Seat, event: Event) -> None:
        if isinstance(event, Notice) and event.code == NoticeCode.TASK_SET_FELL_OUT:
            self[seat.peer] = event.details["version"]


@pytest.mark.parametrize("weather", first_fast([None, LOSSY], 0))
def test_tasks_of_a_volunteer_are_solved_by_everybody_also_who_comes_late_or_dies(weather: Weather | None) -> None:
    amended: set[tuple[int, int]] = set()

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        def note(seat: Seat, event: Event) -> None:
            if isinstance(event, Notice) and event.code == NoticeCode.TASKS_AMENDED:
                amended.add((event.details["number"], event.details["version"]))

        world.listeners.append(note)
        organiser, late = seats[Role.TRAINER][0], seats[Role.ROLLOUT][-1]
        world.start_all(but=[late])
        await world.until_round(2, within_s=240)
        name = await admitted(world, seats[Role.ROLLOUT][0], organiser, some_tasks("9"))
        world.faults.kill(seats[Role.ROLLOUT][0])  # nobody needs its publisher any more
        world.start(late)
        victim = seats[Role.TRAINER][1]
        world.faults.kill(victim)
        await trio.sleep(5)
        world.start(victim)
        await world.until(
            "all have it", lambda: all(states(seat).get(name) == "admitted!" for seat in (late, victim)), within_s=240
        )
        await world.until(
            "its tasks are learned from", lambda: all(crowd_problems(seat) for seat in seats[Role.TRAINER]), within_s=240
        )
        await desk_of(organiser).remove(name[:8])
        await world.until(
            "nobody has it",
            lambda: all("admitted!" not in states(seat).values() for seat in world.seats if seat.up),
            within_s=240,
        )
        await world.until_round(max(world.rounds()) + 2, within_s=240)

    played(scenario, weather=weather, organiser=0)
    assert len(amended) == 2, "each amendment begins at the same version for everybody"


@pytest.mark.slow
def test_a_set_that_nobody_solves_falls_out_everywhere_at_one_version_and_may_come_back() -> None:
    fallen = FallenSets()

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        world.listeners.append(fallen.listen)
        organiser = seats[Role.TRAINER][0]
        await begin(world, 1, within_s=240)
        name = await admitted(world, seats[Role.ROLLOUT][0], organiser, some_tasks("never", 2), 90)
        await world.until("it falls out", lambda: len(fallen) == len(world.seats), within_s=2000)
        assert states(organiser)[name].startswith("fell out")
        await world.until_round(max(world.rounds()) + 4, within_s=240)
        await desk_of(organiser).admit(name, None, 2)
        await world.until("it is admitted again", lambda: states(organiser).get(name) == "admitted!", within_s=240)

    played(scenario, organiser=0)
    assert len({*fallen.values()}) == 1


@pytest.mark.slow
def test_a_validator_that_lies_about_scores_is_set_aside_and_disputes_no_set() -> None:
    fallen = FallenSets()

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        world.listeners.append(fallen.listen)
        organiser, liar = seats[Role.TRAINER][0], seats[Role.VALIDATOR][1]
        await begin(world, 1, within_s=240)
        name = await admitted(world, seats[Role.ROLLOUT][0], organiser, some_tasks("9", 2), 90)
        await world.until("the liar is set aside", lambda: liar.peer in judge.aside, within_s=600)
        assert all("scores" in reason for reason in judge.aside[liar.peer].values())
        await world.until_round(max(world.rounds()) + 8, within_s=600)
        [shown] = [each for each in desk_of(organiser).status()["sets"] if each["id"] == name]
        assert shown["verdicts"] == shown["agreeing"], "what it said is not counted"

    played(scenario, ROLES, {(Role.VALIDATOR, 1): FalseScores}, organiser=0)
    assert not fallen


@pytest.mark.slow
def test_no_crowd_of_validators_has_a_set_fall_out_by_scores_of_programs() -> None:
    """Nobody can prove that they are false, and keys are free: all validators say them here, and no honest one."""
    fallen = FallenSets()

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        world.listeners.append(fallen.listen)
        organiser = seats[Role.TRAINER][0]
        await begin(world, 1, within_s=240)
        name = await admitted(world, seats[Role.ROLLOUT][0], organiser, some_tasks("program", 2), 90)

        def shown() -> dict[str, int]:
            return next(each for each in desk_of(organiser).status()["sets"] if each["id"] == name)

        await world.until(
            "much was said and scored twice",
            lambda: all(shown()[each] > LEAST_SCORED_TWICE for each in COUNTED),
            within_s=3000,
        )
        assert shown()["agreeing"] == 0 and shown()["same"] == shown()["scored_twice"], "people can see it"
        assert not judge.aside

    liars = {(Role.VALIDATOR, place): FalseScoresOfPrograms for place in range(ROLES[Role.VALIDATOR])}
    played(scenario, ROLES, liars, organiser=0)
    assert not fallen


@pytest.mark.slow
def test_a_set_whose_answers_get_other_scores_each_time_falls_out() -> None:
    fallen = FallenSets()

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        world.listeners.append(fallen.listen)
        await begin(world, 1, within_s=240)
        await admitted(world, seats[Role.ROLLOUT][0], seats[Role.TRAINER][0], some_tasks("maybe a program", 2), 90)
        await world.until("it falls out", lambda: len(fallen) == len(world.seats), within_s=3000)

    played(scenario, organiser=0)
    assert len({*fallen.values()}) == 1


@pytest.mark.slow
def test_a_set_that_nobody_has_any_more_falls_out_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.tasks.task_sets.LOST_S", 30.0)
    fallen = FallenSets()
    warned: set[str] = set()

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        def note(seat: Seat, event: Event) -> None:
            fallen.listen(seat, event)
            if isinstance(event, Notice) and "leave the set out" in event.text:
                warned.add(seat.peer)

        world.listeners.append(note)
        for seat in world.seats:
            world.judge.on_contribution(seat.peer, NOTHING, ())
        publisher = seats[Role.ROLLOUT][0]
        await begin(world, 1, within_s=240)
        name = await admitted(world, publisher, seats[Role.TRAINER][0], some_tasks("9"), 90)
        for seat in world.seats:
            world.faults.kill(seat)
        for path in seats[Role.TRAINER][0].folder.parent.glob(f"*/**/{name}.*"):
            path.unlink()
        world.start_all()
        await world.until("it falls out", lambda: len(fallen) == len(world.seats), within_s=600)
        assert {seat.peer for seat in seats[Role.TRAINER]} <= warned
        await world.until_round(max(world.rounds()) + 3, within_s=240)

    played(scenario, organiser=0)
    assert len({*fallen.values()}) == 1


@pytest.mark.slow
def test_where_the_voters_do_not_train_rounds_of_nothing_are_few_and_the_organiser_ends_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody's vote takes a lost set out then; rounds that followed each other at once would have no end."""
    lost_s = 60.0
    monkeypatch.setattr("protocol.tasks.task_sets.LOST_S", lost_s)
    roles = {Role.SEED: 1, Role.TRAINER: 2, Role.ROLLOUT: 2, Role.VALIDATOR: 1}
    signed = changed(SIGNED, founders=[ORGANISER.peer_id])

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        for seat in world.seats:
            world.judge.on_contribution(seat.peer, NOTHING, ())
        organiser = seats[Role.SEED][0]
        await begin(world, 1, within_s=240)
        name = await admitted(world, seats[Role.ROLLOUT][0], organiser, some_tasks("9"), 90)
        for seat in world.seats:
            world.faults.kill(seat)
        for path in organiser.folder.parent.glob(f"*/**/{name}.*"):
            path.unlink()
        world.start_all()
        await trio.sleep(2 * lost_s)
        before = max(world.rounds())
        await trio.sleep(4 * lost_s)
        assert 2 <= max(world.rounds()) - before <= 5
        await desk_of(organiser).remove(name[:12])
        await world.until("it is gone", lambda: all(name not in states(seat) for seat in world.seats), within_s=3 * lost_s)
        await world.until_round(max(world.rounds()) + 4, within_s=240)

    played(scenario, roles, signed=signed, organiser=0)


@pytest.mark.slow
def test_statements_of_others_admit_nothing_and_cost_little() -> None:
    """Forged, replayed from another run, malformed, or too many: no handler raises, and nothing is in force."""
    stranger = Identity.from_seed(bytes([7]) * 32)
    one = AdmittedSet(name="s", count=1, size=9, root=bytes(32), slot=1, publisher=stranger.peer_id)
    amendment = Amendment(number=9, percent=50, sets=[one])
    wrong = pack(ORGANISER, SIGNED.run, amendment).raw
    hostile = [
        pack(stranger, SIGNED.run, amendment).raw,
        pack(ORGANISER, Hash(bytes(32)), amendment).raw,
        wrong[:-1],
        wrong[:-1] + bytes([wrong[-1] ^ 1]),
        wrong.replace(b"percent2", b"percentZ"),
    ]

    told: Counter[int] = Counter()

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        world.listeners.append(
            lambda seat, event: told.update([seat.number] * is_notice(event, NoticeCode.TASK_SET_OFFERED))
        )
        await begin(world, 1, within_s=240)
        seat, random = seats[Role.TRAINER][1], Random(1)
        assert seat.node is not None
        for raw in hostile:
            assert seat.node.router.on_gossip(stranger.peer_id, raw) is Acceptance.REJECT
        for number in range(500):
            offer = TaskSet(name="s", count=1, size=MAX_SET_BYTES, root=number.to_bytes(32, "big"))
            key = Identity.from_seed(random.randbytes(32)) if number % 2 else seats[Role.ROLLOUT][0].identity
            seat.node.router.on_gossip(stranger.peer_id, pack(key, SIGNED.run, offer).raw)
        assert 0 < told[seat.number] <= 2 * MOST_TOLD, "nor does a crowd fill the log"
        await world.until_round(max(world.rounds()) + 2, within_s=240)
        known = states(seat)
        assert len(known) <= MOST and set(known.values()) <= {"offered"}, "nothing of it is fetched"
        assert (
            sum(each["publisher"] == seats[Role.ROLLOUT][0].peer for each in desk_of(seat).status()["sets"]) <= MOST_OF_ONE
        )
        assert all(desk_of(each).status()["amendment"] == 0 for each in world.seats)

    played(scenario, organiser=0)


@pytest.mark.slow
def test_a_stranger_that_offers_anothers_set_in_a_false_size_keeps_it_from_nobody() -> None:
    stranger, data = Identity.from_seed(bytes([7]) * 32), some_tasks("9")
    found: list[str] = []

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        await begin(world, 1, within_s=240)
        organiser, publisher = seats[Role.TRAINER][0], seats[Role.ROLLOUT][0]
        path = desk_of(publisher).folder / ".measured.new"
        path.write_bytes(data)
        root = SetFiles._measure(path)[0]
        false = pack(stranger, SIGNED.run, TaskSet(name="s", count=3, size=len(data) + 1, root=root)).raw
        for seat in world.seats:
            assert seat.node is not None
            seat.node.router.on_gossip(stranger.peer_id, false)
        name = await publish(publisher, data)
        for _ in range(9):
            try:
                await desk_of(organiser).admit(name, None, data.count(b"\n"))
                break
            except CannotAmend as error:
                found.append(str(error))
                await trio.sleep(2 * REPEAT_S)
        await world.until("it is admitted", lambda: states(organiser).get(name) == "admitted!", within_s=240)

    played(scenario, {Role.TRAINER: 1, Role.ROLLOUT: 1, Role.VALIDATOR: 1}, organiser=0)
    assert found and short_id(stranger.peer_id) in found[0], "it was heard first"


@pytest.mark.slow
def test_only_the_organiser_admits() -> None:
    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        await begin(world, 1, within_s=240)
        volunteer = seats[Role.ROLLOUT][0]
        name = await publish(volunteer, some_tasks("9"))
        with pytest.raises(CannotAmend, match="only the run's organiser"):
            await desk_of(volunteer).admit(name, None, 3)
        with pytest.raises(CannotAmend, match="0 sets that are offered"):
            await desk_of(seats[Role.TRAINER][0]).admit("f" * 64, None, 3)

    played(scenario, organiser=0)
