"""The pool under any sequence of events: what is fetched and checked is of use, room is bounded, an honest peer gets on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.rollouts.batch import BytesLocation, Decision, PooledBatch
from protocol.rollouts.events import (
    BatchVerified,
    DealHeard,
    Ejected,
    FetchBatch,
    FetchEnded,
    GossipDeal,
    JudgementHeard,
    PoolEffect,
    PoolEvent,
    TrainerIdle,
    VerifyBatch,
)
from protocol.rollouts.pool import HOLD_S
from protocol.rollouts.trust import MOST_BATCHES, MOST_BYTES, MOST_OF_ONE, PLACES
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import Identity, PeerId
from protocol.wire.presence import Role
from protocol.wire.rollouts import Judgement
from tests.protocol.rollouts.test_pool import BAD, GOOD, ME, ONE_PLACE, UNSURE, VALIDATORS, WORKER, Table

STRANGERS = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(10, 14)]
NEWEST = 19
strangers, picks = st.sampled_from(STRANGERS), st.integers(0, 10**6)
verdicts = st.sampled_from([GOOD, BAD, UNSURE])


class PoolMachine(RuleBasedStateMachine):
    """A pool with its shell.  coming: fetches under way.  check: the batch that the trainer process has.

    An honest worker's batches are good, and are fetched and judged in the end; the strangers do what they like.
    """

    @initialize(role=st.sampled_from([Role.TRAINER, Role.VALIDATOR]))
    def begin(self, role: Role) -> None:
        self.role, self.table = role, Table(role, draw=0.0)
        self.coming: list[PooledBatch] = []
        self.check: PooledBatch | None = None
        self.version, self.numbers = 3, Counter[tuple[PeerId, int]]()

    @property
    def known(self) -> list[PooledBatch]:
        return [*self.table.pool]

    def take(self, effects: Iterable[PoolEffect]) -> None:
        for effect in effects:
            if isinstance(effect, FetchBatch):
                assert effect.batch.decision is None and effect.batch not in self.coming, "fetched for nothing"
                self.coming.append(effect.batch)
            elif isinstance(effect, VerifyBatch):
                assert self.check is None and effect.batch.decision is None and effect.batch.bytes_ is BytesLocation.HERE
                self.check = effect.batch
            elif isinstance(effect, GossipDeal):
                self.tell(DealHeard(ME, effect.batch.author, effect.batch.root, ONE_PLACE))

    def tell(self, event: PoolEvent) -> None:
        self.take(self.table.tell(event))

    def end_fetch(self, batch: PooledBatch, here: bool | None) -> None:
        self.coming = [each for each in self.coming if each is not batch]
        self.tell(FetchEnded(batch.author, batch.root, here))

    def end_check(self, codes: bytes | None, *, died: bool = False) -> None:
        batch, self.check = self.check, None
        assert batch is not None
        self.tell(BatchVerified(batch.author, batch.root, codes, died=died))

    def hear(self, author: PeerId, name: bytes) -> PooledBatch | None:
        number = self.numbers[author, self.version]
        self.numbers[author, self.version] += 1
        root = hash_bytes("root", name)
        self.take(self.table.hear(author, root, version=self.version, number=number))
        return self.table.pool.find(author, root)

    # -- what happens -------------------------------------------------------------------------------------------------

    @rule()
    def the_worker_states_a_batch(self) -> None:
        self.hear(WORKER, f"{self.version} {self.numbers[WORKER, self.version]}".encode())

    @rule(author=strangers, name=st.integers(0, 39))
    def a_stranger_states_a_batch(self, author: PeerId, name: int) -> None:
        """Some state the same bytes."""
        self.hear(author, str(name).encode())

    @precondition(lambda self: self.coming)
    @rule(pick=picks, here=st.sampled_from([True, True, True, False, None]))
    def a_fetch_ends(self, pick: int, here: bool | None) -> None:
        self.end_fetch(self.coming[pick % len(self.coming)], here)

    @precondition(lambda self: self.check is not None)
    @rule(codes=st.sampled_from([GOOD, BAD, UNSURE, None]), died=st.booleans())
    def a_check_ends(self, codes: bytes | None, died: bool) -> None:
        if self.check is not None and self.check.author == WORKER:
            codes = GOOD
        self.end_check(codes, died=codes is None and died)

    @precondition(lambda self: self.known)
    @rule(pick=picks)
    def a_deal_is_heard(self, pick: int) -> None:
        batch = self.known[pick % len(self.known)]
        self.tell(DealHeard(ME, batch.author, batch.root, ONE_PLACE))

    @precondition(lambda self: any(batch.author != WORKER for batch in self.known))
    @rule(pick=picks, validator=st.sampled_from(VALIDATORS), codes=verdicts)
    def a_verdict_is_heard(self, pick: int, validator: PeerId, codes: bytes) -> None:
        batches = [batch for batch in self.known if batch.author != WORKER]
        batch = batches[pick % len(batches)]
        self.tell(JudgementHeard(validator, Judgement(author=batch.author, root=batch.root, codes=codes)))

    @precondition(lambda self: self.version < NEWEST)
    @rule()
    def a_version_comes(self) -> None:
        self.version += 1
        self.take(self.table.move(self.version))

    @rule(peer=strangers, rarely=st.integers(0, 9))
    def a_stranger_is_ejected(self, peer: PeerId, rarely: int) -> None:
        if not rarely:
            self.tell(Ejected(peer, "two batches of one number"))

    @rule()
    def the_shell_looks(self) -> None:
        """As it does four times a second."""
        self.table.now += 0.25
        self.take(self.table.tick())
        for batch in [batch for batch in self.coming if not self.table.pool.lacks(batch)]:
            self.end_fetch(batch, None)
        if self.check is None:
            self.tell(TrainerIdle())

    # -- facts --------------------------------------------------------------------------------------------------------

    @invariant()
    def no_place_is_lost(self) -> None:
        on_their_way = [batch for batch in self.known if batch.bytes_ is BytesLocation.COMING]
        assert all(any(each is batch for each in self.coming) for batch in on_their_way)

    @invariant()
    def room_is_bounded(self) -> None:
        held = [batch for batch in self.known if batch.bytes_ in (BytesLocation.COMING, BytesLocation.HERE)]
        assert sum(batch.body.size for batch in held) <= MOST_BYTES
        assert sum(batch.bytes_ is BytesLocation.COMING for batch in held) <= 2 * PLACES
        by_author = Counter(batch.author for batch in self.known)
        assert max(by_author.values(), default=0) <= MOST_OF_ONE and len(self.known) <= MOST_BATCHES

    @invariant()
    def each_batch_is_decided_once_and_counted_once(self) -> None:
        names = [(batch.author, bytes(batch.root)) for batch in self.known]
        assert len(set(names)) == len(names)
        usable = self.table.pool.usable(self.version)
        assert len({(batch.author, batch.root) for batch in usable}) == len(usable)
        assert all(batch.decision is Decision.ACCEPTED and batch.bytes_ is BytesLocation.HERE for batch in usable)

    def teardown(self) -> None:
        """The worker's next batch is decided, or judged, although it is held up by what was withheld."""
        if not hasattr(self, "table"):
            return
        last = self.hear(WORKER, b"the last")
        assert last is not None
        if self.role is Role.VALIDATOR:
            self.table.validators = frozenset({ME})
        for _ in range(600):
            if last.decision is Decision.ACCEPTED or last.own == GOOD:
                break
            self.table.now += HOLD_S / 10
            self.the_shell_looks()
            for batch in self.table.pool.usable(self.version):
                batch.used = True
            for batch in [*self.coming]:
                self.end_fetch(batch, True)
            if self.check is not None:
                self.end_check(GOOD)
            if self.role is Role.VALIDATOR and last.bytes_ is BytesLocation.ABSENT:
                self.tell(DealHeard(ME, WORKER, last.root, ONE_PLACE))
        done = last.decision is Decision.ACCEPTED if self.role is Role.TRAINER else last.own == GOOD
        assert done, (last.decision, last.bytes_, last.wanted, last.own)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=40, stateful_step_count=80, derandomize=True)
