"""Which sets of tasks are in force follows from the records alone, and only from what the organiser signed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.chain.base import Base
from protocol.chain.progress import OWN_PROBLEMS, TasksInForce, first_problem, place_of
from protocol.rollouts.batch import problems_of
from protocol.run.sections import RlSection
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Record, pack
from protocol.wire.rollouts import AdmittedSet, Amendment, TaskSet
from tests.protocol.members import a_member
from tests.simulation.world import simulated_run

ORGANISER = Identity.from_seed(b"\x2a" * 32)
STRANGER = Identity.from_seed(bytes(32))
RUN, TIP = hash_bytes("manifest", b"run"), hash_bytes("record", b"tip")
RL = RlSection(environment="add", row_tokens=64, max_tokens=32)
MANIFEST = simulated_run().manifest.model_copy(update={"rl": RL})
PEERS = tuple(sorted(Identity.from_seed(bytes([number]) * 32).peer_id for number in range(1, 6)))


def a_set(slot: int, count: int = 3, root: int | None = None) -> AdmittedSet:
    name = bytes([slot if root is None else root]) * 32
    return AdmittedSet(name="s", count=count, size=9, root=name, slot=slot, publisher=STRANGER.peer_id)


def amendment(number: int, *slots: int, by: Identity = ORGANISER, run: Hash = RUN) -> bytes:
    return pack(by, run, Amendment(number=number, percent=50, sets=[a_set(slot) for slot in slots])).raw


def a_record(raw: bytes | None, against: dict[PeerId, int] | None = None) -> Record:
    members = [a_member(peer, 10, TIP).model_copy(update={"against": (against or {}).get(peer)}) for peer in PEERS]
    return Record(
        round=0, fragment=0, previous=TIP, members=members, codec="int4", result_root=TIP, state_digest=TIP, amendment=raw
    )


def in_force(*records: Record) -> TasksInForce:
    tasks = TasksInForce()
    for record in records:
        Base(0, 0, TIP, (), tasks=tasks).check_amendment(RUN, MANIFEST, record.amendment)
        tasks = tasks.after(record, PEERS)
    return tasks


def test_the_record_says_which_sets_there_are() -> None:
    tasks = in_force(a_record(amendment(1, 1)), a_record(None), a_record(amendment(5, 1, 2)), a_record(amendment(6, 2)))
    assert [each.slot for each in tasks.live] == [2]
    assert (tasks.number, tasks.percent, tasks.highest) == (6, 50, 2)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (amendment(2, 1), "number 2, after one with 2"),
        (amendment(1, 1), "number 1, after one with 2"),
        (amendment(3, 1, by=STRANGER), "not an amendment of the organiser"),
        (amendment(3, 1, run=TIP), "another run"),
        (pack(ORGANISER, RUN, TaskSet(name="s", count=1, size=9, root=TIP)).raw, "not an amendment"),
        (b"\xc0", "not an envelope"),
        (pack(ORGANISER, RUN, Amendment(number=3, percent=9, sets=[a_set(1, root=9)])).raw, "gives a slot to another set"),
    ],
    ids=["same number", "lower number", "stranger", "another run", "an offer", "nothing", "slot taken"],
)
def test_nothing_else_is_taken(raw: bytes, reason: str) -> None:
    tasks = in_force(a_record(amendment(2, 1, 2)))
    with pytest.raises(Malformed, match=reason):
        Base(0, 0, TIP, (), tasks=tasks).check_amendment(RUN, MANIFEST, raw)


def test_runs_without_rollouts_have_no_tasks() -> None:
    with pytest.raises(Malformed, match="without rollouts"):
        Base(0, 0, TIP, ()).check_amendment(RUN, MANIFEST.model_copy(update={"rl": None}), amendment(1, 1))


def test_more_than_half_of_the_voters_make_a_set_fall_out_until_it_has_another_slot() -> None:
    begun = a_record(amendment(1, 1, 2))
    two = dict.fromkeys(PEERS[:2], 2)
    assert in_force(begun, a_record(None, two)).fallen == frozenset()
    assert in_force(begun, a_record(None, two), a_record(None, dict.fromkeys(PEERS[2:4], 0b10))).fallen == frozenset()
    three = dict.fromkeys(PEERS[:3], 2)
    tasks = in_force(begun, a_record(None, three))
    assert [each.slot for each in tasks.live] == [1] and tasks.fallen == {2}
    assert in_force(begun, a_record(None, three), a_record(amendment(2, 1, 2))).fallen == {2}
    assert [each.slot for each in in_force(begun, a_record(None, three), a_record(amendment(2, 1, 3))).live] == [1, 3]
    strangers = TasksInForce().after(begun, PEERS).after(a_record(None, three), PEERS[3:])
    assert not strangers.fallen, "who does not vote on the record does not count"
    nobody = TasksInForce().after(begun, ()).after(a_record(None, three), ())
    assert nobody.fallen == {2}, "where members vote, they count"


def test_a_share_of_the_problems_is_of_the_sets_and_the_same_for_everybody() -> None:
    tasks = replace(in_force(a_record(amendment(1, 1, 2))), percent=30)
    drawn = [problem for number in range(200) for problem in problems_of(RUN, TIP, PEERS[0], number, 5, 1000, tasks)]
    crowd = [place for problem in drawn if (place := place_of(problem)) is not None]
    assert 0.25 < len(crowd) / len(drawn) < 0.35
    assert {*crowd} == {(slot, task) for slot in (1, 2) for task in range(3)}
    assert all(problem < 1000 or problem >= OWN_PROBLEMS for problem in drawn)
    batch = problems_of(RUN, TIP, PEERS[0], 0, 50, 1000, tasks)
    assert len({*batch}) == 50 and batch == problems_of(RUN, TIP, PEERS[0], 0, 50, 1000, tasks)
    assert place_of(first_problem(7) + 2) == (7, 2) and place_of(5) is None
