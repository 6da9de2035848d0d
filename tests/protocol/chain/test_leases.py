"""Leases of rows: what the records of a chain consume is read once, and what they do not comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from protocol.chain.leases import (
    BEACON_ROUNDS,
    MAX_RETURNED,
    LeasePool,
    Leases,
    Ranges,
    Stretches,
    by_slot_of_column,
    count_rows,
    holder_slots,
    rows_among,
    rows_except,
    spare_slot,
    union,
)
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

ROWS, STEP = 12, 3
"""Rows of a slot, and of a step."""


def first(consumed: Mapping[int, int]) -> dict[int, Ranges]:
    """So many first rows of each slot."""
    return {slot: ((0, count),) for slot, count in consumed.items()}


def rows_in(ranges: Ranges) -> list[int]:
    return [row for start, end in ranges for row in range(start, end)]


def taken(pool: LeasePool, consumed: Mapping[int, int], limit: int | None = None) -> list[int]:
    """Return the rows that a record consumes, from the leases of its members."""
    return [row for slot, count in consumed.items() for row in rows_in(pool.lease(slot, ROWS, limit))[:count]]


def test_first_leases_are_the_first_rows_slot_by_slot() -> None:
    assert [LeasePool().lease(slot, ROWS) for slot in range(3)] == [((0, 12),), ((12, 24),), ((24, 36),)]


def test_rows_not_consumed_come_back_before_new_ones() -> None:
    pool = LeasePool().after(first({0: 12, 1: 3, 3: 12}), ROWS)
    assert pool == LeasePool(48, ((15, 36),))
    assert [pool.lease(slot, ROWS) for slot in range(3)] == [((15, 27),), ((27, 36), (48, 51)), ((51, 63),)]


def test_slots_behind_the_last_one_consumed_were_never_leased() -> None:
    assert LeasePool().after(first({0: 12, 1: 6}), ROWS) == LeasePool(18)


def test_a_record_that_consumes_nothing_changes_nothing() -> None:
    pool = LeasePool(48, ((15, 36),))
    assert pool.after(first({}), ROWS) == pool.after(first({0: 0, 5: 0}), ROWS) == pool


def test_a_limit_cuts_the_last_lease_and_ends_the_run_when_all_rows_are_consumed() -> None:
    pool, limit = LeasePool(48, ((15, 18),)), 57
    assert [pool.lease(slot, ROWS, limit) for slot in range(3)] == [((15, 18), (48, 57)), (), ()]
    assert not pool.is_exhausted(limit)
    assert pool.after(first({0: 12}), ROWS, limit).is_exhausted(limit)
    assert not pool.after(first({0: 9}), ROWS, limit).is_exhausted(limit)


def test_a_peer_with_an_empty_lease_consumes_nothing() -> None:
    pool = LeasePool(9)
    assert pool.after(first({1: STEP}), ROWS, 12) == pool


def test_more_returned_ranges_than_the_bound_lose_the_shortest_ones() -> None:
    pool = LeasePool(10 * MAX_RETURNED, tuple((10 * at, 10 * at + 9) for at in range(MAX_RETURNED)))
    after = pool.after(first({MAX_RETURNED: 1}), 9)  # leases a range of its own, behind all others
    assert len(after.returned) == MAX_RETURNED and after.skipped == 0
    split = LeasePool(pool.cursor, pool.returned).after(first({1: 3}), 27)
    assert split.returned[0] == (0, 9) and len(split.returned) == MAX_RETURNED and split.skipped == 0
    hole = LeasePool(pool.cursor, ((0, 8), *pool.returned[1:])).after(first({0: 1, 2: 1}), 4)
    assert (len(hole.returned), hole.skipped) == (MAX_RETURNED, 0)
    over = LeasePool(pool.cursor, ((0, 8), *pool.returned[1:])).after(first({1: 1}), 3)
    assert (over.returned[0], len(over.returned), over.skipped) == ((4, 8), MAX_RETURNED, 3)


@pytest.mark.parametrize("returned", [((3, 3),), ((5, 9), (9, 11)), ((5, 9), (2, 4)), ((15, 20),), ((-1, 4),)])
def test_a_pool_is_sorted_disjoint_and_below_its_cursor(returned: Ranges) -> None:
    with pytest.raises(AssertionError):
        LeasePool(20, returned)


steps = st.integers(0, ROWS // STEP)
records = st.dictionaries(st.integers(0, 6), steps.map(lambda count: count * STEP), max_size=4)


@given(records=st.lists(records, max_size=12), limit=st.none() | st.integers(0, 60).map(lambda steps: steps * STEP))
def test_every_row_is_consumed_once_or_still_in_the_pool(records: Sequence[Mapping[int, int]], limit: int | None) -> None:
    pool, consumed = LeasePool(), list[int]()
    for record in records:
        consumed += taken(pool, record, limit)
        pool = pool.after(first(record), ROWS, limit)
        assert sorted([*consumed, *rows_in(pool.returned)]) == list(range(pool.cursor))
        assert limit is None or pool.cursor <= limit


bounds = st.lists(st.integers(0, ROWS // STEP * 3), unique=True, max_size=8).map(sorted)
columns = st.dictionaries(
    st.integers(0, 3), bounds.map(lambda drawn: tuple(zip(drawn[::2], drawn[1::2], strict=False))), max_size=4
)


@given(records=st.lists(columns, max_size=8), limit=st.none() | st.integers(0, 90).map(lambda steps: steps * STEP))
def test_stretches_of_columns_are_consumed_once_and_the_rest_stays_in_the_pool(
    records: Sequence[Mapping[int, Stretches]], limit: int | None
) -> None:
    """Four columns of a round, each read in stretches that go over its slots."""
    pool, consumed = LeasePool(), list[int]()
    for record in records:
        read = dict[int, Ranges]()
        for first_slot, stretches in record.items():
            for place, rows in by_slot_of_column(stretches, ROWS // STEP, STEP).items():
                slot = first_slot + 4 * place
                read[slot] = rows
                consumed += rows_in(rows_among(pool.lease(slot, ROWS, limit), rows))
        pool = pool.after(read, ROWS, limit)
        assert sorted([*consumed, *rows_in(pool.returned)]) == list(range(pool.cursor))


@given(st.lists(bounds.map(lambda drawn: tuple(zip(drawn[::2], drawn[1::2], strict=False))), min_size=2, max_size=2))
def test_ranges_are_chosen_left_out_and_joined_like_sets(drawn: Sequence[Ranges]) -> None:
    one, other = drawn
    rows = rows_in(one)
    chosen = [rows[place] for place in rows_in(other) if place < len(rows)]
    assert rows_in(rows_among(one, other)) == chosen
    assert rows_in(rows_except(one, other)) == [row for row in rows if row not in chosen]
    assert rows_in(union([*one, *other])) == sorted({*rows, *rows_in(other)})


@given(records=st.lists(records, max_size=6))
def test_leases_of_a_round_are_the_pool_in_order(records: Sequence[Mapping[int, int]]) -> None:
    pool = LeasePool()
    for record in records:
        pool = pool.after(first(record), ROWS)
    leases = [row for slot in range(8) for row in rows_in(pool.lease(slot, ROWS))]
    back = rows_in(pool.returned)
    assert leases == [*back, *range(pool.cursor, pool.cursor + 8 * ROWS)][: 8 * ROWS]
    assert all(count_rows(pool.lease(slot, ROWS)) == ROWS for slot in range(8))


# -- slots ---------------------------------------------------------------------------------------------------------------


def a_hash(seed: int) -> Hash:
    return Hash(seed.to_bytes(32, "big"))


PEERS = [PeerId(f"peer {number}") for number in range(6)]


@given(peers=st.sets(st.sampled_from(PEERS)), seed=st.integers(0, 1000))
def test_holders_have_the_first_slots_each_its_own(peers: set[PeerId], seed: int) -> None:
    slots = holder_slots(a_hash(seed), sorted(peers))
    assert sorted(slots) == sorted(peers) and sorted(slots.values()) == list(range(len(peers)))
    assert slots == holder_slots(a_hash(seed), sorted(peers, reverse=True))


def test_the_beacon_draws_the_order() -> None:
    assert len({tuple(holder_slots(a_hash(seed), PEERS)) for seed in range(20)}) > 10


def test_the_beacon_changes_every_so_many_rounds() -> None:
    leases, beacons = Leases(), list[Hash]()
    for round in range(3 * BEACON_ROUNDS):
        leases = leases.on(round, a_hash(round + 1))
        beacons.append(leases.beacon)
    assert beacons == [a_hash(round - round % BEACON_ROUNDS + 1) for round in range(3 * BEACON_ROUNDS)]


def test_other_peers_draw_a_spare_slot_behind_the_holders_anew_on_each_tip() -> None:
    drawn = [spare_slot(a_hash(seed), PEERS[0], 5, 64) for seed in range(50)]
    assert {slot % 6 for slot in drawn} == {5} and max(drawn) < 6 * 64 and len(set(drawn)) > 20


# -- a swarm that only leases ---------------------------------------------------------------------------------------------


class Swarm(RuleBasedStateMachine):
    """Peers that join, leave, die and stop early, and chains that are rolled back: the final chain reads each row once."""

    @initialize(founders=st.integers(1, 4), limit=st.none() | st.integers(0, 90).map(lambda steps: steps * STEP))
    def begin(self, founders: int, limit: int | None) -> None:
        self.limit, self.joined = limit, founders
        self.live = [PeerId(f"peer {number}") for number in range(founders)]
        self.chain = [(Leases(), tuple(self.live), list[int]())]
        """After each record: the state, the record's contributors, and the rows that they read."""

    @rule()
    def join(self) -> None:
        self.live.append(PeerId(f"peer {self.joined}"))
        self.joined += 1

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if len(self.live) > 1:
            self.live.remove(data.draw(st.sampled_from(self.live)))

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """A record of the peers that lived to its end: each stopped after some steps, or has died and returns later."""
        leases, holders, _ = self.chain[-1]
        number = len(self.chain) - 1
        tip = a_hash(1000 * number + data.draw(st.integers(0, 3)))
        leases, slots = leases.on(number, tip), dict[int, PeerId]()
        places = holder_slots(leases.beacon, holders)
        for peer in self.live:
            if data.draw(st.booleans(), f"{peer} is ready"):
                slots.setdefault(places.get(peer, spare_slot(tip, peer, len(places), 4)), peer)
        read, consumed = list[int](), dict[int, int]()
        for slot in slots:
            lease = rows_in(leases.pool.lease(slot, ROWS, self.limit))
            consumed[slot] = data.draw(st.integers(0, len(lease) // STEP)) * STEP
            read += lease[: consumed[slot]]
        pool = leases.pool.after(first(consumed), ROWS, self.limit)
        self.chain.append((Leases(pool, leases.beacon), tuple(slots.values()), read))

    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        self.chain = self.chain[: data.draw(st.integers(1, len(self.chain)))]

    @invariant()
    def each_row_below_the_cursor_is_read_once_or_returned(self) -> None:
        if hasattr(self, "chain"):
            pool, read = self.chain[-1][0].pool, [row for *_, rows in self.chain for row in rows]
            assert sorted([*read, *rows_in(pool.returned)]) == list(range(pool.cursor)) and not pool.skipped


TestSwarm = Swarm.TestCase
