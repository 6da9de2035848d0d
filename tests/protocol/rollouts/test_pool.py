"""A pool of batches: who checks what, whose word counts, and what becomes of whom."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.events.events import BatchDecided, RolloutPeerSetAside, ValidatorSetAside
from protocol.formats.bets import BETS
from protocol.formats.rl import Precision
from protocol.rollouts.batch import Decision, order_of, places_of
from protocol.rollouts.events import (
    BatchHeard,
    BatchVerified,
    CompareScores,
    ContradictoryBatches,
    DealHeard,
    DiscardBytes,
    EmitEvent,
    FetchBatch,
    FetchEnded,
    ForwardBatch,
    GossipDeal,
    GossipVerdicts,
    JudgementHeard,
    PoolEffect,
    PoolTick,
    TipChanged,
    TrainerIdle,
    VerifyBatch,
)
from protocol.rollouts.pool import HOLD_S, Pool
from protocol.run.sections import RlSection
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import Identity, PeerId
from protocol.wire.presence import Role
from protocol.wire.rollouts import CODES, Judgement, Reason, RolloutBatch, Verdict
from tests.protocol.tables import cases

RL = RlSection(
    environment="x", prompts_per_batch=1, group_size=2, batches_per_round=1, max_tokens=8, row_tokens=16, judge_s=10
)
ME, WORKER, *VALIDATORS = (Identity.from_seed(bytes([number]) * 32).peer_id for number in range(6))
TIPS = {version: hash_bytes("tip", bytes([version])) for version in range(20)}
ROOT = hash_bytes("root", b"0")
GOOD = bytes(2)
BAD = bytes([0, CODES.index((Verdict.REJECT, Reason.BAD_SAMPLING))])
UNSURE = bytes([1, 0])
ONE_PLACE = next(beacon for beacon in (hash_bytes("b", bytes([n])) for n in range(99)) if places_of(beacon) == 1)


class Table:
    """A pool of one role at version 3, whose peer led a record alone."""

    def __init__(self, role: Role, *, draw: float = 1.0, trainers: tuple[PeerId, ...] = (ME,)) -> None:
        self.pool = Pool(ME, role, RL, lambda root: draw)
        self.now = 0.0
        self.trainers = trainers
        self.validators = frozenset(VALIDATORS)
        self.makers = frozenset[PeerId]()
        self.move(3)
        self.tick()

    def tell(self, event: Any) -> list[PoolEffect]:
        return self.pool.handle(event, self.now)

    def move(self, version: int) -> list[PoolEffect]:
        tips = {each: TIPS[each] for each in range(max(0, version - RL.max_async), version + 1)}
        return self.tell(self.state(version, tips))

    def state(self, version: int, tips: dict[int, Hash]) -> TipChanged:
        """On a chain with these tips."""
        return TipChanged(version, tips, dict.fromkeys(tips, self.trainers), self.trainers, self.makers)

    def tick(self) -> list[PoolEffect]:
        return self.tell(PoolTick(self.validators, TIPS))

    def hear(self, author: PeerId = WORKER, root: Hash = ROOT, **changes: Any) -> list[PoolEffect]:
        fields: dict[str, Any] = {
            "version": 3,
            "number": 0,
            "incarnation": 1,
            "rollouts": 2,
            "tokens": 9,
            "precision": Precision.FLOAT32,
            "size": 100,
            "root": root,
        }
        fields |= changes
        body = RolloutBatch(**{"tip": TIPS[fields["version"]], **fields})
        return self.tell(BatchHeard(author, body, repr((author, body)).encode()))

    def take(self, author: PeerId = WORKER, root: Hash = ROOT, **changes: Any) -> None:
        """Hear of a batch, and fetch it."""
        self.hear(author, root, **changes)
        self.tell(FetchEnded(author, root, True))

    def wait_until(self, now: float) -> list[PoolEffect]:
        self.now = now
        return self.tick()

    def deal(self, trainer: PeerId = ME) -> list[PoolEffect]:
        return self.tell(DealHeard(trainer, WORKER, ROOT, ONE_PLACE))

    def fetched(self, here: bool = True) -> list[PoolEffect]:
        return self.tell(FetchEnded(WORKER, ROOT, here))

    def judge(self, validator: PeerId, codes: bytes) -> list[PoolEffect]:
        return self.tell(JudgementHeard(validator, Judgement(author=WORKER, root=ROOT, codes=codes)))

    def check(self, codes: bytes) -> list[PoolEffect]:
        assert [type(effect) for effect in self.tell(TrainerIdle())] == [VerifyBatch]
        return self.tell(BatchVerified(WORKER, ROOT, codes))

    @property
    def decision(self) -> Decision | None:
        batch = self.pool.find(WORKER, ROOT)
        return batch.decision if batch is not None else None

    @property
    def order(self) -> list[PeerId]:
        return order_of(ONE_PLACE, ROOT, self.validators)


def kinds(effects: list[PoolEffect]) -> list[type]:
    return [type(effect.event) if isinstance(effect, EmitEvent) else type(effect) for effect in effects]


def dealt() -> Table:
    """A trainer with a clean view of everybody, whose batch is dealt and here."""
    table = Table(Role.TRAINER)
    for peer in (WORKER, *VALIDATORS):
        for _ in range(99):
            table.pool.trust.right(peer)
    assert kinds(table.hear()) == [ForwardBatch, FetchBatch]
    assert kinds(table.fetched()) == [GossipDeal]
    assert kinds(table.deal()) == [ForwardBatch]
    return table


# -- a trainer ------------------------------------------------------------------------------------------------------------


def test_the_validators_word_is_enough_where_no_check_was_drawn() -> None:
    table = dealt()
    assert BatchDecided in kinds(table.judge(table.order[0], GOOD))
    assert table.decision is Decision.ACCEPTED and [batch.root for batch in table.pool.usable(3)] == [ROOT]
    assert table.tell(TrainerIdle()) == []


def test_strangers_are_always_checked() -> None:
    table = Table(Role.TRAINER, draw=0.999)
    table.take()
    table.deal()
    table.judge(table.order[0], GOOD)
    assert table.decision is None
    table.check(GOOD)
    assert table.decision is Decision.ACCEPTED
    assert table.pool.trust.clean(WORKER) == table.pool.trust.clean(table.order[0]) == 1


@cases(
    "happens, checks_itself",
    {
        "one speaks before its turn, and its turn comes": (
            lambda table: (table.judge(table.order[1], GOOD), table.wait_until(RL.judge_s)),
            False,
        ),
        "the first one cannot tell": (
            lambda table: (table.judge(table.order[0], UNSURE), table.judge(table.order[1], GOOD)),
            False,
        ),
        "all are silent": (lambda table: table.wait_until(RL.judge_s * len(VALIDATORS)), True),
        "the first one was set aside": (
            lambda table: (table.pool.trust.set_aside(table.order[0], "it lied"), table.tick()),
            True,
        ),
    },
)
def test_a_batch_is_accepted_by_whose_turn_it_is_or_by_our_own_check(happens: Any, checks_itself: bool) -> None:
    table = dealt()
    assert table.decision is None
    happens(table)
    if checks_itself:
        table.check(GOOD)
    assert table.decision is Decision.ACCEPTED


def test_a_rejection_is_checked_and_one_that_is_not_so_costs_its_validator_its_place() -> None:
    table = dealt()
    liar = table.order[0]
    table.judge(liar, BAD)
    assert table.decision is None
    assert ValidatorSetAside in kinds(table.check(GOOD))
    assert table.decision is Decision.ACCEPTED and table.pool.trust.aside(liar) and not table.pool.trust.aside(WORKER)


def test_who_accepted_what_we_reject_is_set_aside_also_when_it_says_so_later() -> None:
    table = Table(Role.TRAINER)
    table.take()
    table.deal()
    table.wait_until(RL.judge_s * len(VALIDATORS))
    assert RolloutPeerSetAside in kinds(table.check(BAD))
    assert table.decision is Decision.REJECTED and table.pool.trust.aside(WORKER)
    assert ValidatorSetAside in kinds(table.judge(table.order[0], GOOD))


@pytest.mark.parametrize("role", [Role.TRAINER, Role.VALIDATOR])
def test_deviations_that_add_up_set_the_maker_of_an_accepted_batch_aside(role: Role) -> None:
    table = Table(role, trainers=(ME,) if role is Role.TRAINER else (WORKER,))
    table.validators = frozenset() if role is Role.TRAINER else frozenset({ME})
    table.tick()
    table.hear()
    table.tell(DealHeard(WORKER, WORKER, ROOT, ONE_PLACE))
    table.fetched()
    assert [type(effect) for effect in table.tell(TrainerIdle())] == [VerifyBatch]
    effects = table.tell(BatchVerified(WORKER, ROOT, GOOD, growth=(20.0,) * BETS))
    [aside] = [each.event for each in effects if isinstance(each, EmitEvent) and isinstance(each.event, RolloutPeerSetAside)]
    assert aside.reason == table.pool.trust.aside(WORKER) and "shortfalls in 1 checked batches" in aside.reason
    assert DiscardBytes in kinds(effects) and not table.pool.usable(3)


def test_a_batch_gets_one_verdict_and_is_stale_when_it_was_not_decided_in_time() -> None:
    table = dealt()
    effects = table.move(3 + RL.max_async + 1)
    [told] = [effect.event for effect in effects if isinstance(effect, EmitEvent)]
    assert isinstance(told, BatchDecided) and told.verdict == "stale"
    decided = dealt()
    decided.judge(decided.order[0], GOOD)
    assert BatchDecided not in kinds(decided.move(3 + RL.max_async + 1)), "it had its verdict"


def test_of_what_ends_the_learning_process_again_nothing_is_learned_and_its_maker_is_checked_again() -> None:
    table = dealt()
    table.judge(table.order[0], GOOD)
    [batch] = table.pool.usable(3)
    table.pool.note_death([batch])
    assert table.pool.usable(3) == [batch], "once it may be anything"
    assert table.pool.trust.clean(WORKER) == 0
    table.pool.note_death([batch])
    assert table.pool.usable(3) == [] and not table.pool.trust.aside(WORKER)


@pytest.mark.parametrize("accepted", [True, False])
def test_a_batch_that_comes_again_when_the_chain_goes_back_is_not_decided_on_again(accepted: bool) -> None:
    """Else it was learned from twice."""
    table = dealt()
    if accepted:
        table.judge(table.order[0], GOOD)
    other = {version: hash_bytes("other", bytes([version])) for version in (2, 3, 4)}
    told = kinds(table.tell(table.state(4, other)))
    assert (BatchDecided in told) is not accepted
    table.move(4)
    assert kinds(table.hear()) == [ForwardBatch], "others may know nothing of it"
    assert table.decision is (Decision.ACCEPTED if accepted else Decision.STALE) and table.pool.usable(4) == []
    assert kinds(table.hear(number=1, root=hash_bytes("root", b"1"))) == [ForwardBatch, FetchBatch], "another one is"
    assert BatchDecided not in kinds(table.deal() + table.judge(table.order[0], GOOD))


# -- a validator ----------------------------------------------------------------------------------------------------------


def validating(first: bool) -> Table:
    """A validator; whether it is the first that the batch is dealt to."""
    table = Table(Role.VALIDATOR, trainers=(WORKER,))
    table.validators = frozenset({ME, *VALIDATORS})
    me_first = [n for n in range(99) if order_of(hash_bytes("b", bytes([n])), ROOT, table.validators)[0] == ME]
    beacons = [hash_bytes("b", bytes([n])) for n in range(99) if (n in me_first) is first]
    beacon = next(beacon for beacon in beacons if places_of(beacon) == 1)
    table.tick()
    author = VALIDATORS[0]
    table.hear(author=author)
    table.tell(DealHeard(WORKER, author, ROOT, beacon))
    return table


def test_a_validator_verifies_what_it_is_dealt_and_nothing_else() -> None:
    assert [batch.wanted for batch in validating(first=True).pool] == [True]
    assert [batch.wanted for batch in validating(first=False).pool] == [False]


def test_a_validator_says_what_it_found_or_that_the_bytes_are_withheld() -> None:
    table = validating(first=True)
    table.tell(FetchEnded(VALIDATORS[0], ROOT, True))
    assert [type(effect) for effect in table.tell(TrainerIdle())] == [VerifyBatch]
    [said] = [effect for effect in table.tell(BatchVerified(VALIDATORS[0], ROOT, BAD)) if isinstance(effect, GossipVerdicts)]
    assert said.body.codes == BAD
    table = validating(first=True)
    [said] = [effect for effect in table.tell(FetchEnded(VALIDATORS[0], ROOT, False)) if isinstance(effect, GossipVerdicts)]
    assert {CODES[code] for code in said.body.codes} == {(Verdict.REJECT, Reason.WITHHELD)}


def test_a_deal_of_somebody_else_than_the_batchs_trainer_is_not_followed() -> None:
    table = Table(Role.VALIDATOR, trainers=(WORKER,))
    table.hear(author=VALIDATORS[0])
    assert table.tell(DealHeard(VALIDATORS[1], VALIDATORS[0], ROOT, ONE_PLACE)) == []


# -- what is heard --------------------------------------------------------------------------------------------------------


def test_two_batches_of_one_number_contradict_each_other_in_one_life() -> None:
    table = Table(Role.SEED)
    table.hear()
    assert table.hear() == []
    assert kinds(table.hear(root=hash_bytes("root", b"1"))) == [ContradictoryBatches]


@pytest.mark.parametrize("accepted", [False, True])
def test_of_a_number_that_is_stated_in_several_lives_nobody_learns(accepted: bool) -> None:
    """Else one batch, stated a little otherwise for each trainer, was learned from and credited as often."""
    table, others = dealt(), [hash_bytes("root", bytes([number])) for number in (1, 2)]
    if accepted:
        table.judge(table.order[0], GOOD)
    told = kinds(table.hear(root=others[0], incarnation=2))
    assert told == ([ForwardBatch, DiscardBytes] if accepted else [ForwardBatch, BatchDecided, DiscardBytes]), (
        "all have to hear of it"
    )
    assert table.hear(root=others[1], incarnation=3) == [], "once is enough"
    table.judge(table.order[0], GOOD)
    assert table.pool.usable(3) == [] and not table.pool.trust.aside(WORKER), "it may have lost its disk"
    assert kinds(table.hear(root=others[1], number=1, incarnation=3)) == [ForwardBatch], "nor was that number delivered"
    table.now += HOLD_S
    assert kinds(table.tick()) == [FetchBatch]


def test_a_verdict_counts_once_and_not_on_ones_own_batch() -> None:
    table = dealt()
    table.judge(table.order[1], UNSURE)
    assert table.judge(table.order[1], GOOD) == [] and table.judge(WORKER, GOOD) == []
    assert table.judge(PeerId("stranger"), GOOD) == [] and table.judge(table.order[0], GOOD + GOOD) == []


def test_a_batch_of_ours_is_said_again_until_it_is_dealt_or_judged() -> None:
    """A trainer that has not heard of it takes no later ones."""
    table = Table(Role.ROLLOUT, trainers=(VALIDATORS[0],))
    for number in range(3):
        table.hear(ME, root=hash_bytes("root", bytes([number])), number=number)
    first, second, third = table.pool.unanswered()
    table.tell(DealHeard(VALIDATORS[0], ME, first.root, ONE_PLACE))
    table.tell(JudgementHeard(VALIDATORS[1], Judgement(author=ME, root=second.root, codes=GOOD)))
    assert table.pool.unanswered() == [third]


# -- scores ---------------------------------------------------------------------------------------------------------------

OURS, THEIRS = b"\xfe\xfe", b"\xfe\x00"


def judged(
    codes: bytes, scores: bytes | None, ours: bytes | None, exact: frozenset[int], *, ours_first: bool = False
) -> tuple[Table, list[PoolEffect]]:
    """A trainer that checks a batch which was dealt to a validator, and what it does.  exact: rollouts with such scores."""
    table = Table(Role.TRAINER, draw=0.0)
    table.take()
    table.deal()
    said = JudgementHeard(table.order[0], Judgement(author=WORKER, root=ROOT, codes=codes, scores=scores))
    checked = BatchVerified(WORKER, ROOT, GOOD, ours, exact)
    effects = []
    for event in (checked, said) if ours_first else (said, TrainerIdle(), checked):
        effects += table.tell(event)
    assert all(effect.body.scores == ours for effect in effects if isinstance(effect, GossipVerdicts)), "our own are told"
    return table, effects


def compared(
    codes: bytes, scores: bytes | None, ours: bytes | None, *, ours_first: bool = False
) -> list[tuple[bytes, bytes]]:
    """What a trainer compares of scores that may differ from one computer to another."""
    table, effects = judged(codes, scores, ours, frozenset(), ours_first=ours_first)
    assert codes != GOOD or not table.pool.trust.aside(table.order[0]), "nobody lied"
    return [(effect.ours, effect.theirs) for effect in effects if isinstance(effect, CompareScores)]


@pytest.mark.parametrize("ours_first", [False, True])
def test_scores_of_both_are_compared_whoever_was_first(ours_first: bool) -> None:
    assert compared(GOOD, THEIRS, OURS, ours_first=ours_first) == [(OURS, THEIRS)]


@pytest.mark.parametrize(
    ("codes", "scores", "ours"),
    [(GOOD, None, OURS), (GOOD, THEIRS, None), (GOOD, THEIRS + b"\0", OURS), (BAD, THEIRS, OURS)],
    ids=["none said", "none found", "of another batch", "a false verdict"],
)
def test_nothing_else_is_compared(codes: bytes, scores: bytes | None, ours: bytes | None) -> None:
    assert compared(codes, scores, ours) == []


@pytest.mark.parametrize("ours_first", [False, True])
def test_whose_score_every_computer_contradicts_is_set_aside_and_counts_for_nothing(ours_first: bool) -> None:
    table, effects = judged(GOOD, THEIRS, OURS, frozenset({1}), ours_first=ours_first)
    [aside] = [
        effect.event for effect in effects if isinstance(effect, EmitEvent) and isinstance(effect.event, ValidatorSetAside)
    ]
    assert aside.peer == table.order[0] and "score" in aside.reason
    assert table.pool.trust.aside(table.order[0]) == aside.reason
    assert not [effect for effect in effects if isinstance(effect, CompareScores)], "no set is disputed for it"


@pytest.mark.parametrize("theirs", [OURS, b"\xfe\xff", None, b"\xfe"], ids=["the same", "not scored", "none", "too few"])
def test_who_says_no_false_score_is_not_set_aside(theirs: bytes | None) -> None:
    table, _ = judged(GOOD, theirs, OURS, frozenset({0, 1}))
    assert not table.pool.trust.aside(table.order[0])


@pytest.mark.parametrize(("ours", "theirs"), [(GOOD, BAD), (BAD, GOOD)])
@pytest.mark.parametrize("ours_first", [False, True])
@pytest.mark.parametrize("sure", [False, True])
def test_a_verdict_that_another_device_may_not_come_to_sets_no_validator_aside(
    ours: bytes, theirs: bytes, ours_first: bool, sure: bool
) -> None:
    """Else whoever makes rollouts that just pass, or just do not, had honest ones set aside for it."""
    table = Table(Role.TRAINER, draw=0.0)
    validator = table.order[0]
    table.pool.trust.right(validator)
    table.take()
    table.deal()
    said = JudgementHeard(validator, Judgement(author=WORKER, root=ROOT, codes=theirs))
    checked = BatchVerified(WORKER, ROOT, ours, sure=sure)
    for event in (checked, said) if ours_first else (said, TrainerIdle(), checked):
        table.tell(event)
    trust = table.pool.trust
    assert bool(trust.aside(validator)) is sure and trust.chance(validator) == 1.0, "all of it is checked"
    assert bool(trust.aside(WORKER)) is (ours == BAD), "no honest peer makes what is beyond the tolerances"


def test_scores_of_validators_that_were_not_asked_dispute_no_set() -> None:
    """Keys are free, and who was asked would be outvoted."""
    table, effects = judged(GOOD, OURS, OURS, frozenset())
    for validator in table.order[1:]:
        said = Judgement(author=WORKER, root=ROOT, codes=GOOD, scores=THEIRS)
        effects += table.tell(JudgementHeard(validator, said))
    batch = table.pool.find(WORKER, ROOT)
    assert batch is not None and len(batch.judgements) == len(table.order) + 1 > 2, "all are heard"
    assert [effect.theirs for effect in effects if isinstance(effect, CompareScores)] == [OURS]
