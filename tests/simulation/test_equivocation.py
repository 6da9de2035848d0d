"""Electors that say one thing to some and another to others are ejected by everybody, and rounds go on without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import trio

from protocol.agreement.events import Send
from protocol.node.round_runner import Delivery
from protocol.wire.envelope import Body
from protocol.wire.hashes import ZERO_HASH
from protocol.wire.identity import PeerId
from protocol.wire.messages import Proposal, RecordProposal, ViewChange, Vote
from tests.simulation.runs import begin, holds, simulate
from tests.simulation.world import World
from tests.tiers import first_fast

Twist = Callable[[Send], list[Send]]


def votes_twice(effect: Send) -> list[Send]:
    """Each vote is followed by one for another record."""
    if not isinstance(effect.body, Vote):
        return [effect]
    return [effect, replace(effect, body=effect.body.model_copy(update={"record_hash": ZERO_HASH}))]


def to_halves(effect: Send, other: Body) -> list[Send]:
    """One half of the audience is sent `other`."""
    half = len(effect.to) // 2
    return [replace(effect, to=effect.to[:half]), replace(effect, to=effect.to[half:], body=other)]


def moves_twice(effect: Send) -> list[Send]:
    """One half of the audience is asked to vote for another record."""
    if not isinstance(effect.body, RecordProposal):
        return [effect]
    other = effect.body.record.model_copy(update={"result_root": ZERO_HASH})
    return to_halves(effect, effect.body.model_copy(update={"record": other}))


def proposes_twice(effect: Send) -> list[Send]:
    """One half of the audience is sent another plan, and sees the first one in the motion."""
    if not isinstance(effect.body, Proposal):
        return [effect]
    plan = effect.body.plan
    other = plan.model_copy(update={"owners": bytes(reversed(plan.owners))})
    return to_halves(effect, effect.body.model_copy(update={"plan": other}))


def shows_no_rolls(effect: Send) -> list[Send]:
    """Motions come without the quorum of rolls that they need."""
    if not isinstance(effect.body, RecordProposal):
        return [effect]
    return [replace(effect, body=effect.body.model_copy(update={"rolls": effect.body.rolls[:1]}))]


def counts_itself_out(effect: Send) -> list[Send]:
    """Rolls take their own sender for absent."""
    if not isinstance(effect.body, ViewChange):
        return [effect]
    return [replace(effect, body=effect.body.model_copy(update={"absent": [LIAR[0]]}))]


LIAR: list[PeerId] = []


@contextmanager
def lying(liar: PeerId, twist: Twist, sent: list[Send]) -> Iterator[None]:
    """Within, `liar` sends what `twist` makes of its statements; those that are not honest go into `sent`."""
    honest = Delivery.send

    def send(self: Delivery, effect: Send, nursery: trio.Nursery) -> None:
        if self._session.me != liar:
            return honest(self, effect, nursery)
        for each in twist(effect):
            if each.body != effect.body:
                sent.append(each)
            honest(self, each, nursery)
        return None

    LIAR[:] = [liar]
    Delivery.send = send  # type: ignore[method-assign]
    try:
        yield
    finally:
        Delivery.send = honest  # type: ignore[method-assign]


TWISTS = (votes_twice, moves_twice, proposes_twice, shows_no_rolls, counts_itself_out)


@pytest.mark.parametrize("twist", first_fast(TWISTS), ids=lambda twist: twist.__name__)
def test_an_elector_with_two_faces_is_ejected_and_rounds_go_on(twist: Twist) -> None:
    sent: list[Send] = []

    async def scenario(world: World) -> None:
        liar, *honest = world.seats
        world.judge.liars[liar.peer] = None
        await begin(world, 3)
        with lying(liar.peer, twist, sent):
            await world.until("a lie", lambda: any(set(each.to) - {liar.peer} for each in sent), within_s=120)
            reached = max(world.rounds())
            await world.until(
                "everybody honest has ejected the liar",
                lambda: len(world.judge.ejections.get(liar.peer, {})) == len(honest),
                within_s=10,
            )
            await world.until(
                "rounds without it",
                lambda: min(seat.node.rounds for seat in honest if seat.node) >= reached + 3,
                within_s=60,
            )
        for seat in honest:
            assert seat.node is not None
            last = seat.node.commit_at(seat.node.rounds - 1)
            assert liar.peer not in [member.peer for member in last.record.members]
            assert not last.certificate.absent, "three of four electors are a quorum"

    holds(simulate(4, scenario))
