"""The held-out loss in a swarm: who measures, how often, and what the others make of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
import trio

from protocol.events.events import Dropped, EvalLoss, EvalProgress, Event, Notice, RoundCommitted, SamplesWritten
from protocol.events.status import WhyIdle
from protocol.formats.training import SamplesConfig
from protocol.node.evaluator import drawn_order
from protocol.run.manifest import SignedManifest
from protocol.run.sections import DataSection
from protocol.trainer_link import EvaluatedLoss
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.presence import Measurement
from tests.attacks.ghosts import Ghost
from tests.simulation.arithmetic_trainer import ArithmeticTrainer
from tests.simulation.runs import begin, holds, simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World, changed, simulated_run


@dataclass
class Record:
    """Everything about held-out losses that the peers of a world said.

    measured: for each number of rounds, the peers that measured.  heard: for each peer, what it knows of each state.
    """

    measured: dict[int, list[PeerId]] = field(default_factory=dict)
    heard: dict[PeerId, dict[int, tuple[float, str]]] = field(default_factory=dict)
    progress: Counter[PeerId] = field(default_factory=Counter)
    tips: dict[int, Hash] = field(default_factory=dict)
    samples: dict[int, list[tuple[PeerId, SamplesWritten]]] = field(default_factory=dict)
    others: list[tuple[Seat, Event]] = field(default_factory=list)

    def listen(self, seat: Seat, event: Event) -> None:
        match event:
            case EvalLoss(rounds, loss, by):
                self.heard.setdefault(seat.peer, {})[rounds] = loss, by
                if by == seat.peer:
                    self.measured.setdefault(rounds, []).append(seat.peer)
            case SamplesWritten(rounds):
                self.samples.setdefault(rounds, []).append((seat.peer, event))
            case EvalProgress():
                self.progress[seat.peer] += 1
            case RoundCommitted(round, tip):
                self.tips[round + 1] = Hash(bytes.fromhex(tip))
            case Dropped() | Notice():
                self.others.append((seat, event))


def watched(world: World) -> Record:
    record = Record()
    world.listeners.append(record.listen)
    return record


def lived(peers: int, scenario: Callable[[World, Record], Awaitable[None]], signed: SignedManifest | None = None) -> None:
    async def with_record(world: World) -> None:
        await scenario(world, watched(world))

    holds(simulate(peers, with_record, signed=signed))


def run_with_prompts(**changes: object) -> SignedManifest:
    samples = SamplesConfig(prompts=["Once upon a time", "def "])
    return changed(simulated_run(), samples=samples, **changes)


def members_after(world: World, rounds: int) -> list[PeerId]:
    """The members of the record that made the state after `rounds` rounds."""
    node = world.up()[0].node
    assert node is not None
    return [PeerId(member.peer) for member in node.commit_at(rounds - 1).record.members]


@pytest.mark.slow
def test_each_state_is_measured_once_by_whom_its_tip_draws_and_known_to_all() -> None:
    async def scenario(world: World, record: Record) -> None:
        await begin(world, 9, within_s=120)
        for rounds in range(8):
            assert len(record.measured[rounds]) == 1, f"the state after {rounds} rounds"
            if rounds:
                assert record.measured[rounds] == drawn_order(record.tips[rounds], members_after(world, rounds))[:1]
            said = {record.heard[seat.peer][rounds] for seat in world.seats}
            assert len(said) == 1, "everybody knows the same number"
        ends = sum(seat.trainer.said.count("evaluated") for seat in world.seats if seat.trainer)
        begins = sum(seat.trainer.said.count("evaluate") for seat in world.seats if seat.trainer)
        assert ends == len(record.measured) and begins <= ends + 1, "one may be in the middle of it"
        for words in (seat.trainer.said for seat in world.seats if seat.trainer):
            commands = [word for word in words if word != "evaluated"]
            for before, command in zip(["", *commands], commands, strict=False):
                assert command != "evaluate" or before.startswith("compute"), "it is told to train first"

    lived(4, scenario)


def test_alone_it_measures_itself() -> None:
    async def scenario(world: World, record: Record) -> None:
        await begin(world, 5, within_s=120)
        assert all(record.measured[rounds] == [world.seats[0].peer] for rounds in range(4))
        status = world.seats[0].node.status()  # type: ignore[union-attr]
        assert status.eval_by == world.seats[0].peer and status.eval_rounds in (4, 5)

    lived(1, scenario)


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["killed", "paused", "leaves"])
def test_when_who_was_drawn_drops_out_the_next_in_the_order_measures(trouble: str) -> None:
    async def scenario(world: World, record: Record) -> None:
        victims: list[tuple[Seat, int]] = []

        def on_event(seat: Seat, event: Event) -> None:
            if isinstance(event, EvalProgress) and event.rounds >= 2 and not victims:
                victims.append((seat, event.rounds))
                world.spawn(strike, seat)

        async def strike(seat: Seat) -> None:
            if trouble == "killed":
                world.faults.kill(seat)
            elif trouble == "paused":
                seat.node.permit.suspend(WhyIdle.PAUSED, "paused")  # type: ignore[union-attr]
            else:
                world.leave(seat)
            await trio.lowlevel.checkpoint()

        for seat in world.seats:
            seat.step_s = 4.0  # a round is long enough to notice that somebody is gone
        world.listeners.append(on_event)
        await begin(world, 2, within_s=120)
        await world.until("somebody measures", lambda: bool(victims), within_s=200)
        victim, rounds = victims[0]
        await world.until("another measurement", lambda: bool(record.measured.get(rounds)), within_s=200)
        order = drawn_order(record.tips[rounds], members_after(world, rounds))
        assert order[0] == victim.peer
        assert record.measured[rounds] == [order[1]]

    lived(4, scenario)


@pytest.mark.slow
def test_claims_of_a_stranger_and_of_a_member_that_was_not_drawn_are_dropped_once_and_change_nothing() -> None:
    async def scenario(world: World, record: Record) -> None:
        lies: list[tuple[Seat, int]] = []

        def on_event(seat: Seat, event: Event) -> None:
            if isinstance(event, EvalProgress) and event.rounds >= 2 and not lies:
                liar = next(other for other in world.seats if other is not seat)
                assert liar.node is not None
                lies.append((liar, event.rounds))
                liar.node._activity.measured = claim(event.rounds)
                liar.node._activity.tell_now()
                world.spawn(speak, event.rounds)

        def claim(rounds: int) -> Measurement:
            return Measurement(rounds=rounds, tip=record.tips[rounds], loss=0.25, samples=["lies", "lies"])

        async def speak(rounds: int) -> None:
            beat = ghost.beat(1, rounds, record.tips[rounds])
            await ghost.gossip(beat.model_copy(update={"measured": claim(rounds)}))

        for seat in world.seats:
            seat.step_s = 3.0  # measuring takes several heartbeats
        world.listeners.append(on_event)
        ghost = Ghost(world, Identity.from_seed(b"g" * 32))
        await begin(world, 4, within_s=300)
        liar, rounds = lies[0]
        order = drawn_order(record.tips[rounds], members_after(world, rounds))
        assert record.measured[rounds] == order[:1] and liar.peer != order[0]
        assert {known[rounds][1] for known in record.heard.values()} == {order[0]}
        written = record.samples[rounds]
        assert len(written) == 3 and all("lies" not in event.completions.values() for _, event in written)
        assert {event.by for _, event in written} == {order[0]}
        drops = [(seat.peer, event.peer, event.reason) for seat, event in record.others if isinstance(event, Dropped)]
        assert Counter(peer for peer, author, reason in drops if author == liar.peer and "drawn" in reason) == {
            seat.peer: 1 for seat in world.seats if seat is not liar
        }
        reasons = [reason for _, author, reason in drops if author == ghost.peer]
        assert reasons == ["the peer was not a member of that round"] * len(world.seats)

    lived(3, scenario, run_with_prompts())


class Diverged(ArithmeticTrainer):
    """Its parameters are worthless."""

    async def evaluate(
        self, theta: memoryview, on_progress: Callable[[int, int], None], row: int = 0, *, samples: bool = False
    ) -> EvaluatedLoss:
        await super().evaluate(theta, on_progress, row)
        return EvaluatedLoss(float("nan"))


@pytest.mark.slow
def test_a_loss_that_is_no_number_is_told_to_nobody() -> None:
    async def scenario(world: World, record: Record) -> None:
        for seat in world.seats:
            seat.make_trainer = Diverged
        await begin(world, 5, within_s=120)
        assert record.measured == {} and record.heard == {}
        notices = [event.text for _, event in record.others if isinstance(event, Notice)]
        assert any("held-out loss after 2 rounds is nan" in text for text in notices)

    lived(2, scenario)


def test_the_last_state_is_measured_once_before_all_leave() -> None:
    async def scenario(world: World, record: Record) -> None:
        for seat in world.seats:
            seat.stop_after = 3
            world.start(seat)
        await world.until("all have left", lambda: not world.up(), within_s=120)
        assert len(record.measured[3]) == 1
        assert {known[3] for known in record.heard.values()} == {record.heard[world.seats[0].peer][3]}
        assert len(record.heard) == 3

    lived(3, scenario)


@pytest.mark.slow
def test_finish_does_not_wait_for_the_last_measurement() -> None:
    async def scenario(world: World, record: Record) -> None:
        seat = world.seats[0]
        seat.step_s, seat.stop_after = 30.0, 1
        world.start(seat)
        await world.until(
            "the end is being measured",
            lambda: seat.node is not None and "measuring" in str(seat.node.status().why_detail),
            within_s=600,
        )
        assert seat.node is not None
        seat.node.finish()
        await world.until("it has left", lambda: not seat.up, within_s=10)
        assert 1 not in record.measured

    lived(1, scenario)


@pytest.mark.slow
def test_the_samples_of_the_member_that_measures_are_the_same_at_all_peers() -> None:
    async def scenario(world: World, record: Record) -> None:
        await begin(world, 6, within_s=120)
        for rounds in range(5):
            written = record.samples[rounds]
            assert sorted(peer for peer, _ in written) == sorted(seat.peer for seat in world.seats)
            assert len({str(event) for _, event in written}) == 1, "all peers have the same texts"
            event = written[0][1]
            assert [event.by] == record.measured[rounds] and list(event.completions) == ["Once upon a time", "def "]
            assert event.completions["def "].startswith("def ↵")
        assert len({event.completions["def "] for _, event in (record.samples[each][0] for each in range(5))}) == 5

    lived(3, scenario, run_with_prompts())


@pytest.mark.slow
def test_where_all_members_measure_one_of_them_writes_the_samples() -> None:
    async def scenario(world: World, record: Record) -> None:
        await begin(world, 5, within_s=120)
        for rounds in range(1, 4):
            assert len(record.measured[rounds]) == 3
            assert {event.by for _, event in record.samples[rounds]} == {
                drawn_order(record.tips[rounds], members_after(world, rounds))[0]
            }
            assert len(record.samples[rounds]) == 3

    lived(3, scenario, run_with_prompts(data=DataSection(sequence_length=8, sequences_per_step=1, source="local")))


def test_a_claim_with_another_number_of_samples_than_prompts_brings_its_loss_alone() -> None:
    class Short(ArithmeticTrainer):
        """Its model completes one of two prompts."""

        async def evaluate(
            self, theta: memoryview, on_progress: Callable[[int, int], None], row: int = 0, *, samples: bool = False
        ) -> EvaluatedLoss:
            found = await super().evaluate(theta, on_progress, row, samples=samples)
            return EvaluatedLoss(found.loss, samples=found.samples[:1])

    async def scenario(world: World, record: Record) -> None:
        for seat in world.seats:
            seat.make_trainer = Short
        await begin(world, 4, within_s=120)
        assert record.measured and not record.samples

    lived(2, scenario, run_with_prompts())
