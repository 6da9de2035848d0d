"""Which batches are for whom, and in which order a trainer takes them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from protocol.chain.progress import TasksInForce
from protocol.formats.rl import Precision
from protocol.rollouts.batch import (
    TWICE,
    Decision,
    PooledBatch,
    is_for,
    lot_of,
    order_of,
    places_of,
    problems_of,
    trainer_of,
)
from protocol.rollouts.events import (
    BatchVerified,
    DealHeard,
    FetchBatch,
    FetchEnded,
    ForwardBatch,
    GossipDeal,
    TipChanged,
    TrainerIdle,
)
from protocol.rollouts.policy import PoolContext
from protocol.rollouts.pool import HOLD_S, NEWCOMERS_S, Intake
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import Identity, PeerId
from protocol.wire.presence import Role
from protocol.wire.rollouts import MAX_BATCHES, RolloutBatch
from tests.protocol.rollouts.test_pool import GOOD, ME, ONE_PLACE, RL, TIPS, VALIDATORS, WORKER, Table, kinds

# -- dealing --------------------------------------------------------------------------------------------------------------

RUN = hash_bytes("manifest", b"run")
DEALERS = tuple(sorted(Identity.from_seed(bytes([number]) * 32).peer_id for number in range(6)))
NONE = TasksInForce()
ROOTS = [hash_bytes("root", bytes([number])) for number in range(250)]


def test_problems_are_different_within_a_batch_and_follow_from_tip_peer_and_number() -> None:
    drawn = problems_of(RUN, ROOTS[0], DEALERS[0], 0, 8, 9, NONE)
    assert len({*drawn}) == 8 and all(0 <= problem < 9 for problem in drawn)
    assert drawn == problems_of(RUN, ROOTS[0], DEALERS[0], 0, 8, 9, NONE)
    many = 1 << 40
    others = {
        problems_of(RUN, ROOTS[0], DEALERS[0], 0, 8, many, NONE),
        problems_of(RUN, ROOTS[1], DEALERS[0], 0, 8, many, NONE),
        problems_of(RUN, ROOTS[0], DEALERS[1], 0, 8, many, NONE),
        problems_of(RUN, ROOTS[0], DEALERS[0], 1, 8, many, NONE),
    }
    assert len(others) == 4


def test_who_leaves_moves_nobody_else() -> None:
    for root in ROOTS[:50]:
        order = order_of(RUN, root, DEALERS)
        assert order_of(RUN, root, DEALERS[1:]) == [peer for peer in order if peer != DEALERS[0]]


def test_a_sample_is_dealt_to_two_validators_and_work_is_shared_out() -> None:
    beacons = [hash_bytes("beacon", root) for root in ROOTS]
    dealt = [tuple(order_of(beacon, root, DEALERS, places_of(beacon))) for beacon, root in zip(beacons, ROOTS, strict=True)]
    twice = sum(len(each) == 2 for each in dealt)
    assert twice == sum(places_of(beacon) == 2 for beacon in beacons) and 0 < twice < 3 * len(ROOTS) // TWICE
    assert {*Counter(peer for each in dealt for peer in each)} == {*DEALERS}
    assert [*order_of(beacons[0], ROOTS[0], (), places_of(beacons[0]))] == []


def test_trainers_of_the_last_record_share_the_batches_out() -> None:
    for root in ROOTS:
        assert [peer for peer in DEALERS if is_for(root, peer, DEALERS)] == [trainer_of(root, DEALERS)]


def test_a_newcomer_has_a_share_too_and_before_the_first_record_everything() -> None:
    newcomer = PeerId(DEALERS[0])
    share = sum(is_for(root, newcomer, DEALERS[1:3]) for root in ROOTS)
    assert len(ROOTS) // 6 < share < len(ROOTS) // 2
    assert all(is_for(Hash(root), newcomer, ()) for root in ROOTS)


# -- taking ---------------------------------------------------------------------------------------------------------------

OTHER = VALIDATORS[0]
TRAINERS = tuple(sorted((ME, OTHER)))
OURS = [number for number in range(200) if trainer_of(lot_of(TIPS[4], WORKER, number), TRAINERS) == ME]
"""Numbers of the maker at version 4 that are for us."""
STRANGER = PeerId("12D3KooW" + "x" * 44)


def root_of(number: int) -> Hash:
    return hash_bytes("root", number.to_bytes(4, "big"))


class Stall(Table):
    """A trainer of two that came to version 4 from the one before, and knew the maker then."""

    def __init__(self) -> None:
        super().__init__(Role.TRAINER, trainers=TRAINERS)
        self.makers = frozenset({WORKER})
        self.move(4)

    def say(self, number: int, author: PeerId = WORKER, **changes: Any) -> list[PeerId | int]:
        """The maker states a batch; the numbers that are fetched then."""
        return self.fetched_numbers(
            self.hear(author, **{"version": 4, "number": number, "root": root_of(number), **changes})
        )

    def wait(self, seconds: float = 0.0) -> list[int]:
        self.now += seconds
        return self.fetched_numbers(self.tick())

    def deliver(self, number: int, here: bool = True) -> list[int]:
        effects = self.tell(FetchEnded(WORKER, root_of(number), here))
        return [*self.fetched_numbers(effects), *self.wait()]

    @staticmethod
    def fetched_numbers(effects: Any) -> list[Any]:
        return [effect.batch.body.number for effect in effects if isinstance(effect, FetchBatch)]


def test_a_trainer_takes_the_numbers_of_its_share_in_order_whatever_order_they_come_in() -> None:
    stall = Stall()
    assert [stall.say(number) for number in (OURS[2], OURS[1])] == [[], []]
    assert stall.say(OURS[0]) == [OURS[0]]
    assert stall.wait() == [], "one after another"
    assert stall.deliver(OURS[0]) == [OURS[1]]


@pytest.mark.parametrize("how", ["never announced", "withheld", "announced in two lives"])
def test_what_is_not_delivered_holds_the_later_ones_up_and_costs_the_makers_history(how: str) -> None:
    stall = Stall()
    stall.pool.trust.right(WORKER)
    if how != "never announced":
        stall.say(OURS[0])
        if how == "withheld":
            stall.deliver(OURS[0], here=False)
        else:
            stall.hear(version=4, number=OURS[0], root=root_of(999), incarnation=2)
    assert stall.say(OURS[1]) == []
    assert stall.wait(HOLD_S - 1) == [] and stall.wait(2) == [OURS[1]]
    assert stall.pool.trust.clean(WORKER) == 0 and not stall.pool.trust.aside(WORKER), "our line may be bad"
    stall.say(OURS[0], incarnation=3, root=root_of(7777))
    assert stall.wait(HOLD_S) == [], "its turn is over"


def test_each_number_that_is_not_delivered_holds_up_for_itself() -> None:
    """Else one wait would let a maker jump to whatever number it likes."""
    stall = Stall()
    stall.say(OURS[5])
    waited = 0
    while not stall.wait(HOLD_S):
        waited += 1
        assert waited < 9
    assert waited == 4


def test_a_maker_that_came_after_the_version_waits_for_the_next_one() -> None:
    stall = Stall()
    number = next(n for n in range(99) if trainer_of(lot_of(TIPS[4], STRANGER, n), TRAINERS) == ME)
    assert stall.say(number, STRANGER) == [] and stall.wait(NEWCOMERS_S - 1) == []
    stall.makers |= {STRANGER}
    stall.move(5)
    first = next(n for n in range(99) if trainer_of(lot_of(TIPS[5], STRANGER, n), TRAINERS) == ME)
    assert stall.say(first, STRANGER, version=5) == [first]


def test_newcomers_are_taken_where_the_others_are_gone() -> None:
    stall = Stall()
    number = next(n for n in range(99) if trainer_of(lot_of(TIPS[4], STRANGER, n), TRAINERS) == ME)
    stall.say(number, STRANGER)
    stall.say(OURS[0])
    stall.now = NEWCOMERS_S / 2
    stall.tell(FetchEnded(WORKER, root_of(OURS[0]), True))
    stall.tell(DealHeard(ME, WORKER, root_of(OURS[0]), ONE_PLACE))
    stall.validators = frozenset()
    stall.tick()
    [batch] = [batch for batch in stall.pool if batch.author == WORKER]
    assert batch.wanted
    stall.tell(TrainerIdle())
    stall.tell(BatchVerified(WORKER, batch.root, GOOD))
    assert batch.decision is Decision.ACCEPTED
    assert stall.wait(NEWCOMERS_S - 1) == [], "an accepted batch shows that others are there"
    assert stall.wait(2) == [number]


def test_in_a_version_that_we_came_into_the_first_number_heard_is_the_first() -> None:
    """What was said before nobody says again, and without accepted batches no next version comes."""
    stall = Table(Role.TRAINER)
    assert kinds(stall.hear(number=17)) == [ForwardBatch, FetchBatch]
    stall.tell(FetchEnded(WORKER, hash_bytes("root", b"0"), True))
    assert kinds(stall.hear(number=19, root=root_of(19))) == [ForwardBatch]
    assert kinds(stall.hear(number=18, root=root_of(18))) == [ForwardBatch, FetchBatch]
    branch = {version: hash_bytes("branch", bytes([version])) for version in (2, 3, 4)}
    stall.tell(stall.state(4, branch))
    assert kinds(stall.hear(version=4, tip=branch[4], number=9, root=root_of(9))) == [ForwardBatch, FetchBatch]


# -- what whoever profits may try to vary -----------------------------------------------------------------------------------

HONEST: dict[str, Any] = {
    "version": 4,
    "tip": TIPS[4],
    "number": OURS[0],
    "incarnation": 1,
    "rollouts": RL.rollouts_per_batch,
    "tokens": 9,
    "precision": Precision.FLOAT32,
    "size": 100,
    "root": root_of(OURS[0]),
}


@pytest.mark.parametrize(
    "changes",
    [
        {"root": root_of(12345)},
        {"size": 101},
        {"tokens": 16},
        {"precision": Precision.BFLOAT16},
        {"incarnation": 1 << 40},
        {"rollouts": 1},
        {"version": 5},
        {"size": 77, "tokens": 3, "root": root_of(4), "incarnation": 5},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_nothing_in_a_statement_but_tip_maker_and_number_draws(changes: dict[str, Any]) -> None:
    honest, varied = (PooledBatch(WORKER, RolloutBatch(**fields), b"") for fields in (HONEST, HONEST | changes))
    assert varied.lot == honest.lot and varied.slot == honest.slot
    assert is_for(varied.lot, ME, TRAINERS) and not is_for(varied.lot, OTHER, TRAINERS)


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("the number of a later one", {"number": OURS[1]}),
        ("a number that is for another trainer", {"number": next(n for n in range(9) if n not in OURS)}),
        ("a far number", {"number": next(n for n in range(40_000, 50_000) if n not in OURS)}),
        ("the last number", {"number": MAX_BATCHES - 1}),
        ("the tip of another version", {"tip": TIPS[3]}),
        ("a tip that is none", {"tip": root_of(1)}),
        ("another version with this tip", {"version": 3}),
        ("a version that is too old", {"version": 1, "tip": TIPS[1]}),
        ("a version that is not there yet", {"version": 5, "tip": TIPS[4]}),
        ("a version far ahead", {"version": 9, "tip": TIPS[9]}),
        ("more rollouts than a batch has", {"rollouts": 4}),
        ("more tokens than a batch has", {"tokens": 10**6}),
        ("more bytes than a batch has", {"size": 1 << 30}),
        ("a key that nobody knew", {"author": STRANGER}),
    ],
)
def test_what_is_out_of_order_or_does_not_fit_is_not_taken(what: str, changes: dict[str, Any]) -> None:
    stall, fields = Stall(), HONEST | changes
    author = fields.pop("author", WORKER)
    effects = stall.hear(author, **fields)
    assert not {FetchBatch, GossipDeal} & {*kinds(effects)} and stall.wait(HOLD_S - 1) == [], what


def test_the_bytes_of_one_batch_under_another_number_are_no_second_batch() -> None:
    stall = Stall()
    assert stall.say(OURS[0]) == [OURS[0]]
    stall.tell(FetchEnded(WORKER, root_of(OURS[0]), True))
    assert stall.say(OURS[1], root=root_of(OURS[0])) == [] and stall.wait() == []


@pytest.mark.parametrize("max_async", [0, 1, 2])
@pytest.mark.parametrize("number", [0, 1, 60_000])
def test_keys_made_for_a_tip_draw_nothing_however_few_versions_are_kept(max_async: int, number: int) -> None:
    context = PoolContext(ME, Role.TRAINER, RL.model_copy(update={"max_async": max_async}))
    intake, tips = Intake(context, {}), [hash_bytes("tip", bytes([version])) for version in range(6)]
    for version, tip in enumerate(tips):
        kept = {each: tips[each] for each in range(max(0, version - max_async), version)} | {version: tip}
        before = tips[version - 1] if version else None
        moved = TipChanged(version, kept, dict.fromkeys(kept, (ME,)), (ME,), frozenset({WORKER}), before)
        intake.move(context.moved, moved, 0.0)
        context.move(moved)
    body = RolloutBatch(
        version=5,
        tip=tips[5],
        number=number,
        incarnation=1,
        rollouts=8,
        tokens=8,
        precision=Precision.FLOAT32,
        size=1000,
        root=root_of(number),
    )
    assert not intake.admits(PooledBatch(STRANGER, body, b""), 1.0)
