"""Receipts of rows in a swarm: who claims work that it did not do is set aside by all, and gets another chance later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import trio

from protocol.chain.leases import Ranges
from protocol.events.events import ContributionAudited, Event, MemberSetAside, Notice
from protocol.run.manifest import SignedManifest
from protocol.run.sections import DataSection
from protocol.trainer_link import ReceiptAudit
from protocol.wire.identity import PeerId
from tests.simulation.arithmetic_trainer import ArithmeticTrainer
from tests.simulation.rider_draws import play
from tests.simulation.runs import begin, holds, simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World, changed, simulated_run


class Pretender(ArithmeticTrainer):
    """Sends receipts of rows that are not its own, while `pretends`."""

    pretends = True

    def _receipts_of(self, rows: Ranges) -> bytes:
        return super()._receipts_of(tuple((start + 1, end + 1) for start, end in rows) if self.pretends else rows)


def audited_run(min_members: int = 1, rows: int = 256) -> SignedManifest:
    """A run whose rounds have so many rows that every member may audit one or two members in each."""
    return changed(simulated_run(min_members, 1, 0), data=DataSection(sequence_length=8, sequences_per_step=rows))


class Watched:
    """Who was set aside by whom, and what was audited."""

    def __init__(self, world: World) -> None:
        self.aside: dict[PeerId, set[PeerId]] = {}
        self.verdicts: Counter[str] = Counter()
        self.notices: list[tuple[PeerId, str]] = []
        world.listeners.append(self._listen)

    def _listen(self, seat: Seat, event: Event) -> None:
        match event:
            case MemberSetAside(peer):
                self.aside.setdefault(PeerId(peer), set()).add(seat.peer)
            case ContributionAudited(verdict=verdict):
                self.verdicts[verdict] += 1
            case Notice("warning", text) if "set this peer aside" in text:
                self.notices.append((seat.peer, text))


def members_of(world: World, round: int = -1) -> set[str]:
    """The members of a record of the peer that is furthest, by default of its newest one."""
    node = max((seat.node for seat in world.up() if seat.node is not None), key=lambda node: node.rounds)
    return {member.peer for member in node.commit_at(round if round >= 0 else node.rounds - 1).record.members}


def test_free_riders_with_new_keys_get_little_by_the_draws_alone() -> None:
    found = play(peers=12, riders=3, rounds=60, day=60, rows=2560, seed=1)
    assert found.shares()["tokens"] < 0.1 and found.shares()["votes"] < 0.1, "a quarter without audits"


def lived(
    peers: int, liars: list[int], scenario: Callable[[World, Watched], object], signed: SignedManifest | None = None
) -> None:
    async def with_liars(world: World) -> None:
        watched = Watched(world)
        for number in liars:
            world.seats[number].make_trainer = Pretender
            world.judge.liars[world.seats[number].peer] = None
        await begin(world)
        await scenario(world, watched)  # type: ignore[misc]

    holds(simulate(peers, with_liars, signed=signed or audited_run()))


def test_who_pretends_is_set_aside_by_all_and_returns_once_it_works() -> None:
    async def scenario(world: World, watched: Watched) -> None:
        liar, honest = world.seats[2], {seat.peer for seat in world.seats if seat.number != 2}
        await world.until("all have set it aside", lambda: watched.aside.get(liar.peer) == honest, 300)
        assert set(watched.aside) == {liar.peer}, "nobody else"
        round = max(world.rounds())
        await world.until_round(round + 2, 60)
        assert liar.peer not in members_of(world)
        assert {peer for peer, _ in watched.notices} == {liar.peer}, "it is told why"
        assert isinstance(liar.trainer, Pretender)
        liar.trainer.pretends = False
        await world.until("it is a member again", lambda: liar.peer in members_of(world), 600)
        await world.until_round(max(world.rounds()) + 10, 120)
        assert liar.peer in members_of(world) and watched.aside == {liar.peer: honest}

    lived(5, [2], scenario)


@pytest.mark.slow
def test_a_peer_that_is_killed_while_its_state_waits_for_an_audit_keeps_its_round() -> None:
    async def scenario(world: World) -> None:
        watched, struck, killed_in = Watched(world), world.seats[1], list[int]()

        class Struck(ArithmeticTrainer):
            async def audit(self, task: ReceiptAudit, state: memoryview) -> list[float]:
                assert struck.node is not None
                while not struck.node.audits._is_closing:
                    await trio.sleep(0.01)
                killed_in.append(struck.node.rounds)
                world.faults.kill(struck)
                await trio.sleep_forever()
                raise AssertionError

        struck.make_trainer = Struck
        world.start_all()
        await world.until("it is killed", lambda: not struck.up, 60)
        await world.until_round(killed_in[0] + 3, 60)
        struck.make_trainer = ArithmeticTrainer
        world.start(struck)
        await world.until_round(max(world.rounds()) + 5, 60)
        await world.until_equal(30)
        assert struck.peer in members_of(world, killed_in[0]), "the work of the round in which it died"
        assert struck.peer in members_of(world) and not watched.aside

    holds(simulate(4, scenario, signed=audited_run()))


@pytest.mark.slow
def test_nobody_is_set_aside_among_honest_members() -> None:
    async def scenario(world: World, watched: Watched) -> None:
        await world.until_round(25, 400)
        assert not watched.aside and set(watched.verdicts) == {"sound"} and watched.verdicts["sound"] > 20

    lived(4, [], scenario)


@pytest.mark.slow
def test_a_run_of_two_goes_on_with_a_member_that_is_set_aside() -> None:
    async def scenario(world: World, watched: Watched) -> None:
        liar = world.seats[1].peer
        await world.until("it is set aside", lambda: liar in watched.aside, 200)
        round = max(world.rounds())
        await world.until_round(round + 5, 120)
        assert liar in members_of(world), "a record needs two"

    lived(2, [1], scenario, audited_run(min_members=2))


@pytest.mark.slow
def test_two_that_pretend_cannot_have_honest_members_set_aside() -> None:
    async def scenario(world: World, watched: Watched) -> None:
        liars = {world.seats[number].peer for number in (0, 3)}
        honest = {seat.peer for seat in world.seats} - liars
        found = lambda: all(watched.aside.get(liar, set()) >= honest for liar in liars)  # noqa: E731
        await world.until("all honest ones have set both aside", found, 600)
        by_honest = {peer for peer, who in watched.aside.items() if who & honest}
        assert by_honest == liars
        start = max(world.rounds())
        await world.until_round(start + 12, 120)
        with_liars = sum(bool(liars & members_of(world, round)) for round in range(start, start + 12))
        assert with_liars <= 5, "two of six electors plan two rounds of six, as long as they have a vote"

    lived(6, [0, 3], scenario)
