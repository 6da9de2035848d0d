"""Whose rollouts the chain credits, and what of them, each batch once."""

from __future__ import annotations

from protocol.chain.credit import MOST_TOLD, Credit, counted, learned_by, named_in, reward_of
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Commit, Record, Step, UsedBatch, learned_from
from tests.protocol.chains import credits_in
from tests.protocol.council import INDEX, PEERS, RECORD, votes_for

ANN, BOB, CAT, DAN, EVE = PEERS
"""The first three are members of the record."""


def root(number: int) -> Hash:
    return hash_bytes("test", number.to_bytes(4, "big"))


def a_record(round: int, *learned: tuple[list[tuple[PeerId, int, int]], float | None]) -> Record:
    """Its members learned from these batches (author, number, tokens), with these rewards."""
    members = []
    for member, (used, reward) in zip(RECORD.members, learned, strict=False):
        batches = [UsedBatch(author, root(number), tokens) for author, number, tokens in used]
        members.append(member.model_copy(update={"rollouts": learned_from(batches, reward)}))
    return RECORD.model_copy(update={"round": round, "members": [*members, *RECORD.members[len(members) :]]})


def a_commit(record: Record) -> Commit:
    return Commit(record=record, index=INDEX, certificate=votes_for(RECORD, PEERS[:3], 0, step=Step.SECOND))


def test_makers_of_rollouts_are_credited_with_the_tokens_that_were_learned_from() -> None:
    first = a_record(0, ([(DAN, 1, 100), (EVE, 2, 30)], 0.5), ([(DAN, 3, 7)], 0.2))
    second = a_record(1, ([(DAN, 4, 1000)], 0.5))
    found = credits_in([a_commit(first), a_commit(second)])
    assert found[DAN] == Credit(0, 0, 3, 1107) and found[EVE] == Credit(0, 0, 1, 30)
    assert found[ANN].rounds == 2 and found[ANN].accepted_tokens == 0


def test_a_batch_counts_once_whoever_learned_from_it_and_whenever() -> None:
    both = a_record(0, ([(DAN, 1, 100)], 0.5), ([(DAN, 1, 100)], 0.5))
    again = a_record(1, ([(DAN, 1, 100)], 0.5))
    assert credits_in([a_commit(both), a_commit(again)])[DAN] == Credit(0, 0, 1, 100)
    (event,) = counted(both, DAN, {}, 8)
    assert event.to_fields()["tokens"] == 100 and event.to_fields()["authors"] == {DAN: 100}
    assert event.to_fields()["rollouts"] == 8, "of one batch"
    (event,) = counted(again, DAN, named_in([both]), 8)
    fields = event.to_fields()
    assert (fields["batches"], fields["tokens"], fields["authors"], fields["mine"]) == (0, 0, {}, [])
    assert fields["rollouts"] == 0
    assert fields["reward"] == 0.5, "of all that it was made of"


def test_who_names_a_batch_first_and_with_fewer_tokens_takes_nothing_from_its_maker() -> None:
    """Else a member that hears of a batch could have it count for nothing, whoever learns from it."""
    before, later = a_record(0, ([(DAN, 1, 7)], 0.5)), a_record(1, ([(DAN, 1, 100)], 0.5))
    beside = a_record(0, ([(DAN, 1, 0)], 0.5), ([(DAN, 1, 100)], 0.5), ([(DAN, 1, 7)], 0.5))
    for records in ([before, later], [later, before], [beside], [beside, later]):
        assert credits_in(map(a_commit, records))[DAN] == Credit(0, 0, 1, 100)
        told = [counted(record, DAN, named_in(records[:at]), 8)[0].to_fields() for at, record in enumerate(records)]
        assert sum(each["batches"] for each in told) == sum(len(each["mine"]) for each in told) == 1
        assert sum(each["tokens"] for each in told) == sum(each["authors"].get(DAN, 0) for each in told) == 100


def test_the_bytes_of_one_batch_may_be_stated_by_two_peers() -> None:
    record = a_record(0, ([(DAN, 1, 100), (EVE, 1, 90)], None))
    assert credits_in([a_commit(record)])[EVE] == Credit(0, 0, 1, 90)


def test_the_reward_of_a_record_is_the_mean_over_its_batches() -> None:
    assert reward_of(a_record(0, ([(DAN, 1, 1), (DAN, 2, 1), (DAN, 3, 1)], 0.25), ([(EVE, 4, 1)], 0.5))) == 0.3125
    assert reward_of(a_record(0, ([(DAN, 1, 1)], None))) is None and reward_of(RECORD) is None


def test_a_round_without_rollouts_tells_nothing_of_them() -> None:
    assert counted(RECORD, ANN, {}, 8) == []
    assert all(credit.batches == 0 for credit in credits_in([a_commit(RECORD)]).values())


def test_very_many_rollout_peers_are_told_in_part_and_this_one_always() -> None:
    crowd = [Identity.from_seed(number.to_bytes(32, "big")).peer_id for number in range(100)]
    record = a_record(0, ([(peer, at, 1000 + at) for at, peer in enumerate(crowd)] + [(DAN, 1000, 1)], 0.5))
    (event,) = counted(record, DAN, {}, 8)
    fields = event.to_fields()
    assert [*fields["authors"]][:2] == [DAN, crowd[99]] and len(fields["authors"]) == MOST_TOLD
    assert fields["others"] == 101 - MOST_TOLD and fields["batches"] == 101


def test_what_a_member_learned_from_is_in_its_records() -> None:
    records = [a_record(0, ([(DAN, 1, 100)], 0.5), ([(DAN, 2, 7)], 0.2)), a_record(1, ([(EVE, 3, 9)], 0.5))]
    assert learned_by(records, ANN) == {(DAN, root(1)), (EVE, root(3))}
    assert learned_by(records, BOB) == {(DAN, root(2))} and learned_by(records, EVE) == frozenset()
