"""Liars among those that are asked to ratify provisional records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from unittest.mock import patch

from protocol.agreement.ballot import RATIFYING, vote_to_ratify
from protocol.chain.base import Base
from protocol.node.state import Ratifier
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Certificate, Signature
from protocol.wire.questions import RatificationRequest
from tests.attacks.attack import Attack, Conduct
from tests.attacks.stage import Stage, soon_settled_run
from tests.simulation.seat import Seat

Answer = Callable[[Ratifier, RatificationRequest], list[Signature]]


def anything(ratifier: Ratifier, question: RatificationRequest) -> list[Signature]:
    """Its own vote for whatever record is asked about."""
    history, session = ratifier._replica.history, ratifier._session
    tip = history.tip_at(min(question.round, history.length))
    base = Base(question.round, 0, tip, history.base.electors)
    vote = vote_to_ratify(base, Hash(question.record_hash))
    return [Signature(peer=session.me, signature=session.seal(vote).signature)]


def forged(ratifier: Ratifier, question: RatificationRequest) -> list[Signature]:
    """The votes of all electors, none of which they signed."""
    [own] = anything(ratifier, question)
    return [Signature(peer=peer, signature=own.signature) for peer in ratifier._replica.history.base.electors]


def nothing(ratifier: Ratifier, question: RatificationRequest) -> list[Signature]:
    """A vote that is none."""
    return [Signature(peer=ratifier._session.me, signature=bytes(64))]


def _answering(stage: Stage, say: Answer) -> Callable[[Ratifier, PeerId, RatificationRequest], Awaitable[bytes]]:
    honest, liars = Ratifier.answer, {seat.peer for seat in stage.liars}

    async def answer(self: Ratifier, peer: PeerId, question: RatificationRequest) -> bytes:
        if self._session.me not in liars:
            return await honest(self, peer, question)
        return Certificate(attempt=RATIFYING, absent=[], votes=say(self, question)).encode()

    return answer


def _is_final(seat: Seat) -> bool:
    return seat.node is not None and seat.node.status().final_rounds >= seat.node.rounds - 1


def _parted(say: Answer) -> Conduct:
    async def conduct(stage: Stage) -> None:
        """Two parts without a quorum go on alone for a minute; the liars are in one of them.  When they meet again, all that
        is left becomes final."""
        await stage.begin()
        with patch.object(Ratifier, "answer", _answering(stage, say)):
            stage.world.faults.partition(stage.world.seats[:2], stage.world.seats[2:])
            await stage.world.until("rounds of the parts", lambda: stage.rounds() >= 5, 240)
            stage.world.faults.heal()
            await stage.world.until("all is final", lambda: all(map(_is_final, stage.honest)), 400)

    return conduct


ATTACKS = [
    Attack(
        f"ratifies {name}",
        "after two parts of two went on alone",
        _parted(say),
        4,
        1,
        run=soon_settled_run,
        begun=False,
        paced=False,
    )
    for name, say in (("anything", anything), ("by forged votes", forged), ("nothing", nothing))
]
