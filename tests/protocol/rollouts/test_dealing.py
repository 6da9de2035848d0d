"""Who solves, judges and learns from what: facts about the draws."""

from __future__ import annotations

from collections import Counter

from protocol.chain.progress import TasksInForce
from protocol.rollouts.batch import TWICE, is_for, order_of, places_of, problems_of, trainer_of
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import Identity, PeerId

RUN = hash_bytes("manifest", b"run")
PEERS = tuple(sorted(Identity.from_seed(bytes([number]) * 32).peer_id for number in range(6)))
NONE = TasksInForce()
ROOTS = [hash_bytes("root", bytes([number])) for number in range(250)]


def test_problems_are_different_within_a_batch_and_follow_from_tip_peer_and_number() -> None:
    drawn = problems_of(RUN, ROOTS[0], PEERS[0], 0, 8, 9, NONE)
    assert len({*drawn}) == 8 and all(0 <= problem < 9 for problem in drawn)
    assert drawn == problems_of(RUN, ROOTS[0], PEERS[0], 0, 8, 9, NONE)
    many = 1 << 40
    others = {
        problems_of(RUN, ROOTS[0], PEERS[0], 0, 8, many, NONE),
        problems_of(RUN, ROOTS[1], PEERS[0], 0, 8, many, NONE),
        problems_of(RUN, ROOTS[0], PEERS[1], 0, 8, many, NONE),
        problems_of(RUN, ROOTS[0], PEERS[0], 1, 8, many, NONE),
    }
    assert len(others) == 4


def test_who_leaves_moves_nobody_else() -> None:
    for root in ROOTS[:50]:
        order = order_of(RUN, root, PEERS)
        assert order_of(RUN, root, PEERS[1:]) == [peer for peer in order if peer != PEERS[0]]


def test_a_sample_is_dealt_to_two_validators_and_work_is_shared_out() -> None:
    beacons = [hash_bytes("beacon", root) for root in ROOTS]
    dealt = [tuple(order_of(beacon, root, PEERS, places_of(beacon))) for beacon, root in zip(beacons, ROOTS, strict=True)]
    twice = sum(len(each) == 2 for each in dealt)
    assert twice == sum(places_of(beacon) == 2 for beacon in beacons) and 0 < twice < 3 * len(ROOTS) // TWICE
    assert {*Counter(peer for each in dealt for peer in each)} == {*PEERS}
    assert [*order_of(beacons[0], ROOTS[0], (), places_of(beacons[0]))] == []


def test_trainers_of_the_last_record_share_the_batches_out() -> None:
    for root in ROOTS:
        assert [peer for peer in PEERS if is_for(root, peer, PEERS)] == [trainer_of(root, PEERS)]


def test_a_newcomer_has_a_share_too_and_before_the_first_record_everything() -> None:
    newcomer = PeerId(PEERS[0])
    share = sum(is_for(root, newcomer, PEERS[1:3]) for root in ROOTS)
    assert len(ROOTS) // 6 < share < len(ROOTS) // 2
    assert all(is_for(Hash(root), newcomer, ()) for root in ROOTS)
