"""Offers of task sets have bounded room; what the organiser admits is in order, and waits for a record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from protocol.blobs.store import BlobStore
from protocol.chain.progress import TasksInForce
from protocol.disk import Disk
from protocol.tasks.commands import CannotAmend, TaskSetCommands, admitting, removing
from protocol.tasks.library import SetFiles
from protocol.tasks.task_sets import MOST, MOST_OF_ONE, NewestAmendment, Offers, SignedOffer
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import Identity, PeerId
from protocol.wire.rollouts import MAX_SET_BYTES, MAX_SETS, AdmittedSet, Amendment, TaskSet
from tests.protocol.peers import ANN, BOB, ME
from tests.simulation.determinism import inline

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


def admitted(folder: Path, data: bytes, count: int, *said: Mapping[str, Any]) -> Amendment:
    """What Ann's peer, which has these bytes, signs when she admits them.  said: in offers, all but the first of members."""
    swarm: Any = SimpleNamespace(originate=lambda root, chunks: None)
    session: Any = SimpleNamespace(me=ANN.peer_id, seal=lambda body: SimpleNamespace(raw=b"signed"))
    guard: Any = None
    sets: Any = SimpleNamespace(
        offers=Offers(), organiser=ANN.peer_id, running=SimpleNamespace(is_open=True), in_force=TasksInForce(), pending=None
    )
    sets.tidying = trio.Lock()
    sets.files = SetFiles(session, guard, BlobStore(Disk(durable=False), folder), inline, swarm)

    async def taken(*arguments: object) -> None: ...

    sets.keep = sets.say = taken
    sets.ask_for = lambda root: None
    sets.take = lambda body, raw: True

    async def main() -> Amendment:
        await sets.files.load()
        (folder / ".given-1.new").write_bytes(data)
        root, _ = await sets.files.adopt(folder / ".given-1.new")
        for at, each in enumerate(said):
            body = TaskSet(**{"name": "s", "count": count, "size": len(data), "root": root, **each})
            assert sets.offers.hear(SignedOffer(body, [BOB, ME][at].peer_id, b"raw", is_member=at > 0))
        return await TaskSetCommands(session, sets).admit(root.hex()[:12], None, count)

    return trio.run(main)


def test_neither_a_false_size_nor_a_false_number_of_tasks_is_admitted(tmp_path: Path) -> None:
    """A member offers a stranger's set as well, once the organiser's peer has it: nobody else could have it then."""
    amendment = admitted(tmp_path, b"three lines", 3, {}, {"size": 12, "count": 9})
    assert [(each.size, each.count, each.publisher) for each in amendment.sets] == [(11, 3, ME.peer_id)]
