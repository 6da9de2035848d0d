"""The newest amendment waits for a record, goes into plans that may carry it, and waits again on another branch."""

from __future__ import annotations

from protocol.chain.progress import TasksInForce
from protocol.tasks.task_sets import NewestAmendment
from protocol.wire.rollouts import AdmittedSet, Amendment
from tests.protocol.peers import ANN


def amendment(number: int, **sets: int) -> Amendment:
    """With these sets, each by its letter in this slot."""
    return Amendment(
        number=number,
        percent=50,
        sets=[
            AdmittedSet(name=name, count=1, size=9, root=name.encode() * 32, slot=slot, publisher=ANN.peer_id)
            for name, slot in sets.items()
        ],
    )


def in_force(body: Amendment) -> TasksInForce:
    return TasksInForce(body.number, body.percent, tuple(body.sets), highest=max(each.slot for each in body.sets))


def test_of_two_with_one_number_the_first_counts_and_a_higher_number_more() -> None:
    newest, genesis = NewestAmendment(), TasksInForce()
    assert newest.hear(genesis, amendment(1, a=1), b"one") and not newest.hear(genesis, amendment(1, b=1), b"other")
    assert newest.hear(genesis, amendment(2, a=1, b=2), b"two") and not newest.hear(genesis, amendment(1, a=1), b"one")
    assert newest.next(genesis) == (amendment(2, a=1, b=2), b"two")


def test_what_a_record_has_is_not_proposed_and_what_another_branch_lacks_is_again() -> None:
    newest, genesis, first = NewestAmendment(), TasksInForce(), amendment(1, a=1)
    assert newest.hear(genesis, first, b"one")
    assert newest.pending(in_force(first)) is newest.next(in_force(first)) is None
    assert newest.next(genesis) == newest.pending(genesis) == (first, b"one")
    again = NewestAmendment()
    again.recall(first, b"one")
    assert again.pending(in_force(first)) is None and again.next(genesis) == (first, b"one")


def test_an_amendment_that_another_one_has_left_no_room_for_is_in_no_plan() -> None:
    """An organiser that lost what it signed gives a slot twice: the one that comes second would spoil every plan."""
    newest, genesis, first = NewestAmendment(), TasksInForce(), amendment(1, a=1)
    assert newest.hear(genesis, amendment(2, b=1, c=2), b"two")
    assert newest.pending(in_force(first)) is not None and newest.next(in_force(first)) is None
    assert not NewestAmendment().hear(in_force(first), amendment(2, b=1, c=2), b"two")
    assert newest.hear(in_force(first), amendment(3, a=1, b=3), b"three") and newest.next(in_force(first)) is not None
