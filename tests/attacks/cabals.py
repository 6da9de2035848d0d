"""As many liars as the electors bear, acting together; and the liars that delay most, for the table of their cost."""

from __future__ import annotations

from random import Random

from protocol.wire.messages import Commit, PrevoteCertificate, Proposal, RecordProposal, ViewChange, Vote
from tests.attacks.attack import WINDOW_S, Attack, Conduct, exchange, forge, holding
from tests.attacks.exchange_liars import KeepingBack
from tests.attacks.forgers import Withholding, cabal, half, lying

SIZES = ((4, 1), (7, 2), (10, 3))
"""Peers and liars; the largest are left to `python -m tests.attacks`."""


def say_anything(lies: float, seed: int, *, careful: bool = False) -> Conduct:
    """All liars say anything, and share what they hear.  careful: but nothing that is proof against them."""
    return holding(lambda stage: lying(cabal(Random(seed), stage.liar_peers, lies, careful=careful)))


take_turns = holding(forge(Withholding(PrevoteCertificate), Withholding(Commit, favoured=half), Withholding(RecordProposal)))
"""Each liar keeps back what the next one shows to a half: proofs, commits, proposals."""
delay_most = holding(
    forge(Withholding(Proposal, RecordProposal, PrevoteCertificate, Commit, Vote, ViewChange)), exchange(KeepingBack)
)
"""They propose nothing, vote for nothing, and give nothing in the exchange; but they train, and say READY."""

CONDUCTS: dict[str, tuple[str, Conduct, float]] = {
    "say anything, 1": ("and share what they hear", say_anything(0.5, 1), WINDOW_S),
    "say anything, 2": ("and share what they hear", say_anything(0.5, 2), WINDOW_S),
    "lie always": ("and share it", say_anything(1.0, 3), WINDOW_S),
    "lie carefully": ("nothing provable", say_anything(0.5, 4, careful=True), WINDOW_S),
    "take turns": ("to keep things back", take_turns, 300.0),
    "delay most": ("give nothing", delay_most, WINDOW_S),
}
ATTACKS = [
    Attack(f"{liars} of {peers} {name}", how, conduct, peers, liars, window_s=window_s, quick=peers < 10)
    for peers, liars in SIZES
    for name, (how, conduct, window_s) in CONDUCTS.items()
]
