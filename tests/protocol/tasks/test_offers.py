"""What strangers offer has bounded room; what the organiser admits is in order."""

from __future__ import annotations

import pytest

from protocol.chain.progress import TasksInForce
from protocol.tasks.commands import CannotAmend, admitting, removing
from protocol.tasks.task_sets import MOST, MOST_OF_ONE, Offers, SignedOffer
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import Identity, PeerId
from protocol.wire.rollouts import MAX_SET_BYTES, MAX_SETS, Amendment, TaskSet

PEERS = [Identity.from_seed(number.to_bytes(32, "big")).peer_id for number in range(MOST // MOST_OF_ONE + 1)]


def an_offer(peer: PeerId, number: int, *, is_member: bool = False, size: int = 9) -> SignedOffer:
    body = TaskSet(name="s", count=1, size=size, root=hash_bytes("root", f"{peer} {number}".encode()))
    return SignedOffer(body, peer, b"raw", is_member)


def full(*, of_members: bool = False) -> tuple[Offers, list[SignedOffer]]:
    offers = Offers()
    made = [an_offer(peer, number, is_member=of_members) for peer in PEERS[:-1] for number in range(MOST_OF_ONE)]
    assert all(map(offers.hear, made)) and len(made) == MOST
    return offers, made


def test_one_peer_has_few_places_and_a_set_is_heard_once() -> None:
    offers = Offers()
    heard = [offers.hear(an_offer(PEERS[0], number)) for number in range(MOST_OF_ONE + 1)]
    assert heard == [True] * MOST_OF_ONE + [False]
    assert not offers.hear(an_offer(PEERS[0], 0))


def test_who_becomes_a_member_offers_its_sets_again_as_one() -> None:
    offers = Offers()
    made = [an_offer(PEERS[0], number) for number in range(MOST_OF_ONE)]
    assert all(map(offers.hear, made))
    as_member = [an_offer(PEERS[0], number, is_member=True) for number in range(MOST_OF_ONE)]
    assert all(map(offers.hear, as_member)) and [*offers] == as_member


def test_a_strangers_offer_of_a_members_set_gives_way_also_where_there_is_no_room() -> None:
    """A size that is not so kept the set from everybody."""
    for offers, victim in ((Offers(), an_offer(PEERS[0], 0, size=7)), (full()[0], an_offer(PEERS[0], 3))):
        offers.hear(victim)
        of_member = SignedOffer(victim.body.model_copy(update={"size": 9}), PEERS[-1], b"raw", is_member=True)
        assert offers.hear(of_member) and of_member in [*offers]
        assert not offers.hear(victim) and not offers.hear(of_member)
        assert len([*offers]) in (1, MOST)


def test_the_oldest_of_strangers_makes_room_and_members_make_room_for_members_only() -> None:
    offers, made = full()
    assert offers.hear(an_offer(PEERS[-1], 0)) and made[0] not in [*offers]
    assert len([*offers]) == MOST
    offers, made = full(of_members=True)
    assert not offers.hear(an_offer(PEERS[-1], 0))
    assert offers.hear(an_offer(PEERS[-1], 0, is_member=True)) and made[0] not in [*offers]


def test_amendments_have_rising_numbers_and_slots_that_no_other_set_gets() -> None:
    nothing = TasksInForce()
    first = admitting(nothing, None, an_offer(PEERS[0], 0), None)
    second = admitting(nothing, first, an_offer(PEERS[0], 1), 30)
    assert [each.slot for each in second.sets] == [1, 2] and (first.percent, second.percent) == (50, 30)
    third = removing(nothing, second, an_offer(PEERS[0], 1).root)
    assert third.percent == 30
    held = TasksInForce(third.number, third.percent, tuple(third.sets), frozenset(), 2)
    fourth = admitting(held, None, an_offer(PEERS[0], 1), None)
    assert [each.slot for each in fourth.sets] == [1, 3] and fourth.number == 4
    fallen = TasksInForce(4, 30, tuple(fourth.sets), frozenset({3}), 3)
    again = admitting(fallen, None, an_offer(PEERS[0], 1), None)
    assert [each.slot for each in again.sets] == [1, 4], "what fell out comes back in another slot"


def test_what_cannot_be_admitted_or_removed_is_refused_with_the_remedy() -> None:
    amendment: Amendment | None = None
    for number in range(MAX_SETS):
        amendment = admitting(TasksInForce(), amendment, an_offer(PEERS[0], number), None)
    with pytest.raises(CannotAmend, match="peer tasks remove"):
        admitting(TasksInForce(), amendment, an_offer(PEERS[0], 99), None)
    with pytest.raises(CannotAmend, match="admitted already"):
        admitting(TasksInForce(), amendment, an_offer(PEERS[0], 0), None)
    with pytest.raises(CannotAmend, match="peer tasks list"):
        removing(TasksInForce(), amendment, an_offer(PEERS[0], 99).root)
    large = None
    for number in range(4):
        large = admitting(TasksInForce(), large, an_offer(PEERS[0], number, size=MAX_SET_BYTES), None)
    with pytest.raises(CannotAmend, match="64 MiB"):
        admitting(TasksInForce(), large, an_offer(PEERS[0], 9, size=1), None)
