"""Leases: every row of the data is read once, by whoever holds it, on the chain that is final."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from unittest.mock import PropertyMock, patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from protocol.agreement.policy import reading_apart
from protocol.chain.base import Base
from protocol.chain.electorate import Roster, base_on
from protocol.chain.leases import (
    BEACON_ROUNDS,
    MAX_COLUMN,
    MAX_RETURNED,
    LeasePool,
    Leases,
    Ranges,
    holder_slots,
    lease_terms,
    rows_among,
    rows_except,
    spare_slot,
    union,
)
from protocol.chain.records import check_claims, verify_members
from protocol.run.manifest import RunManifest
from protocol.run.sections import Goal, Unit
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit, Extension, Member, mask_of
from tests.protocol.chains import FIVE, a_replica, a_run, grow, next_commit
from tests.protocol.council import BASE, IDENTITIES, INDEX, PEERS, RECORD, SETTINGS, STATE, members, peers, votes_for

ROWS, STEP = 12, 3
"""Rows of a slot, and of a step."""


def first(consumed: Mapping[int, int]) -> dict[int, Ranges]:
    """So many first rows of each slot."""
    return {slot: ((0, count),) for slot, count in consumed.items()}


def rows_in(ranges: Ranges) -> list[int]:
    return [row for start, end in ranges for row in range(start, end)]


def test_rows_not_consumed_come_back_before_new_ones() -> None:
    pool = LeasePool().after(first({0: 12, 1: 3, 3: 12}), ROWS)
    assert pool == LeasePool(48, ((15, 36),))
    assert [pool.lease(slot, ROWS) for slot in range(3)] == [((15, 27),), ((27, 36), (48, 51)), ((51, 63),)]


def test_a_limit_cuts_the_last_lease_and_ends_the_run_when_all_rows_are_consumed() -> None:
    pool, limit = LeasePool(48, ((15, 18),)), 57
    assert [pool.lease(slot, ROWS, limit) for slot in range(3)] == [((15, 18), (48, 57)), (), ()]
    assert not pool.is_exhausted(limit)
    assert pool.after(first({0: 12}), ROWS, limit).is_exhausted(limit)
    assert not pool.after(first({0: 9}), ROWS, limit).is_exhausted(limit)


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


bounds = st.lists(st.integers(0, ROWS // STEP * 3), unique=True, max_size=8).map(sorted)


@given(st.lists(bounds.map(lambda drawn: tuple(zip(drawn[::2], drawn[1::2], strict=False))), min_size=2, max_size=2))
def test_ranges_are_chosen_left_out_and_joined_like_sets(drawn: Sequence[Ranges]) -> None:
    one, other = drawn
    rows = rows_in(one)
    chosen = [rows[place] for place in rows_in(other) if place < len(rows)]
    assert rows_in(rows_among(one, other)) == chosen
    assert rows_in(rows_except(one, other)) == [row for row in rows if row not in chosen]
    assert rows_in(union([*one, *other])) == sorted({*rows, *rows_in(other)})


# -- slots ---------------------------------------------------------------------------------------------------------------


def a_hash(seed: int) -> Hash:
    return Hash(seed.to_bytes(32, "big"))


HOLDERS = [PeerId(f"peer {number}") for number in range(6)]


@given(peers=st.sets(st.sampled_from(HOLDERS)), seed=st.integers(0, 1000))
def test_holders_have_the_first_slots_each_its_own(peers: set[PeerId], seed: int) -> None:
    slots = holder_slots(a_hash(seed), sorted(peers))
    assert sorted(slots) == sorted(peers) and sorted(slots.values()) == list(range(len(peers)))
    assert slots == holder_slots(a_hash(seed), sorted(peers, reverse=True))


def test_the_beacon_changes_every_so_many_rounds() -> None:
    leases, beacons = Leases(), list[Hash]()
    for round in range(3 * BEACON_ROUNDS):
        leases = leases.on(round, a_hash(round + 1))
        beacons.append(leases.beacon)
    assert beacons == [a_hash(round - round % BEACON_ROUNDS + 1) for round in range(3 * BEACON_ROUNDS)]


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


# -- what records say of them ---------------------------------------------------------------------------------------------

MANIFEST = SETTINGS.manifest
TERMS = lease_terms(MANIFEST)
STRANGERS = [peer for peer in peers(len(IDENTITIES)) if peer not in BASE.electors]
ONE, OTHER = next(pair for pair in combinations(STRANGERS, 2) if BASE.shares_slots(MANIFEST, pair))
"""Newcomers that drew the same slot."""


def learns_from_rollouts(answer: bool) -> AbstractContextManager[object]:
    """Within, the rounds learn from rollouts, or from text."""
    return patch.object(RunManifest, "learns_from_rollouts", lambda self, round: answer)


def limited(rows: int) -> AbstractContextManager[object]:
    """Within, the data of every run ends after so many rows."""
    return patch.object(RunManifest, "data_rows", PropertyMock(return_value=rows))


# -- members -------------------------------------------------------------------------------------------------------------


def test_a_record_names_one_of_two_newcomers_that_drew_the_same_rows() -> None:
    assert BASE.lease(MANIFEST, ONE) == BASE.lease(MANIFEST, OTHER)
    for newcomer in (ONE, OTHER):
        verify_members(SETTINGS, members(*sorted([*PEERS[:2], newcomer])), BASE, STATE)
    with pytest.raises(Malformed, match="read the same rows"):
        verify_members(SETTINGS, members(*sorted([*PEERS[:2], ONE, OTHER])), BASE, STATE)


def test_a_plan_takes_the_first_of_those_that_drew_the_same_rows() -> None:
    free = next(peer for peer in STRANGERS if not BASE.shares_slots(MANIFEST, (peer, ONE)))
    assert reading_apart(SETTINGS, BASE, [PEERS[0], OTHER, free, ONE]) == [PEERS[0], OTHER, free]
    assert reading_apart(SETTINGS, BASE, [PEERS[0], ONE, OTHER]) == [PEERS[0], ONE]
    assert reading_apart(replace(SETTINGS, min_members=3), BASE, [PEERS[0], ONE, OTHER]) == [PEERS[0], ONE, OTHER]


def stated(peer: PeerId, bounds: Sequence[int]) -> Member:
    """A member with these stretches; its READY is not signed for them."""
    steps = sum(end - start for start, end in zip(bounds[::2], bounds[1::2], strict=False))
    raw = b"".join(bound.to_bytes(4, "big") for bound in bounds)
    return members(peer, steps=max(1, steps))[0].model_copy(update={"stretches": raw})


@pytest.mark.parametrize(
    ("bounds", "flaw"),
    [
        ([3, 5, 5, 9], "not ascending"),
        ([5, 3], "not ascending"),
        ([2, 3, 7], "a part of one"),
        ([0, 4], "the first steps"),
        ([MAX_COLUMN * 20, MAX_COLUMN * 20 + 2], "beyond the end of the column"),
        ([(1 << 32) - 9, (1 << 32) - 1], "beyond the end of the column"),
        ([3, 24], "as long as its steps"),
    ],
)
def test_stretches_are_ascending_in_the_column_and_no_longer_than_a_round(bounds: list[int], flaw: str) -> None:
    check_claims(MANIFEST, BASE, PEERS[0], stated(PEERS[0], [3, 5, 7, 9, 400, 416]))
    with pytest.raises(Malformed, match=flaw):
        check_claims(MANIFEST, BASE, PEERS[0], stated(PEERS[0], bounds))
    with learns_from_rollouts(True), pytest.raises(Malformed):
        check_claims(MANIFEST, BASE, PEERS[0], stated(PEERS[0], [3, 5]))


def test_stretches_beyond_the_end_of_the_data_are_refused() -> None:
    with limited(70 * TERMS.rows):
        check_claims(MANIFEST, BASE, PEERS[0], stated(PEERS[0], [21, 24]))
        with pytest.raises(Malformed, match="rows that do not exist"):
            check_claims(MANIFEST, BASE, PEERS[0], stated(PEERS[0], [1999, 2001]))


def test_a_ready_is_signed_for_its_stretches() -> None:
    (member,) = members(PEERS[0], steps=4)
    settings = replace(SETTINGS, min_members=1)
    verify_members(settings, [member], BASE, STATE)
    with pytest.raises(Malformed, match="did not send READY"):
        verify_members(settings, [member.model_copy(update={"stretches": bytes([0, 0, 0, 1, 0, 0, 0, 5])})], BASE, STATE)


def test_columns_have_no_row_in_common_and_none_with_a_spare_slot() -> None:
    pool = LeasePool(70 * TERMS.rows, ((0, 7 * TERMS.step_rows), (TERMS.rows, 60 * TERMS.rows)))
    apart = [*PEERS[:4], ONE, *(peer for peer in STRANGERS if not BASE.shares_slots(MANIFEST, (peer, ONE)))][:6]
    assert not BASE.shares_slots(MANIFEST, apart)
    base = replace(BASE, leases=Leases(pool))
    places = [range(64) if peer in base.electors else range(1) for peer in apart]
    leases = [base.lease_of_column(MANIFEST, peer, place) for peer, of in zip(apart, places, strict=True) for place in of]
    rows = [row for lease in leases for start, end in lease for row in range(start, end)]
    assert len(set(rows)) == len(rows) == sum(map(len, places)) * TERMS.rows
    assert base.lease_of_column(MANIFEST, ONE, 1) == ()


def test_a_row_of_preferences_may_count_the_tokens_of_two_rows_of_text() -> None:
    pairs = MANIFEST.model_copy(update={"data": MANIFEST.data.model_copy(update={"format": "preference"})})
    most = 2 * TERMS.rows * MANIFEST.data.sequence_length
    steps = MANIFEST.round_steps
    check_claims(pairs, BASE, PEERS[0], members(PEERS[0], tokens=most, steps=steps)[0])
    for manifest, tokens, done in ((pairs, most + 1, steps), (MANIFEST, most, steps), (pairs, most, steps - 1)):
        with pytest.raises(Malformed, match="more tokens"):
            check_claims(manifest, BASE, PEERS[0], members(PEERS[0], tokens=tokens, steps=done)[0])


def test_at_the_end_of_the_data_a_lease_is_shorter_or_empty() -> None:
    by_slot = sorted(BASE.electors, key=lambda peer: BASE.slot(MANIFEST, peer))
    with limited(TERMS.rows + 3 * TERMS.step_rows + 1):
        assert [BASE.count_leased(MANIFEST, peer) // TERMS.step_rows for peer in by_slot] == [20, 3, 0, 0]
        assert BASE.lease(MANIFEST, by_slot[2]) == ()
        assert {BASE.slot(MANIFEST, peer) for peer in STRANGERS} == {4}, "no newcomer is sent far behind the last rows"
        pair = sorted(by_slot[1:3])
        verify_members(SETTINGS, members(*pair, steps=1, tokens=1), BASE, STATE)
        for claim, flaw in (({"steps": 4, "tokens": 1}, "steps"), ({"steps": 1, "tokens": 2}, "tokens")):
            with pytest.raises(Malformed, match=flaw):
                verify_members(SETTINGS, members(*pair, **claim), BASE, STATE)


def test_on_the_members_own_data_all_read_the_rows_of_the_round_and_nothing_is_leased() -> None:
    local = MANIFEST.model_copy(update={"data": MANIFEST.data.model_copy(update={"source": "local"})})
    settings = replace(SETTINGS, manifest=local)
    base = replace(BASE, leases=Leases(LeasePool(70 * TERMS.rows)))
    row = BASE.round * TERMS.rows
    assert {base.lease(local, peer) for peer in (*PEERS, ONE, OTHER)} == {((row, row + TERMS.rows),)}
    assert not base.shares_slots(local, (ONE, OTHER)) and base.next_lease(local, ONE) == ()
    named = members(*sorted([*PEERS[:2], ONE, OTHER]))
    verify_members(settings, named, base, STATE)
    assert base.leases_after(local, named, [PeerId(member.peer) for member in named]) == base.leases
    assert len(reading_apart(settings, base, [PEERS[0], ONE, OTHER])) == 3
    with pytest.raises(Malformed, match="more steps"):
        verify_members(settings, members(*PEERS[:2], steps=local.rounds.inner_steps + 1), base, STATE)


# -- records -------------------------------------------------------------------------------------------------------------


def a_commit(named: Sequence[Member], *, silent: Sequence[str] = ()) -> Commit:
    """The record of these members on the council's tip; the parts of the silent ones are in no chunk."""
    mask = mask_of([at for at, member in enumerate(named) if member.peer not in silent], len(named))
    index = [entry.model_copy(update={"mask": mask}) for entry in INDEX]
    record = RECORD.model_copy(update={"members": [*named]})
    return Commit(record=record, index=index, certificate=votes_for(RECORD, PEERS[:4], 0))


