"""As many liars as the electors bear, acting together; and the liars that delay most, for the table of their cost."""

from __future__ import annotations

from random import Random

import trio

from protocol.wire.envelope import Body
from protocol.wire.messages import Commit, PrevoteCertificate, Proposal, RecordProposal, ViewChange, Vote
from tests.attacks.attack import Attack, Conduct
from tests.attacks.stage import Stage
from tests.simulation.chaos import cabal
from tests.simulation.exchange_liars import KeepingBack, exchanging
from tests.simulation.forgers import Withholding, half, lying, nobody


def say_anything(lies: float, seed: int, *, careful: bool = False) -> Conduct:
    """All liars say anything, and share what they hear.  careful: but nothing that is proof against them."""

    async def conduct(stage: Stage) -> None:
        with lying(cabal(Random(seed), [seat.peer for seat in stage.liars], lies, careful=careful)):
            await trio.sleep_forever()

    return conduct


async def take_turns(stage: Stage) -> None:
    """Each liar keeps back what the next one shows to a half: proposals, proofs, commits."""
    kinds: list[type[Body]] = [PrevoteCertificate, Commit, RecordProposal]
    forgers = {
        seat.peer: Withholding(kinds[number % 3], favoured=(nobody, half)[number % 2])
        for number, seat in enumerate(stage.liars)
    }
    with lying(forgers):
        await trio.sleep_forever()


async def delay_most(stage: Stage) -> None:
    """Propose nothing, vote for nothing, and give nothing in the exchange; but train, and say READY."""
    peers = {seat.peer for seat in stage.liars}
    quiet = Withholding(Proposal, RecordProposal, PrevoteCertificate, Commit, Vote, ViewChange, favoured=nobody)
    with lying(dict.fromkeys(peers, quiet)), exchanging(KeepingBack, peers):
        await trio.sleep_forever()


SIZES = ((4, 1), (7, 2), (10, 3))

ATTACKS = [
    *(
        Attack(f"{liars} of {peers} say anything, {seed}", "and share what they hear", say_anything(0.5, seed), peers, liars)
        for peers, liars in SIZES
        for seed in (1, 2)
    ),
    *(
        Attack(f"{liars} of {peers} lie always", "and share it", say_anything(1.0, 3), peers, liars)
        for peers, liars in SIZES
    ),
    *(
        Attack(f"{liars} of {peers} lie carefully", "nothing provable", say_anything(0.5, 4, careful=True), peers, liars)
        for peers, liars in SIZES
    ),
    *(
        Attack(f"{liars} of {peers} take turns", "to keep things back", take_turns, peers, liars, window_s=300)
        for peers, liars in SIZES
    ),
    *(Attack(f"{liars} of {peers} delay most", "give nothing", delay_most, peers, liars) for peers, liars in SIZES),
]
