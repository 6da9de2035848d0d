"""Who is in stays in: tokens expire, members come back, and everybody else stays outside.

The wall clock of these peers is the world's time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from unittest.mock import patch

import pytest
import trio

from protocol.agreement.policy import ClosingPolicy
from protocol.events.events import Dropped, Event, Notice
from protocol.events.status import WhyIdle
from protocol.run.admission import Hello, bearer_token, bound_token, make_proof
from protocol.run.manifest import Admission, SignedManifest
from protocol.transport.interface import Refused
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Ready
from tests.simulation.runs import holds, simulate
from tests.simulation.seat import Seat
from tests.simulation.world import ORGANISER, World, changed, simulated_run

KEY = Identity.from_seed(b"\x2b" * 32)
EXPIRES_S = 60
LATER_S = 1_000_000


@lru_cache(maxsize=1)
def invited_run() -> SignedManifest:
    """Nobody begins it alone, so who is let in nowhere commits nothing."""
    return changed(simulated_run(2), admission=Admission.INVITE)


def invite(seat: Seat, expires: int) -> None:
    run = invited_run().run
    seat.admission = make_proof(bound_token(ORGANISER, run, seat.peer, expires=expires), run, seat.peer)


def give_bearer_token(seat: Seat, expires: int) -> None:
    """The one token that whoever holds it may use."""
    run = invited_run().run
    seat.admission = make_proof(bearer_token(ORGANISER, run, KEY, expires=expires), run, seat.peer, KEY)


def invite_all(seats: Iterable[Seat], expires: int = LATER_S) -> None:
    for seat in seats:
        invite(seat, expires)


def members(seat: Seat) -> set[str]:
    """Of all records of its chain."""
    assert seat.node is not None
    commits = [seat.node.commit_at(round) for round in range(seat.node.rounds)]
    return {member.peer for commit in commits for member in commit.record.members}


def newest(seat: Seat) -> set[str]:
    assert seat.node is not None and seat.node.rounds
    return {member.peer for member in seat.node.commit_at(seat.node.rounds - 1).record.members}


def refusals(world: World) -> list[tuple[int, str]]:
    """What peers are told at doors from now on: who, and the sentence."""
    heard: list[tuple[int, str]] = []

    def listen(seat: Seat, event: Event) -> None:
        if isinstance(event, Notice) and event.level == "warning":
            heard.append((seat.number, event.text))

    world.listeners.append(listen)
    return heard


async def begin(world: World, seats: Iterable[Seat]) -> None:
    """All of them in one record."""
    wanted = list(seats)
    for seat in wanted:
        world.start(seat)
    names = {seat.peer for seat in wanted}
    await world.until(
        "one record of all",
        lambda: all(seat.node is not None and seat.node.rounds > 0 and newest(seat) >= names for seat in wanted),
        within_s=120,
    )


async def until_expired(world: World) -> None:
    await trio.sleep(max(0.0, EXPIRES_S + 1 - world.now()))


@pytest.mark.slow
def test_a_member_comes_back_with_the_token_that_has_expired() -> None:
    async def scenario(world: World) -> None:
        stays, also, returns = world.seats
        invite_all((stays, also))
        invite(returns, EXPIRES_S)
        await begin(world, world.seats)
        world.faults.kill(returns)
        await until_expired(world)
        heard = refusals(world)
        world.start(returns)
        reached = max(world.rounds())
        await world.until_round(reached + 3, within_s=120)
        await world.until("it is a member again", lambda: returns.peer in newest(stays), within_s=60)
        assert not heard

    holds(simulate(3, scenario, signed=invited_run()))


@pytest.mark.slow
def test_members_whose_tokens_have_all_expired_meet_again_after_all_of_them_restarted() -> None:
    async def scenario(world: World) -> None:
        invite_all(world.seats, EXPIRES_S)
        await begin(world, world.seats)
        for seat in world.seats:
            world.faults.kill(seat)
        await until_expired(world)
        before = {seat.number: seat.lives for seat in world.seats}
        await begin(world, world.seats)
        assert all(seat.lives == before[seat.number] + 1 for seat in world.seats)
        reached = max(world.rounds())
        await world.until_round(reached + 2, within_s=120)
        await world.until("all are members", lambda: newest(world.seats[0]) == {s.peer for s in world.seats}, within_s=60)

    holds(simulate(3, scenario, signed=invited_run()))


@pytest.mark.slow
def test_who_came_in_in_time_may_take_its_time_until_its_first_record() -> None:
    async def scenario(world: World) -> None:
        one, two, three, slow = world.seats
        invite_all((one, two, three))
        invite(slow, EXPIRES_S)
        await begin(world, (one, two, three))
        world.start(slow)
        await world.until(
            "it is let in", lambda: one.node is not None and one.node._handshake.may_speak(slow.peer), within_s=20
        )
        assert slow.node is not None
        slow.node.permit.suspend(WhyIdle.PAUSED, "paused")
        await until_expired(world)
        assert slow.peer not in members(one)
        world.faults.kill(three)
        world.start(three)  # has not met it, and sees the proof in its READY
        slow.node.permit.restore(WhyIdle.PAUSED)
        await world.until("it is a member", lambda: slow.peer in newest(one), within_s=120)

    holds(simulate(4, scenario, signed=invited_run()))


@pytest.mark.slow
def test_an_expired_token_without_a_record_stays_outside_even_if_a_member_came_in_with_it() -> None:
    async def scenario(world: World) -> None:
        one, other, member, late = world.seats
        invite_all((one, other))
        for seat in (member, late):
            give_bearer_token(seat, EXPIRES_S)
        await begin(world, (one, other, member))
        await until_expired(world)
        heard = refusals(world)
        world.start(late)
        reached = one.node.rounds if one.node else 0
        await world.until("rounds go on", lambda: one.node is not None and one.node.rounds >= reached + 4, within_s=120)
        assert late.peer not in members(one) and late.node is not None and late.node.rounds == 0
        assert {text.partition(" (")[0] for who, text in heard if who == late.number} == {
            "the token of the invitation has expired; ask the run's organiser for a new invitation"
        }

    holds(simulate(4, scenario, signed=invited_run()))


@pytest.mark.slow
def test_who_was_a_member_of_a_lost_fork_only_is_a_stranger_on_the_chain_that_won() -> None:
    async def scenario(world: World) -> None:
        one, two, three, strays, late = world.seats
        invite_all((one, two, three, strays))
        invite(late, EXPIRES_S)
        await begin(world, (one, two, three, strays))
        world.faults.partition([one, two, three], [strays, late])
        world.start(late)
        await world.until(
            "a fork with the newcomer",
            lambda: strays.node is not None and late.peer in newest(strays),
            within_s=EXPIRES_S - world.now(),
        )
        world.faults.kill(late)
        await until_expired(world)
        world.faults.heal()
        await world.until("the fork is given up", lambda: late.peer not in members(strays), within_s=120)
        world.faults.kill(strays)  # nobody is left who let it in at the door
        world.start(strays)
        heard = refusals(world)
        world.start(late)
        reached = one.node.rounds if one.node else 0
        await world.until("rounds go on", lambda: one.node is not None and one.node.rounds >= reached + 4, within_s=120)
        await world.until("the fourth is back", lambda: strays.peer in newest(one), within_s=120)
        assert all(late.peer not in members(seat) for seat in (one, two, three, strays))
        assert any("expired" in text for who, text in heard if who == late.number)

    holds(simulate(5, scenario, signed=invited_run()))


@pytest.mark.slow
def test_a_newcomer_learns_who_is_in_from_the_expired_member_that_its_invitation_names() -> None:
    async def scenario(world: World) -> None:
        one, two, newcomer = world.seats
        invite_all((one, two), EXPIRES_S)
        await begin(world, (one, two))
        for seat in (one, two):
            world.faults.kill(seat)
        await until_expired(world)
        await begin(world, (one, two))
        invite(newcomer, LATER_S)
        newcomer.introduced = frozenset({one.peer})
        world.start(newcomer)
        await world.until("it is a member", lambda: newcomer.peer in newest(two), within_s=120)

    holds(simulate(3, scenario, signed=invited_run()))


@pytest.mark.slow
def test_a_member_cannot_bring_in_somebody_whom_the_organiser_did_not_invite() -> None:
    async def scenario(world: World) -> None:
        one, two, liar, friend = world.seats
        invite_all((one, two, liar))
        heard: list[str] = []
        world.listeners.append(lambda seat, event: heard.append(event.what) if isinstance(event, Dropped) else None)
        await begin(world, (one, two, liar))
        assert liar.node is not None
        handshake = liar.node._handshake
        may_contribute = handshake.may_contribute
        handshake.may_contribute = lambda peer: peer == friend.peer or may_contribute(peer)  # type: ignore[method-assign]
        handshake.may_be_named = lambda sender, ready: True  # type: ignore[method-assign]
        handshake._guests.add(friend.peer, b"", None)
        friend.step_s = 0.05  # nobody waits for it: it has to be quick
        world.start(friend)
        with patch.object(ClosingPolicy, "_is_admitted", careless(liar.peer)):
            await world.until("the liar proposes its friend", lambda: "proposal" in heard, within_s=400)
            reached = max(world.rounds())
            await world.until("rounds go on", lambda: one.node is not None and one.node.rounds >= reached + 4, within_s=200)
        assert all(friend.peer not in members(seat) for seat in (one, two, liar))

    holds(simulate(4, scenario, signed=invited_run()))


def careless(liar: PeerId) -> Callable[[ClosingPolicy, PeerId, Ready], bool]:
    """The liar takes everybody's READY; all others look at the proof."""
    careful = ClosingPolicy._is_admitted
    return lambda policy, peer, ready: policy.me == liar or careful(policy, peer, ready)


def test_a_newcomer_that_only_the_proposer_has_met_is_known_to_the_voters_by_its_ready() -> None:
    async def scenario(world: World) -> None:
        one, two, three, newcomer = world.seats
        invite_all(world.seats)
        await begin(world, (one, two, three))
        for seat in (two, three):
            assert seat.node is not None
            seat.node._handshake.answer_hello = unheard  # type: ignore[method-assign]
        newcomer.step_s = 0.05  # those that have not met it do not wait for it
        world.start(newcomer)
        await world.until("it is a member", lambda: newcomer.peer in newest(two), within_s=200)

    holds(simulate(4, scenario, signed=invited_run()))


async def unheard(peer: PeerId, hello: Hello) -> bytes:
    raise Refused("no line to you")