def a_roster(leases: Leases | None = None) -> Roster:
    """The roster of the council's base."""
    start = Roster.start(SETTINGS)
    return replace(
        start,
        electorate=replace(start.electorate, height=5, electors=BASE.electors),
        contributors=BASE.contributors,
        leases=leases or Leases(),
    )


def base_of_roster(roster: Roster) -> Base:
    return base_on(SETTINGS, BASE.round, BASE.tip, roster)


def test_a_record_consumes_the_rows_of_the_steps_of_its_contributors_and_the_others_return() -> None:
    by_slot = sorted(PEERS[:4], key=lambda peer: base_of_roster(a_roster()).slot(MANIFEST, peer))
    steps = dict(zip(by_slot, (20, 7, 20, 20), strict=True))
    named = [members(peer, steps=steps[peer])[0] for peer in sorted(by_slot)]
    pool = a_roster().after(a_commit(named, silent=by_slot[2:3])).leases.pool
    rows, step = TERMS.rows, TERMS.step_rows
    assert pool == LeasePool(4 * rows, ((rows + 7 * step, 3 * rows),))


def test_rows_between_stretches_return_to_the_pool_and_are_leased_first() -> None:
    roster = a_roster()
    base = base_of_roster(roster)
    by_slot = sorted(PEERS[:4], key=lambda peer: base.slot(MANIFEST, peer))
    rows, step = TERMS.rows, TERMS.step_rows
    named = {peer: members(peer, steps=20)[0] for peer in by_slot}
    named[by_slot[1]] = stated(by_slot[1], [2, 5, 8, 20])
    pool = roster.after(a_commit([named[peer] for peer in sorted(named)])).leases.pool
    assert pool == LeasePool(4 * rows, ((rows, rows + 2 * step), (rows + 5 * step, rows + 8 * step)))
    width = 1 + len(PEERS[:4]) + 1
    named[by_slot[1]] = stated(by_slot[1], [20, 40])
    pool = roster.after(a_commit([named[peer] for peer in sorted(named)])).leases.pool
    assert pool == LeasePool((width + 1) * rows, ((rows, 2 * rows), (4 * rows, width * rows)))


