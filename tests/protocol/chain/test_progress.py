"""What records count: rounds, tokens, rollouts, and how far a run has come."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.chain.base import Base
from protocol.chain.credit import Credit, counted, learned_by, named_in, reward_of
from protocol.chain.electorate import Electorate
from protocol.chain.progress import PACED_ROUNDS, RunPace, RunProgress, counted_tokens, data_total
from protocol.run.sections import BUILTIN, DataSection, Goal, SourceSection, Unit
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Commit, Extension, Record, Step, UsedBatch, learned_from, mask_of, pack
from tests.protocol.chains import credits_in
from tests.protocol.council import INDEX, PEERS, RECORD, RUN, SETTINGS, TIP, votes_for

ROUNDS = RunProgress(Goal(Unit.ROUNDS, 10, 0.2))
TOKENS = RunProgress(Goal(Unit.TOKENS, 1000, 0.2))
SECRETS = [Identity.from_seed(bytes([number]) * 32) for number in range(60, 62)]


def a_commit(*tokens: int, missing: int | None = None) -> Commit:
    """A record whose members claim so many tokens.  missing: a member that half of the chunks lack."""
    members = [RECORD.members[0].model_copy(update={"tokens": each}) for each in tokens]
    record = RECORD.model_copy(update={"members": members})
    whole = range(len(tokens))
    masks = [mask_of(whole, len(tokens)), mask_of([each for each in whole if each != missing], len(tokens))]
    index = [INDEX[0].model_copy(update={"mask": mask}) for mask in masks]
    return Commit(record=record, index=index, certificate=votes_for(RECORD, PEERS[:4], 0))


def after(progress: RunProgress, *commits: Commit) -> RunProgress:
    for commit in commits:
        progress = progress.after(counted_tokens(commit), None)
    return progress


def test_tokens_are_those_of_the_members_by_the_share_that_was_averaged() -> None:
    assert counted_tokens(a_commit(100, 100, 100)) == 300
    assert counted_tokens(a_commit(100, 100, 100, missing=1)) == 250


@pytest.mark.parametrize(
    ("claims", "counted"),
    [
        ((100, 100, 100, 400), 450),
        ((100, 400), 250),
        ((400,), 400),
        ((50, 100, 100, 140), 390),
        ((100, 100, 10**9, 10**9), 500),
        ((7, 7, 7, 7, 7), 35),
        ((1, 2, 3, 4, 5), 14),
    ],
)
def test_nobody_counts_for_much_more_than_the_median_member(claims: tuple[int, ...], counted: int) -> None:
    assert counted_tokens(a_commit(*claims)) == counted


@given(st.lists(st.integers(1, 10**6), min_size=3, max_size=20), st.integers(0, 10**9))
def test_a_member_that_inflates_its_claim_gains_at_most_half_of_a_member(honest: list[int], more: int) -> None:
    claims = [*honest, max(honest)]
    inflated = [*honest, max(honest) + more]
    gained = counted_tokens(a_commit(*inflated)) - counted_tokens(a_commit(*claims))
    assert gained <= max(honest) // 2 + 1


FOUNDERS = PEERS[:4]


def an_open_commit(electors: list[int], strangers: list[int], missing: int | None = None) -> Commit:
    """A record whose electors and strangers claim so many tokens; the members are in this order."""
    commit = a_commit(*electors, *strangers, missing=missing)
    peers = [*FOUNDERS[: len(electors)], *(f"stranger {number}" for number in range(len(strangers)))]
    members = [each.model_copy(update={"peer": peer}) for each, peer in zip(commit.record.members, peers, strict=True)]
    return commit.model_copy(update={"record": commit.record.model_copy(update={"members": members})})


@pytest.mark.parametrize(
    ("electors", "strangers", "counted"),
    [
        ([100, 100, 100, 100], [], 400),
        ([100, 100, 100, 100], [100], 500),
        ([100, 100, 100, 100], [100] * 20, 600),
        ([100, 100, 100, 100], [10**9] * 200, 600),
        ([100, 100, 100, 10**9], [10**9] * 200, 600),
        ([100, 100, 100, 100], [1] * 200, 600),
        ([100, 100, 100, 1], [1, 1], 303),
        ([90, 100, 110, 400], [400], 90 + 100 + 110 + 110 + 110),
        ([100, 100], [100], 300),
        ([10**9], [10**9] * 200, 0),
        ([], [10**9] * 200, 0),
    ],
)
def test_where_keys_are_free_the_electors_claims_bound_what_counts(
    electors: list[int], strangers: list[int], counted: int
) -> None:
    commit = an_open_commit(electors, strangers)
    assert counted_tokens(commit, FOUNDERS, 1) == counted


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("honest", "keys", "counted"),
    [(3, 4, 300 + 4 * 10**9), (4, 1, 500), (3, 1, 400), (2, 2, 200 + 2 * 10**9), (2, 1, 200 + 10**9)],
)
def test_while_members_vote_a_crowd_counts_as_it_claims_if_more_are_members_than_can_be_liars(
    honest: int, keys: int, counted: int, is_first: bool
) -> None:
    """In a run that anybody may begin; see the limits of the end of a run."""
    commit = an_open_commit([100] * honest, [10**9] * keys)
    members = tuple(sorted(PeerId(member.peer) for member in commit.record.members))
    electorate = Electorate(replace(SETTINGS, founders=None, is_open=True), 1, () if is_first else members, True, (), ())
    assert electorate.counted_tokens(commit) == counted


@given(
    st.lists(st.integers(1, 1000), min_size=3, max_size=3),
    st.integers(1, 2**53),
    st.lists(st.sampled_from([1, 500, 1000, 2**30, 2**53]), max_size=60),
)
def test_free_keys_and_a_lying_elector_add_a_bounded_number_of_tokens(honest: list[int], lie: int, crowd: list[int]) -> None:
    counted = counted_tokens(an_open_commit([*honest, lie], crowd), FOUNDERS, 1)
    alone = counted_tokens(an_open_commit(honest, []), FOUNDERS, 1)
    assert alone <= counted <= 1.5 * 4 * max(honest), "nothing that others claim takes tokens away, or adds many"


def test_the_rate_follows_the_share_and_the_next_round_counts_as_the_last_one_did() -> None:
    progress = after(ROUNDS, *[a_commit(1)] * 8)
    assert (progress.share, progress.next_share) == (0.8, 0.9)
    assert (TOKENS.share, TOKENS.next_share) == (0.0, 0.0), "nothing is known before the first record"
    progress = after(TOKENS, a_commit(100, 100, 100))
    assert (progress.share, progress.next_share) == (0.3, 0.6)
    assert after(progress, a_commit(300), a_commit(300)).next_share == 1.0


def test_an_extension_while_the_rate_is_stable_only_moves_the_end() -> None:
    progress = after(ROUNDS, *[a_commit(1)] * 5).extended(Extension(total=20))
    assert (progress.begun, progress.first, progress.share) == (0, 0, 0.25)


@pytest.mark.parametrize("done", [8, 9, 10])
def test_an_extension_in_the_cooldown_or_after_the_end_begins_a_new_stage(done: int) -> None:
    progress = after(ROUNDS, *[a_commit(1)] * done).extended(Extension(total=done + 10))
    assert (progress.begun, progress.first, progress.share, progress.is_over) == (done, done, 0.0, False)
    assert after(progress, *[a_commit(1)] * 8).share == 0.8


def ended() -> RunProgress:
    progress = after(ROUNDS, *[a_commit(1)] * 10)
    assert progress.is_over
    return progress


def test_no_record_follows_the_final_one_but_one_with_an_extension_that_goes_further() -> None:
    ended().check(Extension(total=11))
    after(ROUNDS, *[a_commit(1)] * 9).check(None)
    overtaken = replace(after(TOKENS, a_commit(5000)), goal=TOKENS.goal)
    refused: list[tuple[RunProgress, int | None, str]] = [
        (ended(), None, "after the end"),
        (overtaken, 4000, "5000 are done"),
    ]
    refused += [(progress, total, "the total is 10") for progress in (ROUNDS, ended()) for total in (1, 9, 10)]
    for progress, total, why in refused:
        with pytest.raises(Malformed, match=why):
            progress.check(Extension(total=total) if total is not None else None)


@pytest.mark.parametrize("forgery", ["a stranger's", "of another run", "replayed", "torn", "none"])
def test_a_base_takes_only_the_organisers_newest_word(forgery: str) -> None:
    organiser, stranger = SECRETS
    manifest = SETTINGS.manifest.model_copy(update={"organiser": organiser.peer_id})
    base = Base(5, 0, TIP, tuple(PEERS[:4]), progress=replace(ended(), goal=Goal(Unit.ROUNDS, 10, 0.2)))
    right = pack(organiser, RUN, Extension(total=12)).raw
    base.check_amendment(RUN, manifest, right)
    wrong = {
        "a stranger's": pack(stranger, RUN, Extension(total=12)).raw,
        "of another run": pack(organiser, TIP, Extension(total=12)).raw,
        "replayed": pack(organiser, RUN, Extension(total=10)).raw,
        "torn": right[:-1],
        "none": None,
    }[forgery]
    with pytest.raises(Malformed):
        base.check_amendment(RUN, manifest, wrong)
    later = replace(base, progress=base.progress.extended(Extension(total=12)))
    with pytest.raises(Malformed):
        later.check_amendment(RUN, manifest, right)


def test_data_end_a_run_if_they_are_read_before_its_total_at_the_speed_so_far() -> None:
    source = SourceSection(name="book", rows=100)
    section = DataSection(
        corpora=[BUILTIN], sources=[source], epochs=2, sequence_length=10, sequences_per_step=10
    )  # 2000 tokens in all, 100 in a step
    rounds = SETTINGS.manifest.rounds.model_copy(update={"inner_steps": 1})

    def total(progress: RunProgress, data: DataSection = section) -> int:
        fields = {"data": data, "rounds": rounds, "fragments": 1, "total_rounds": 10, "total_tokens": None}
        return data_total(SETTINGS.manifest.model_copy(update=fields), progress)

    assert total(ROUNDS) == 0 and total(ROUNDS, section.model_copy(update={"epochs": 0})) == 0
    assert total(replace(ROUNDS, rounds=2, tokens=500)) == 2000, "several members read more in a round"
    assert total(replace(ROUNDS, rounds=2, tokens=200)) == 0
    assert total(replace(ROUNDS, goal=Goal(Unit.ROUNDS, 21, 0.2))) == 2000, "an extension moves the total"
    assert total(TOKENS) == 0 and total(replace(TOKENS, goal=Goal(Unit.TOKENS, 2000, 0.2))) == 2000


def test_the_speed_is_that_of_the_last_two_records_made_here() -> None:
    pace = RunPace()
    pace.note(a_commit(100), 0.0)
    assert pace.tokens_per_s is None and pace.left_s(TOKENS) is None
    pace.note(a_commit(200), 4.0)
    assert pace.tokens_per_s == 50 and pace.left_s(after(TOKENS, a_commit(200))) == 16.0
    assert pace.left_s(after(ROUNDS, *[a_commit(1)] * 4)) == 24.0
    assert pace.left_s(after(ROUNDS, a_commit(200)), 500) == 6.0, "data that end the run count in tokens"
    pace.pause()
    pace.note(a_commit(200), 900.0)
    assert pace.tokens_per_s == 50


def test_the_pace_of_a_member_is_counted_over_the_last_rounds() -> None:
    one, other = (PeerId(RECORD.members[place].peer) for place in (0, 1))
    pace = RunPace()
    pace.note(a_commit(900), 0.0)
    assert pace.counted(one) is None, "the time of the first record is not known"
    for round in range(1, PACED_ROUNDS + 1):
        pace.note(a_commit(400), 4.0 * round)
    assert pace.counted(one) == 100.0 and pace.counted(other) is None
    without = RECORD.model_copy(update={"members": [RECORD.members[1].model_copy(update={"tokens": 80})]})
    for round in range(4):
        pace.note(a_commit(1).model_copy(update={"record": without}), 4.0 * (PACED_ROUNDS + 1 + round))
    assert pace.counted(one) == 50.0, "rounds that it missed count"
    assert pace.counted(other) == 10.0


# -- credit for rollouts --------------------------------------------------------------------------------------------------

ANN, BOB, CAT, DAN, EVE = PEERS
"""The first three are members of the record."""


def root(number: int) -> Hash:
    return hash_bytes("test", number.to_bytes(4, "big"))


def a_learning_record(round: int, *learned: tuple[list[tuple[PeerId, int, int]], float | None]) -> Record:
    """Its members learned from these batches (author, number, tokens), with these rewards."""
    members = []
    for member, (used, reward) in zip(RECORD.members, learned, strict=False):
        batches = [UsedBatch(author, root(number), tokens) for author, number, tokens in used]
        members.append(member.model_copy(update={"rollouts": learned_from(batches, reward)}))
    return RECORD.model_copy(update={"round": round, "members": [*members, *RECORD.members[len(members) :]]})


def a_commit_of(record: Record) -> Commit:
    return Commit(record=record, index=INDEX, certificate=votes_for(RECORD, PEERS[:3], 0, step=Step.SECOND))


def test_makers_of_rollouts_are_credited_with_the_tokens_that_were_learned_from() -> None:
    first = a_learning_record(0, ([(DAN, 1, 100), (EVE, 2, 30)], 0.5), ([(DAN, 3, 7)], 0.2))
    second = a_learning_record(1, ([(DAN, 4, 1000)], 0.5))
    found = credits_in([a_commit_of(first), a_commit_of(second)])
    assert found[DAN] == Credit(0, 0, 3, 1107) and found[EVE] == Credit(0, 0, 1, 30)
    assert found[ANN].rounds == 2 and found[ANN].accepted_tokens == 0


def test_a_batch_counts_once_whoever_learned_from_it_and_whenever() -> None:
    both = a_learning_record(0, ([(DAN, 1, 100)], 0.5), ([(DAN, 1, 100)], 0.5))
    again = a_learning_record(1, ([(DAN, 1, 100)], 0.5))
    assert credits_in([a_commit_of(both), a_commit_of(again)])[DAN] == Credit(0, 0, 1, 100)
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
    before, later = a_learning_record(0, ([(DAN, 1, 7)], 0.5)), a_learning_record(1, ([(DAN, 1, 100)], 0.5))
    beside = a_learning_record(0, ([(DAN, 1, 0)], 0.5), ([(DAN, 1, 100)], 0.5), ([(DAN, 1, 7)], 0.5))
    for records in ([before, later], [later, before], [beside], [beside, later]):
        assert credits_in(map(a_commit_of, records))[DAN] == Credit(0, 0, 1, 100)
        told = [counted(record, DAN, named_in(records[:at]), 8)[0].to_fields() for at, record in enumerate(records)]
        assert sum(each["batches"] for each in told) == sum(len(each["mine"]) for each in told) == 1
        assert sum(each["tokens"] for each in told) == sum(each["authors"].get(DAN, 0) for each in told) == 100


def test_the_reward_of_a_record_is_the_mean_over_its_batches() -> None:
    assert reward_of(a_learning_record(0, ([(DAN, 1, 1), (DAN, 2, 1), (DAN, 3, 1)], 0.25), ([(EVE, 4, 1)], 0.5))) == 0.3125
    assert reward_of(a_learning_record(0, ([(DAN, 1, 1)], None))) is None and reward_of(RECORD) is None
    assert counted(RECORD, ANN, {}, 8) == [], "nothing is told of a round without rollouts"


def test_what_a_member_learned_from_is_in_its_records() -> None:
    records = [
        a_learning_record(0, ([(DAN, 1, 100)], 0.5), ([(DAN, 2, 7)], 0.2)),
        a_learning_record(1, ([(EVE, 3, 9)], 0.5)),
    ]
    assert learned_by(records, ANN) == {(DAN, root(1)), (EVE, root(3))}
    assert learned_by(records, BOB) == {(DAN, root(2))} and learned_by(records, EVE) == frozenset()
