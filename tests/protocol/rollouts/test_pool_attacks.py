"""Keys are free: what crowds, copies, silence and floods cost a pool of batches, and how much room they get."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from protocol.rollouts import policy as policies
from protocol.rollouts import trust
from protocol.rollouts.batch import Decision, order_of
from protocol.rollouts.events import (
    BatchVerified,
    DealHeard,
    DiscardBytes,
    Ejected,
    FetchBatch,
    FetchEnded,
    ForwardBatch,
    GossipVerdicts,
    JudgementHeard,
    PoolEffect,
    PoolTick,
    TrainerIdle,
    VerifyBatch,
)
from protocol.rollouts.pool import HOLD_S
from protocol.rollouts.trust import PLACES, TrustScores
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role
from protocol.wire.rollouts import CODES, Judgement, Verdict
from tests.protocol.rollouts.test_pool import (
    BAD,
    GOOD,
    ME,
    ONE_PLACE,
    RL,
    ROOT,
    TIPS,
    VALIDATORS,
    WORKER,
    Table,
    dealt,
    kinds,
)

COPIER = VALIDATORS[0]
CROWD = [PeerId(f"12D3KooW{number:x>44}".replace("0", "z")) for number in range(300)]


def root_of(number: int) -> Hash:
    return hash_bytes("root", number.to_bytes(4, "big"))


def fetched_in(effects: list[PoolEffect]) -> list[PeerId]:
    return [effect.batch.author for effect in effects if isinstance(effect, FetchBatch)]


# -- copies ---------------------------------------------------------------------------------------------------------------


def test_a_copy_that_is_rejected_does_not_take_the_bytes_from_who_made_them() -> None:
    table = Table(Role.TRAINER, trainers=())
    table.take()
    table.hear(COPIER)
    table.tell(FetchEnded(COPIER, ROOT, True))
    table.tell(TrainerIdle())
    table.tell(TrainerIdle())
    bad = bytes([CODES.index(next(code for code in CODES if code[0] is Verdict.REJECT))]) * 2
    assert DiscardBytes in kinds(table.tell(BatchVerified(COPIER, ROOT, bad)))
    assert table.pool.needs(ROOT), "the maker's batch is still to be learned from"
    table.tell(BatchVerified(WORKER, ROOT, GOOD))
    assert table.decision is Decision.ACCEPTED and table.pool.needs(ROOT)


def test_copies_in_a_false_size_keep_nobody_with_a_clean_history_from_being_fetched() -> None:
    """However many keys state them, from which nothing was fetched yet."""
    table = Table(Role.TRAINER, trainers=())
    table.pool.trust.right(WORKER)
    table.take(root=root_of(1))
    for key in CROWD[:40]:
        table.hear(key, size=7)
    assert fetched_in(table.hear(number=1)) == [], "a copy is being fetched"
    assert fetched_in(table.tell(FetchEnded(CROWD[0], ROOT, False))) == [WORKER]


# -- bytes ----------------------------------------------------------------------------------------------------------------


def test_bytes_over_which_the_trainer_process_dies_are_not_tried_for_ever() -> None:
    table = Table(Role.TRAINER, trainers=())
    table.take()
    for _ in range(2):
        assert kinds(table.tell(TrainerIdle())) == [VerifyBatch]
        table.tell(BatchVerified(WORKER, ROOT, None, died=True))
    assert table.decision is Decision.STALE and table.tell(TrainerIdle()) == []


def test_a_validator_says_that_it_cannot_tell_of_bytes_that_end_its_trainer_process() -> None:
    table = Table(Role.VALIDATOR, trainers=(WORKER,))
    table.validators = frozenset({ME})
    table.tick()
    table.hear(author=COPIER)
    table.tell(DealHeard(WORKER, COPIER, ROOT, ONE_PLACE))
    table.tell(FetchEnded(COPIER, ROOT, True))
    table.tell(TrainerIdle())
    assert table.tell(BatchVerified(COPIER, ROOT, None, died=True)) == []
    table.tell(TrainerIdle())
    [said] = [e for e in table.tell(BatchVerified(COPIER, ROOT, None, died=True)) if isinstance(e, GossipVerdicts)]
    assert {CODES[code][0] for code in said.body.codes} == {Verdict.INCONCLUSIVE}


# -- crowds of keys -------------------------------------------------------------------------------------------------------


def test_who_withheld_bytes_comes_after_others() -> None:
    table = Table(Role.TRAINER, trainers=())
    table.hear(CROWD[0], root_of(0))
    table.tell(FetchEnded(CROWD[0], root_of(0), False))
    table.hear(CROWD[1], root_of(1))
    table.hear(CROWD[2], root_of(2))
    table.hear(CROWD[0], root_of(3), number=1)
    table.now += HOLD_S
    table.tick()
    table.hear(CROWD[3], root_of(4))
    assert fetched_in(table.tell(FetchEnded(CROWD[1], root_of(1), False))) == [CROWD[3]]
    assert fetched_in(table.tell(FetchEnded(CROWD[2], root_of(2), False))) == [CROWD[0]]


def test_only_what_will_be_decided_keeps_others_from_being_fetched() -> None:
    table = Table(Role.TRAINER, trainers=())
    for number in range(2):
        table.take(CROWD[number], root_of(number))
    assert fetched_in(table.hear(CROWD[2], root_of(2))) == [], "enough are ahead of their check"
    fetched = fetched_in(table.tell(PoolTick(table.validators, {})))
    assert fetched == [CROWD[2]], "those before it can never be checked here: our trainer process started anew"


def test_who_is_set_aside_while_its_bytes_are_coming_holds_no_place_among_the_fetches() -> None:
    """Who trickles bytes and then proves itself a liar would else keep its places until its batches are too old."""
    table = Table(Role.TRAINER, trainers=())
    for number, key in enumerate(CROWD[:PLACES]):
        assert fetched_in(table.hear(key, root_of(number))) == [key]
        table.tell(Ejected(key, "two batches of one number"))
        assert not table.pool.needs(root_of(number)), "what came of it is removed"
    assert fetched_in(table.hear()) == [WORKER]


def test_a_crowd_of_silent_validators_is_waited_for_once() -> None:
    table = dealt()
    table.validators = frozenset(CROWD)
    table.tick()
    assert table.tell(TrainerIdle()) == [], "its validators have some time"
    table.wait_until(2 * RL.judge_s)
    table.check(GOOD)
    assert table.decision is Decision.ACCEPTED


def test_who_was_silent_in_its_turn_is_not_waited_for_again_until_it_speaks() -> None:
    table = dealt()
    silent, second = table.order[:2]
    table.wait_until(RL.judge_s)
    table.judge(second, GOOD)
    assert table.decision is Decision.ACCEPTED
    other = next(root for root in map(root_of, range(99)) if order_of(ONE_PLACE, root, VALIDATORS)[0] == silent)
    table.take(root=other, number=1)
    table.tell(DealHeard(ME, WORKER, other, ONE_PLACE))
    batch = table.pool.find(WORKER, other)
    assert batch is not None and batch.decision is None
    follower = order_of(ONE_PLACE, other, VALIDATORS)[1]
    judge_other(table, follower, other)
    assert batch.decision is Decision.ACCEPTED, "it is the follower's turn at once"


def judge_other(table: Table, validator: PeerId, root: Hash) -> None:
    table.tell(JudgementHeard(validator, Judgement(author=WORKER, root=root, codes=GOOD)))


def test_a_look_at_thousands_of_batches_draws_no_validators_anew(monkeypatch: Any) -> None:
    table = Table(Role.VALIDATOR, trainers=(WORKER,))
    table.validators = frozenset(CROWD)
    table.tick()
    drawn: list[int] = []
    draw = order_of

    def counted(beacon: Hash, root: Hash, validators: Any, *others: Any) -> list[PeerId]:
        drawn.append(len(validators))
        return draw(beacon, root, validators, *others)

    monkeypatch.setattr(policies, "order_of", counted)
    for number, key in enumerate(CROWD):
        table.hear(key, root_of(number))
        table.tell(DealHeard(WORKER, key, root_of(number), ONE_PLACE))
    assert len(drawn) == len(CROWD) and max(drawn) <= policies.MOST_DEALT
    drawn.clear()
    table.tick()
    assert drawn == []
    for number in range(4):  # a validator that comes and goes, four times a second
        table.validators = frozenset(VALIDATORS[number % 2 :])
        table.tick()
    assert len(drawn) == 4 * policies.MOST_REDRAWN
    table.tick()
    assert {dealt.among for batch in table.pool for dealt in batch.deals.values()} == {table.validators}, "soon"


def test_a_rollout_peer_does_not_wait_for_ever_for_trainers_that_deal_nothing() -> None:
    table = Table(Role.ROLLOUT, trainers=tuple(CROWD[:9]))
    for number in range(16):
        table.hear(ME, root_of(number), number=number)
    assert table.pool.pending(0.0) == 16
    assert table.pool.pending(2 * RL.judge_s) == 0


def test_a_flood_of_keys_does_not_push_out_its_equals(monkeypatch: Any) -> None:
    monkeypatch.setattr(trust, "MOST_BATCHES", 8)
    table = Table(Role.SEED)
    for number in range(8):
        table.hear(CROWD[0], root_of(number), number=number)
    heard = [table.hear(key, root_of(100 + number)) for number, key in enumerate(CROWD[1:])]
    assert sum(ForwardBatch in kinds(effects) for effects in heard) == 7, "until each has one"
    assert len({batch.author for batch in table.pool}) == 8
    table.pool.trust.right(WORKER)
    for number in range(8):
        assert ForwardBatch in kinds(table.hear(root=root_of(number), number=number))
    table.move(3 + RL.max_async + 1)
    assert ForwardBatch in kinds(table.hear(CROWD[0], version=5))


def test_electors_and_keys_that_reject_together_cost_one_look_for_each_verdict(monkeypatch: Any) -> None:
    """Each pair of them was looked at, for each verdict: those of a third of 64 electors held everybody up."""
    looks: list[int] = []
    monkeypatch.setattr(TrustScores, "reproduced", lambda self, author, rejecting, electors: looks.append(len(rejecting)))
    table = Table(Role.SEED, trainers=tuple(CROWD[:64]))
    table.validators = frozenset(CROWD[64:80])
    table.tick()
    table.hear()
    for peer in CROWD[:80]:
        table.judge(peer, BAD)
    assert looks == [*range(2, 81)]


def test_who_repeats_what_others_found_is_not_believed_for_it() -> None:
    """It is free, and does without verifying anything, so that hundreds of keys had a clean history after 22 batches."""
    table = Table(Role.TRAINER, draw=0.0)
    asked, before, after = table.order[:3]
    table.take()
    table.deal()
    table.judge(asked, GOOD)
    table.judge(before, GOOD)
    table.check(GOOD)
    table.judge(after, GOOD)
    assert [table.pool.trust.clean(peer) for peer in (asked, before, after)] == [1, 0, 0]


def test_a_validator_key_that_is_made_for_a_deal_or_a_tip_comes_last() -> None:
    table = dealt()
    batch = table.pool.find(WORKER, ROOT)
    assert batch is not None
    order = table.order
    keys = (PeerId(f"12D3KooW{number:0>44}") for number in count())
    first = next(key for key in keys if order_of(ONE_PLACE, ROOT, [key, *VALIDATORS])[0] == key)
    table.validators |= {first}
    table.tick()
    assert batch.deals[ME].order == (*order, first)
    table.validators = frozenset(CROWD[:40])
    table.tick()
    table.move(4)
    table.validators = frozenset(CROWD)
    table.tick()
    assert len(table.pool._context.validators) == policies.MOST_DEALT and table.pool._context.validators > {*CROWD[:40]}


# -- room -----------------------------------------------------------------------------------------------------------------


def test_one_peer_has_its_share_and_no_more(monkeypatch: Any) -> None:
    monkeypatch.setattr(trust, "MOST_OF_ONE", 3)
    table = Table(Role.SEED)
    for number in range(5):
        table.hear(number=number, root=hash_bytes("root", bytes([number])))
    assert len([*table.pool]) == 3


def test_what_waits_of_a_peer_that_is_set_aside_takes_no_places() -> None:
    """They were fetched all the same, and nobody gave the places back: the trainer waited for ever."""
    table, roots = Table(Role.TRAINER, trainers=()), [hash_bytes("root", bytes([number])) for number in range(16)]
    begun = [root for number, root in enumerate(roots) if FetchBatch in kinds(table.hear(root=root, number=number))]
    assert 0 < len(begun) < len(roots)
    for root in begun:
        table.tell(FetchEnded(WORKER, root, True))
    table.tell(TrainerIdle())
    rejected = table.tell(BatchVerified(WORKER, begun[0], BAD))
    assert FetchBatch not in kinds([*rejected, *table.tick()])
    for batch in table.pool:
        table.tell(FetchEnded(WORKER, batch.root, None))  # those that were on their way are given up
    assert FetchBatch in kinds([*table.hear(VALIDATORS[0], hash_bytes("root", b"mine")), *table.tick()])


def test_bytes_are_bounded_for_all_and_for_each(monkeypatch: Any) -> None:
    monkeypatch.setattr(trust, "MOST_BYTES", 500)
    monkeypatch.setattr(trust, "MOST_BYTES_OF_ONE", 150)
    table = Table(Role.TRAINER, trainers=())
    assert FetchBatch in kinds(table.hear())
    assert FetchBatch not in kinds(table.hear(number=1, root=hash_bytes("root", b"1")))
    assert FetchBatch in kinds([*table.hear(VALIDATORS[0], hash_bytes("root", b"2")), *table.tick()])
    assert FetchBatch not in kinds([*table.hear(VALIDATORS[1], hash_bytes("root", b"3")), *table.tick()])


def test_what_was_learned_from_leaves_its_room_to_others(monkeypatch: Any) -> None:
    """Of a peer that makes large batches a trainer had none for the next rounds, and so no round ended."""
    monkeypatch.setattr(trust, "MOST_BYTES_OF_ONE", 150)
    table = Table(Role.TRAINER, trainers=())
    table.take()
    table.check(GOOD)
    other = hash_bytes("root", b"1")
    assert FetchBatch not in kinds([*table.hear(number=1, root=other), *table.tick()])
    [batch] = table.pool.usable(3)
    batch.used = True
    assert kinds(table.tick()) == [DiscardBytes, FetchBatch]
    assert DiscardBytes not in kinds(table.tick())


def test_nothing_is_done_again_for_what_an_earlier_life_learned_from() -> None:
    table = Table(Role.TRAINER, trainers=())
    table.pool.before = frozenset([(WORKER, hash_bytes("root", b"0")), (WORKER, hash_bytes("root", b"1"))])
    assert kinds(table.hear() + table.tick()) == [ForwardBatch], "others may know nothing of it"
    table.pool.before = frozenset()
    assert FetchBatch in kinds(table.tick())
    table.pool.before = frozenset([(WORKER, hash_bytes("root", b"0"))])
    assert kinds(table.tick()) == [DiscardBytes], "it was heard before its record was here"
    assert kinds(table.fetched()) == [DiscardBytes], "its fetch was just at its end"
    assert table.tell(TrainerIdle()) == []


def test_checks_go_by_turns_to_known_peers_and_to_strangers() -> None:
    table = Table(Role.TRAINER, trainers=())
    table.pool.trust.right(WORKER)
    strangers = VALIDATORS[:3]
    for number, author in enumerate([WORKER, WORKER, *strangers]):
        root = hash_bytes("root", bytes([number]))
        table.take(author, root, number=number)
    checked = []
    for _ in range(4):
        [check] = [effect for effect in table.tell(TrainerIdle()) if isinstance(effect, VerifyBatch)]
        checked.append(check.batch.author == WORKER)
    assert checked == [False, True, False, True]


@pytest.mark.parametrize("why", ["learned from", "no tasks"])
def test_what_cannot_be_learned_from_keeps_no_other_batch_from_its_check(why: str) -> None:
    """Accepted ones that an earlier life learned from, or whose tasks the trainer process has no more.  Else a trainer that
    nobody works for waited for batches that were here, for ever."""
    table, roots = Table(Role.TRAINER), [hash_bytes("root", bytes([number])) for number in range(3)]
    table.validators = frozenset()
    table.tick()

    def checked(version: int, number: int) -> list[type]:
        table.hear(version=version, number=number, root=roots[number])
        table.tell(FetchEnded(WORKER, roots[number], True))
        found = table.tell(TrainerIdle())
        if found:
            table.tell(BatchVerified(WORKER, roots[number], GOOD))
        return kinds(found)

    assert [checked(2, 0), checked(2, 1)] == [[VerifyBatch], [VerifyBatch]]
    assert checked(3, 2) == [], "there is enough for two rounds"
    if why == "learned from":
        table.pool.before = frozenset((WORKER, root) for root in roots[:2])
        assert table.pool.usable(3) == []
    else:
        table.tell(PoolTick(table.validators, {3: TIPS[3]}))
    assert kinds(table.tell(TrainerIdle())) == [VerifyBatch]


def test_batches_that_were_decided_against_make_room(monkeypatch: Any) -> None:
    """One check sets a key aside, with all that it has stated.  A trainer alone in its run heard of no batch any more then,
    and so ended no round after which those would have been too old."""
    monkeypatch.setattr(trust, "MOST_BATCHES", 8)
    table, liars = Table(Role.TRAINER), VALIDATORS[:2]
    for liar in liars:
        for number in range(4):
            table.hear(liar, hash_bytes("root", f"{liar} {number}".encode()), number=number)
        table.pool.handle(Ejected(liar, "it lied"), 0.0)
    assert {batch.decision for batch in table.pool} == {Decision.REJECTED} and len([*table.pool]) == 8
    assert ForwardBatch in kinds(table.hear())
    assert len([*table.pool]) == 8
    assert table.hear(liars[0], hash_bytes("root", f"{liars[0]} 0".encode())) == [], "and comes not again"
