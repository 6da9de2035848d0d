"""Random rounds, with loss, doubling, delay, crashes and restarts: one full record, and nobody is stuck."""

from __future__ import annotations

from random import Random

import pytest

from protocol.chain.electorate import quorum_size
from protocol.chain.records import is_full
from protocol.wire.identity import PeerId
from protocol.wire.messages import ViewChange
from tests.protocol.agreement.parliament import Parliament

SEEDS = 100
BATCH = 10


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_agreement_and_progress(first: int) -> None:
    """The witness looks at every word.  With a quorum alive at the end, everybody alive has the record."""
    for seed in range(first, first + BATCH):
        parliament = disturbed(seed)
        parliament.loss = 0.0
        parliament.run(150)
        parliament.show_the_record()
        assert not parliament.undecided(), f"seed {seed}: somebody is stuck"
        full = {commit.record.encode() for commit in parliament.commits() if is_full(commit.certificate)}
        assert len(full) == 1, f"seed {seed}: a quorum is there"


def disturbed(seed: int) -> Parliament:
    """A parliament of 1 to 7 electors and some joiners, after a minute of trouble; a quorum of electors is alive."""
    luck = Random(seed)
    electors = luck.randint(1, 7)
    parliament = Parliament(electors, luck.randint(0, 2), seed=seed, loss=luck.choice([0.0, 0.1, 0.3]), versions=True)
    peers = list(parliament.seats)
    lives = dict.fromkeys(peers, 1)
    liar = luck.choice(peers[:electors]) if electors >= 4 and luck.random() < 0.4 else None
    if liar is not None:
        parliament.make_puppet(liar)
    parliament.ready()
    for _ in range(12):
        parliament.run(luck.choice([0.5, 1.0, 3.0, 8.0]))
        peer = luck.choice(peers)
        if liar is not None:
            babble(parliament, liar, luck)
        if peer == liar:
            continue
        if not parliament.seats[peer].alive:
            parliament.restart(peer)
            lives[peer] += luck.random() < 0.5
            parliament.ready(peer, life=lives[peer])
        elif may_die(parliament, peer, electors, liar):
            parliament.crash(peer)
    return parliament


def may_die(parliament: Parliament, peer: PeerId, electors: int, liar: PeerId | None) -> bool:
    """Whether a quorum of honest electors is left alive."""
    voters = parliament.base.electors
    left = [each for each in voters if parliament.seats[each].alive and each not in (peer, liar)]
    return len(left) >= quorum_size(electors)


def babble(parliament: Parliament, liar: PeerId, luck: Random) -> None:
    """The liar repeats what it heard to others, and calls attempts."""
    heard = parliament.puppets[liar]
    for _ in range(3):
        body = luck.choice(heard)[1] if heard and luck.random() < 0.7 else parliament.view_change(luck.randint(0, 20))
        if isinstance(body, ViewChange) and luck.random() < 0.5:
            body = body.model_copy(
                update={"plan": luck.randbytes(32), "held": bytes([luck.randrange(1 << len(parliament.base.electors))])}
            )
        parliament.say(liar, body, *luck.sample(list(parliament.seats), 2))
