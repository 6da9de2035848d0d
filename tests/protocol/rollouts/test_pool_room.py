"""Room in the pool: what one peer may fill, what a crowd, and whose turn it is."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.rollouts import trust
from protocol.rollouts.batch import Decision
from protocol.rollouts.events import (
    BatchVerified,
    DiscardBytes,
    Ejected,
    FetchBatch,
    FetchEnded,
    ForwardBatch,
    PoolTick,
    TrainerIdle,
    VerifyBatch,
)
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role
from tests.protocol.rollouts.test_pool import BAD, GOOD, TIPS, VALIDATORS, WORKER, Table, kinds


def test_peers_with_a_clean_history_find_room_among_a_crowd(monkeypatch: Any) -> None:
    monkeypatch.setattr(trust, "MOST_BATCHES", 8)
    table = Table(Role.SEED)
    for number in range(20):
        table.hear(PeerId(f"key {number}"), hash_bytes("root", bytes([number])))
    assert len([*table.pool]) == 8
    table.pool.standing.right(WORKER)
    assert ForwardBatch in kinds(table.hear(root=hash_bytes("root", b"mine")))
    assert len([*table.pool]) == 8


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
    table.hear()
    table.fetched()
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
    table.pool.standing.right(WORKER)
    strangers = VALIDATORS[:3]
    for number, author in enumerate([WORKER, WORKER, *strangers]):
        root = hash_bytes("root", bytes([number]))
        table.hear(author, root, number=number)
        table.tell(FetchEnded(author, root, True))
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
