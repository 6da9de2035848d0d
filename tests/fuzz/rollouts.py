"""Everything that arrives about rollouts, changed: `python -m tests.fuzz --rollouts 200000`.

Proofs at the comparison, rollouts at the verifier, batches at the trainer process's worker, and the statements (`rollout
batch`, `deal`, `judgement`) at the wire and then at the pools of a trainer, a validator and a rollout peer.  Each is
refused, or means what an honest peer may say; nothing raises anything else.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from protocol.formats.rl import Precision
from protocol.rollouts.batch import beacon_of
from protocol.rollouts.events import (
    BatchHeard,
    BatchVerified,
    DealHeard,
    FetchEnded,
    ForwardBatch,
    JudgementHeard,
    PoolEffect,
    PoolEvent,
    PoolTick,
    TipChanged,
    TrainerIdle,
    VerifyBatch,
)
from protocol.rollouts.events import GossipDeal as DealIt
from protocol.rollouts.pool import AHEAD, Pool
from protocol.rollouts.trust import MOST_BATCHES, MOST_OF_ONE
from protocol.run.sections import RlSection
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Body, Envelope, seal
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import pack, unpack
from protocol.wire.presence import Role
from protocol.wire.rollouts import CODES, Deal, Judgement, RolloutBatch
from tests.fuzz.examples import RUN
from tests.fuzz.grammar import Grammar, Words
from tests.fuzz.mutations import mutated
from tests.fuzz.proofs import BatchCases, ProofCases, RolloutCases
from tests.fuzz.tally import Tally

RL = RlSection(
    environment="x", prompts_per_batch=1, group_size=2, batches_per_round=2, max_tokens=8, row_tokens=16, judge_s=10
)
MAX_FAILURES = 10
"""More say nothing new."""
KEYS = [Identity.from_seed(bytes([number]) * 32) for number in range(12)]
VERSION = 3
TIPS = {version: hash_bytes("tip", bytes([version])) for version in range(40)}
STATEMENTS: tuple[type[Body], ...] = (RolloutBatch, Deal, Judgement)
LOOKED_AT = 0.05
"""Share of events around which the whole pool is looked at."""
ROUND = 4000
"""Cases after which the state moves on."""


class Cases(Protocol):
    """Makes one case after the other; some are tried when several have come together."""

    def one(self) -> None: ...

    def finish(self) -> None: ...


class StatementCases:
    """Statements about rollouts, by the keys of trainers, validators, rollout peers and strangers."""

    def __init__(self, random: Random, tally: Tally) -> None:
        self._random, self._tally = random, tally
        peers = [key.peer_id for key in KEYS]
        self._trainers, self._validators = tuple(sorted(peers[:3])), frozenset(peers[3:6])
        self._words = Words(peers)
        self._grammar = Grammar(self._words, random)
        self._pools = [
            Pool(PeerId(me), role, RL, lambda root: random.random())
            for me, role in ((peers[0], Role.TRAINER), (peers[3], Role.VALIDATOR), (peers[6], Role.ROLLOUT))
        ]
        self._version, self._cases, self._now = VERSION, 0, 0.0
        self._raw: list[bytes] = []
        """Honest statements, as they travelled."""
        self._move()

    def one(self) -> None:
        """Say one thing to all pools; now and then, something else happens to them."""
        self._cases += 1
        self._now += self._random.choice((0.0, 0.01, 1.0))
        if self._cases % ROUND == 0:
            self._version += 1
            self._move()
        if self._random.random() < 0.1:
            self._happen()
        raw, honest = self._said()
        try:
            sender, (body, envelope) = self._opened(raw)
        except Malformed:
            self._tally.count("statements", "malformed")
            if honest:
                self._tally.failures.append(f"an honest statement is refused: {raw.hex()}")
            return
        if not honest and raw not in self._raw and not self._is_signed_anew(envelope):
            self._tally.failures.append(f"a statement that nobody signed is let in: {raw.hex()}")
        news = [self._tell(pool, sender, body, envelope) for pool in self._pools]
        self._tally.count("statements", "news for a pool" if any(news) else "no news for a pool")

    def finish(self) -> None:
        """Nothing waits."""

    # -- speaking -----------------------------------------------------------------------------------------------------

    def _said(self) -> tuple[bytes, bool]:
        """Bytes, and whether they are an honest statement."""
        random, key = self._random, self._random.choice(KEYS)
        draw = random.random()
        if draw < 0.2 or not self._raw:
            raw = pack(key, RUN, self._honest()).raw
            self._raw = [*self._raw[-100:], raw]
            return raw, True
        if draw < 0.6:
            return mutated(random.choice(self._raw), random), False
        kind = random.choice(STATEMENTS)
        if draw < 0.8:
            body = mutated(self._honest().encode(), random)
            return seal(key, RUN, kind.KIND, body).raw, False
        made = self._grammar.body(kind)
        return pack(key, RUN, made if made is not None else self._honest()).raw, False

    def _honest(self) -> Body:
        """What makes sense now."""
        random = self._random
        known = [batch for pool in self._pools[:1] for batch in pool]
        if not known or random.random() < 0.4:
            version = random.randint(self._version - RL.max_async, self._version + AHEAD)
            return RolloutBatch(
                version=version,
                tip=TIPS[version],
                number=random.randrange(12),
                incarnation=1,
                rollouts=RL.rollouts_per_batch,
                tokens=random.randrange(16),
                precision=random.choice([*Precision]),
                size=random.choice((1, 100, 1 << 20)),
                root=hash_bytes("root", random.randbytes(4)),
            )
        batch = random.choice(known)
        if random.random() < 0.5:
            return Deal(author=batch.author, root=batch.root)
        codes = bytes(random.choice((0, 0, 0, 1, 5)) for _ in range(RL.rollouts_per_batch))
        return Judgement(author=batch.author, root=batch.root, codes=codes)

    def _opened(self, raw: bytes) -> tuple[PeerId, tuple[Body, Envelope]]:
        _, body, envelope = unpack(raw, RUN)
        self._words.hear(body)
        return envelope.sender, (body, envelope)

    def _is_signed_anew(self, envelope: Envelope) -> bool:
        """Whether one of the keys signs exactly this."""
        key = next((key for key in KEYS if key.peer_id == envelope.sender), None)
        return key is not None and seal(key, RUN, envelope.kind, envelope.body).raw == envelope.raw

    # -- the pools ----------------------------------------------------------------------------------------------------

    def _tell(self, pool: Pool, sender: PeerId, body: Body, envelope: Envelope) -> bool:
        """Whether it was news."""
        match body:
            case RolloutBatch():
                event: PoolEvent = BatchHeard(sender, body, envelope.raw)
            case Deal():
                event = DealHeard(sender, PeerId(body.author), _root(body), beacon_of(envelope.signature))
            case Judgement():
                event = JudgementHeard(sender, body)
            case _:
                return False
        news = any(isinstance(effect, ForwardBatch) for effect in self._handle(pool, event))
        if news and not self._is_sensible(pool, body):
            self._tally.failures.append(f"a pool passes on {body}")
        return news

    def _is_sensible(self, pool: Pool, body: Body) -> bool:
        """Whether an honest peer may say this now, as far as the run's rules go."""
        if isinstance(body, RolloutBatch):
            in_time = self._version - RL.max_async <= body.version <= self._version + AHEAD
            on_tip = body.version > self._version or body.tip == TIPS[body.version]
            return in_time and on_tip and body.rollouts == 2 and body.tokens <= 2 * RL.max_tokens
        assert isinstance(body, Deal | Judgement)
        known = pool.find(PeerId(body.author), _root(body)) is not None
        return known and (isinstance(body, Deal) or (len(body.codes) == 2 and max(body.codes) < len(CODES)))

    def _handle(self, pool: Pool, event: PoolEvent) -> list[PoolEffect]:
        if self._random.random() >= LOOKED_AT:
            return self._answered(pool, pool.handle(event, self._now))
        before = {batch.key: batch.decision for batch in pool}
        effects = pool.handle(event, self._now)
        batches = list(pool)
        held = Counter(batch.author for batch in batches)
        if len(batches) > MOST_BATCHES or max(held.values(), default=0) > MOST_OF_ONE:
            self._tally.failures.append(f"a pool holds {len(batches)} batches")
        for batch in batches:
            was = before.get(batch.key)
            if was is not None and batch.decision is not was:
                self._tally.failures.append(f"a batch that was {was} is {batch.decision}")
        return self._answered(pool, effects)

    def _answered(self, pool: Pool, effects: list[PoolEffect]) -> list[PoolEffect]:
        """What the shell around a pool does."""
        for effect in effects:
            if isinstance(effect, DealIt):
                envelope = pack(KEYS[0], RUN, Deal(author=effect.batch.author, root=effect.batch.root))
                beacon = beacon_of(envelope.signature)
                self._handle(pool, DealHeard(envelope.sender, effect.batch.author, effect.batch.root, beacon))
        return effects

    def _happen(self) -> None:
        """Time passes, or bytes arrive, or a check ends."""
        random = self._random
        for pool in self._pools:
            batches = list(pool)
            what = random.randrange(4)
            if what == 0 or not batches:
                self._handle(pool, PoolTick(self._validators, TIPS))
            elif what == 1:
                batch = random.choice(batches)
                self._handle(pool, FetchEnded(batch.author, batch.root, random.random() < 0.8))
            else:
                for effect in self._handle(pool, TrainerIdle()):
                    if isinstance(effect, VerifyBatch):
                        codes = random.choice((None, b"", bytes(2), bytes([0, 5]), bytes([0, 255]), bytes(3)))
                        self._handle(pool, BatchVerified(effect.batch.author, effect.batch.root, codes))

    def _move(self) -> None:
        tips = {version: TIPS[version] for version in range(self._version - RL.max_async, self._version + 1)}
        for pool in self._pools:
            self._handle(pool, TipChanged(self._version, tips, dict.fromkeys(tips, self._trainers), self._trainers))
            self._handle(pool, PoolTick(self._validators, TIPS))


def _root(body: Any) -> Any:
    return body.root


WAYS: tuple[tuple[Callable[[Random, Tally], Cases], float], ...] = (
    (ProofCases, 0.35),
    (RolloutCases, 0.2),
    (BatchCases, 0.15),
    (StatementCases, 0.3),
)
"""With the share of each."""


def fuzz(count: int, seed: int = 1) -> Tally:
    """So many cases; what fails is said in the tally, with the case's number, and the fuzzer goes on with the next kind."""
    tally = Tally()
    for way, share in WAYS:
        cases = way(Random(seed), tally)
        before = tally.cases
        try:
            for _ in range(round(share * count)):
                cases.one()
            cases.finish()
        except Exception:
            tally.failures.append(f"{way.__name__} after {tally.cases - before} of seed {seed}: {traceback.format_exc()}")
        if len(tally.failures) >= MAX_FAILURES:
            break
    return tally