def test_the_next_lease_is_foreseen_if_all_holders_do_all_their_steps() -> None:
    base = base_of_roster(a_roster(Leases(LeasePool(90 * TERMS.rows, ((5, 9 * TERMS.rows),)))))
    after = a_roster(base.leases).after(a_commit(members(*PEERS[:4], steps=MANIFEST.rounds.inner_steps)))
    following = base_on(SETTINGS, 6, BASE.tip, after)
    for peer in PEERS[:4]:
        assert base.next_lease(MANIFEST, peer) == following.lease(MANIFEST, peer) != base.lease(MANIFEST, peer)


def test_a_record_that_learned_from_rollouts_consumes_nothing() -> None:
    leases = Leases(LeasePool(90, ((3, 9),)), BASE.tip)
    with learns_from_rollouts(True):
        assert base_of_roster(a_roster(leases)).lease(MANIFEST, PEERS[0]) == ()
        assert not BASE.shares_slots(MANIFEST, [ONE, OTHER])
        assert a_roster(leases).after(a_commit(members(*PEERS[:3]))).leases == leases


def test_the_run_is_over_with_its_last_row_and_no_extension_continues_it() -> None:
    steps = MANIFEST.rounds.inner_steps
    named = members(*PEERS[:4], steps=steps)
    with limited(4 * TERMS.rows + TERMS.step_rows - 1):
        progress = a_roster().after(a_commit(named)).progress
        short = a_roster().after(a_commit(members(*PEERS[:4], steps=steps - 1))).progress
    assert progress.is_over and not short.is_over
    for extension in (None, Extension(total=10**7)):
        with pytest.raises(Malformed, match="after the end of the run"):
            replace(progress, goal=Goal(Unit.ROUNDS, 10**6, 0.2)).check(extension)


def test_leases_follow_the_chain_back_to_where_a_branch_begins(tmp_path: Path) -> None:
    """A chain that is given up takes its leases with it: its rows are leased again on the other one."""
    ours, theirs = (a_replica(a_run(*FIVE[:2]), tmp_path / name) for name in ("ours", "theirs"))
    for replica in (ours, theirs):
        grow(replica, 2, FIVE[:2])
    at_fork = ours.base.leases
    grow(ours, 3, FIVE[:2], salt=1)
    for _ in range(2):
        commit, result = next_commit(theirs, FIVE[:1], voters=FIVE[:2], salt=2)
        theirs.history.append(commit)
        ours.store.branches.append("theirs", commit)
    assert ours.base.leases.pool.cursor > theirs.base.leases.pool.cursor
    ours.history.switch(2, "theirs", 4)
    assert ours.base.leases == theirs.base.leases != at_fork
    ours.history.switch(2, "", 2)
    assert ours.base.leases == at_fork
