"""Whatever happens: what is fetched and checked is of use, no place is lost, and an honest peer gets on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from protocol.rollouts.batch import Bytes, Decision, PooledBatch
from protocol.rollouts.events import (
    BatchVerified,
    DealHeard,
    Ejected,
    FetchBatch,
    Fetched,
    GossipDeal,
    Idle,
    JudgementHeard,
    VerifyBatch,
)
from protocol.rollouts.pool import HOLD_S
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import Identity, PeerId
from protocol.wire.presence import Role
from protocol.wire.rollouts import Judgement
from tests.protocol.rollouts.test_pool import BAD, GOOD, ME, ONE_PLACE, UNSURE, VALIDATORS, WORKER, Table

STRANGERS = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(10, 14)]
STEPS = 150


class Played:
    """A pool with its shell: fetches under way, and the check that the trainer process has."""

    def __init__(self, role: Role, seed: int) -> None:
        self.random, self.table = Random(seed), Table(role, draw=0.0)
        self.coming: list[PooledBatch] = []
        self.check: PooledBatch | None = None
        self.version, self.numbers = 3, Counter[tuple[PeerId, int]]()

    def take(self, effects: Iterable[object]) -> None:
        for effect in effects:
            if isinstance(effect, FetchBatch):
                assert effect.batch.decision is None and effect.batch not in self.coming, "fetched for nothing"
                self.coming.append(effect.batch)
            elif isinstance(effect, VerifyBatch):
                assert self.check is None and effect.batch.decision is None and effect.batch.bytes_ is Bytes.HERE
                self.check = effect.batch
            elif isinstance(effect, GossipDeal):
                self.tell(DealHeard(ME, effect.batch.author, effect.batch.root, ONE_PLACE))

    def tell(self, event: Any) -> None:
        self.take(self.table.tell(event))

    def end_fetch(self, batch: PooledBatch, here: bool | None) -> None:
        self.coming = [each for each in self.coming if each is not batch]
        self.tell(Fetched(batch.author, batch.root, here))

    def end_check(self, codes: bytes | None, *, died: bool = False) -> None:
        batch, self.check = self.check, None
        assert batch is not None
        self.tell(BatchVerified(batch.author, batch.root, codes, died=died))

    def look(self) -> None:
        """As the shell's, four times a second."""
        on_their_way = [batch for batch in self.table.pool if batch.bytes_ is Bytes.COMING]
        assert all(any(each is batch for each in self.coming) for batch in on_their_way), "a place is lost"
        self.table.now += 0.25
        self.take(self.table.tick())
        for batch in [batch for batch in self.coming if not self.table.pool.lacks(batch)]:
            self.end_fetch(batch, None)
        if self.check is None:
            self.tell(Idle())

    def hear(self, author: Any) -> None:
        number = self.numbers[author, self.version]
        self.numbers[author, self.version] += 1
        name = f"{self.version} {number}" if author == WORKER else str(self.random.randrange(40))
        root = hash_bytes("root", name.encode())
        self.take(self.table.hear(author, root, version=self.version, number=number))

    def step(self) -> None:
        random, pool = self.random, self.table.pool
        known: Any = random.choice([*pool]) if [*pool] else None
        match random.randrange(10):
            case 0 | 1 | 2:
                self.hear(random.choice([WORKER, *STRANGERS]))
            case 3 | 4 if self.coming:
                self.end_fetch(random.choice(self.coming), random.choice([True, True, True, False, None]))
            case 5 if self.check is not None:
                codes = GOOD if self.check.author == WORKER else random.choice([GOOD, BAD, UNSURE, None])
                self.end_check(codes, died=codes is None and random.random() < 0.5)
            case 6 if known is not None:
                self.tell(DealHeard(ME, known.author, known.root, ONE_PLACE))
            case 7 if known is not None and known.author != WORKER:
                said = Judgement(author=known.author, root=known.root, codes=random.choice([GOOD, BAD, UNSURE]))
                self.tell(JudgementHeard(random.choice(VALIDATORS), said))
            case 8 if random.random() < 0.2:
                self.version = min(19, self.version + 1)
                self.take(self.table.move(self.version))
            case 9 if random.random() < 0.1:
                self.tell(Ejected(random.choice(STRANGERS), "two batches of one number"))
            case _:
                self.look()


@pytest.mark.parametrize("role", [Role.TRAINER, Role.VALIDATOR])
@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_an_honest_peers_batch_is_decided_in_the_end(role: Role, seed: int) -> None:
    played = Played(role, seed)
    for _ in range(STEPS):
        played.step()
    number = played.numbers[WORKER, played.version]
    root = hash_bytes("root", b"the last")
    played.take(played.table.hear(WORKER, root, version=played.version, number=number))
    if role is Role.VALIDATOR:
        played.table.validators = frozenset({ME})
    last = played.table.pool.find(WORKER, root)
    assert last is not None
    for _ in range(600):
        played.table.now += HOLD_S / 10  # what was withheld holds it up
        played.look()
        for batch in played.table.pool.usable(played.version):
            batch.used = True
        for batch in [*played.coming]:
            played.end_fetch(batch, True)
        if played.check is not None:
            played.end_check(GOOD)
        if role is Role.VALIDATOR and last.bytes_ is Bytes.ABSENT:
            played.tell(DealHeard(ME, WORKER, root, ONE_PLACE))
    done = last.decision is Decision.ACCEPTED if role is Role.TRAINER else last.own == GOOD
    assert done, (last.decision, last.bytes_, last.wanted, last.own)
