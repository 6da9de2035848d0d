"""When a round is closed, with which members and without whom: tables of how peers look and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from protocol.agreement.ballot import flaw_of_plan
from protocol.agreement.events import PeerView, Send, View
from protocol.agreement.policy import ANSWER_S, FINISH_S, LONGEST_FAIR_S, ClosingPolicy
from protocol.allreduce.lateness import FIRST_ROUNDS, HURRIED, LATE, LatenessMemory, Observed, deputised, share_of
from protocol.chain.finality import RecentWork
from protocol.chain.progress import TasksInForce
from protocol.run.admission import TokenUses, bearer_token, make_proof
from protocol.run.manifest import Admission, RunManifest
from protocol.run.sections import RlSection
from protocol.wire.hashes import ZERO_HASH, Hash, hash_bytes
from protocol.wire.identity import PeerId
from protocol.wire.messages import Finish, UsedBatch, learned_from
from protocol.wire.rollouts import AdmittedSet
from tests.protocol.council import (
    ARRIVING,
    AT_WORK,
    BASE,
    ELSEWHERE,
    GONE,
    IDENTITIES,
    LONG_SILENT,
    PEERS,
    QUIET,
    RUN,
    SETTINGS,
    STATE,
    TIP,
    a_ready,
    signature_of,
)
from tests.protocol.tables import cases

ME = PEERS[0]
GRACE_S, EVICTION_S = SETTINGS.grace_s, SETTINGS.eviction_s
OTHER_STATE = Hash(b"\x04" * 32)


def a_closing(ready: Sequence[int] = (), *, lateness: LatenessMemory | None = None, **changes: Any) -> ClosingPolicy:
    """The policy of the first peer, with the READY of these peers."""
    closing = ClosingPolicy(ME, SETTINGS, BASE, lateness or LatenessMemory())
    for number in ready:
        assert says_ready(closing, number, **changes)
    return closing


def says_ready(closing: ClosingPolicy, number: int, **changes: Any) -> bool:
    """Whether the policy takes this READY of this peer."""
    ready = a_ready(**changes)
    return closing.add(PEERS[number], ready, signature_of(PEERS[number], ready))


def a_view(*looks: PeerView) -> View:
    """How the peers look, in order; the rest is not known."""
    return dict(zip(PEERS, looks, strict=False))


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({}, True),
        ({"round": 4}, False),
        ({"base": ZERO_HASH}, False),
        ({"fragment": 1}, False),
        ({"tokens": SETTINGS.manifest.tokens_per_round, "steps": SETTINGS.manifest.round_steps}, True),
        ({"tokens": SETTINGS.manifest.tokens_per_round + 1, "steps": SETTINGS.manifest.round_steps}, False),
        ({"tokens": SETTINGS.manifest.tokens_per_round, "steps": SETTINGS.manifest.round_steps - 1}, False),
        ({"rollouts": learned_from([UsedBatch(PEERS[4], ZERO_HASH, 1)], None)}, False),
    ],
)
def test_a_ready_is_for_this_round_and_within_its_tokens(changes: dict[str, Any], taken: bool) -> None:
    closing = a_closing()
    assert says_ready(closing, 1, **changes) is taken
    assert (PEERS[1] in closing.readys) is taken


def closing_with_rollouts() -> ClosingPolicy:
    """Of a run in which at most two batches of two rollouts are learned from, and one task set is admitted."""
    rl = RlSection(environment="x", prompts_per_batch=1, group_size=2, batches_per_round=2, max_tokens=8, row_tokens=16)
    settings = replace(SETTINGS, manifest=SETTINGS.manifest.model_copy(update={"rl": rl}))
    tasks = TasksInForce(1, 50, (AdmittedSet(name="s", count=1, size=9, root=bytes(32), slot=1, publisher=PEERS[4]),))
    return ClosingPolicy(ME, settings, replace(BASE, tasks=tasks), LatenessMemory())


@pytest.mark.parametrize(
    ("batches", "taken"), [(0, False), (1, True), (2, True), (3, False)], ids=["none", "one", "the most", "too many"]
)
def test_in_a_run_with_rollouts_a_ready_names_as_many_batches_as_a_plan_may_have(batches: int, taken: bool) -> None:
    closing = closing_with_rollouts()
    used = [UsedBatch(PEERS[4], hash_bytes("b", bytes([number])), 8) for number in range(batches)]
    assert says_ready(closing, 1, rollouts=learned_from(used, 0.5) if used else None, tokens=8) is taken
    if used:
        more = learned_from([used[0]._replace(tokens=17)], 0.5)
        assert not says_ready(closing, 2, rollouts=more, tokens=8), "more than it can have"
    assert says_ready(closing, 2, against=1, tokens=1), "who is against a set may have nothing to learn from"
    assert not says_ready(closing, 3, against=2, tokens=1), "there is no such set"


@pytest.mark.parametrize(
    ("batches", "tokens", "taken"),
    [
        ([8], 8, True),
        ([8], 9, False),
        ([16, 16], 32, True),
        ([16, 16], 33, False),
        ([0], 1, True),
        ([0], 2, False),
        ([16, 16], 2**40, False),
        ([], 1, True),
        ([], 2, False),
    ],
)
def test_a_ready_claims_no_more_tokens_than_its_batches_have(batches: list[int], tokens: int, taken: bool) -> None:
    """Prompts do not count, nor what a member did not name; who learned from nothing claims one token."""
    closing = closing_with_rollouts()
    used = [UsedBatch(PEERS[4], hash_bytes("b", bytes([at])), each) for at, each in enumerate(batches)]
    said = {"rollouts": learned_from(sorted(used, key=lambda each: each.root), None)} if used else {"against": 1}
    assert says_ready(closing, 1, tokens=tokens, **said) is taken


def test_a_round_of_text_in_a_run_with_rollouts_counts_its_text() -> None:
    rl = RlSection(environment="x", warm_rounds=6, max_tokens=8192, row_tokens=16384)
    manifest = SETTINGS.manifest.model_copy(update={"rl": rl})
    closing = ClosingPolicy(ME, replace(SETTINGS, manifest=manifest), BASE, LatenessMemory())
    assert rl.tokens_per_round > manifest.tokens_per_round
    assert not says_ready(closing, 1, tokens=manifest.tokens_per_round + 1, steps=manifest.round_steps)
    assert says_ready(closing, 1, tokens=manifest.tokens_per_round, steps=manifest.round_steps)


@pytest.mark.parametrize(
    ("look", "waited_for", "coming"),
    [
        (AT_WORK, True, False),
        (replace(AT_WORK, near=False), True, False),
        (ARRIVING, False, True),
        (ELSEWHERE, False, False),
        (QUIET, False, False),
        (GONE, False, False),
    ],
)
def test_peers_at_work_on_the_tip_are_waited_for(look: PeerView, waited_for: bool, coming: bool) -> None:
    view = a_view(AT_WORK, look)
    at_work, soon = a_closing([0]).awaited(view)
    assert (PEERS[1] in at_work, PEERS[1] in soon) == (waited_for, coming)
    assert a_closing([0, 1]).awaited(view) == ([], []), "not any more when it is ready"


@cases(
    "ready, looks, closable_after_s",
    {
        "too few": ([0], [AT_WORK], None),
        "too few alive": ([0, 1], [AT_WORK, QUIET], None),
        "all that are known": ([0, 1], [AT_WORK, AT_WORK], 0.0),
        "all electors": ([0, 1, 2, 3], [AT_WORK] * 4, 0.0),
        "all on the tip": ([0, 1, 2], [AT_WORK] * 3 + [ELSEWHERE], 0.0),
        "all alive": ([0, 1, 2], [AT_WORK] * 3 + [LONG_SILENT], 0.0),
        "one arrives": ([0, 1, 2], [AT_WORK] * 3 + [ARRIVING], GRACE_S),
        "a quorum": ([0, 1, 2], [AT_WORK] * 4, GRACE_S + FINISH_S),
        "no quorum of those at work": ([0, 1], [AT_WORK] * 3, None),
        "no quorum is at work": ([0, 1], [AT_WORK] * 2 + [LONG_SILENT] * 2, 0.0),
        "strangers make no quorum": ([0, 1, 4], [AT_WORK] * 5, None),
    },
)
def test_a_round_is_closed(ready: list[int], looks: list[PeerView], closable_after_s: float | None) -> None:
    closing, view = a_closing(ready), a_view(*looks)
    waits_s = [0.0, GRACE_S - 0.25, GRACE_S, GRACE_S + FINISH_S - 0.25, GRACE_S + FINISH_S]
    closable = [wait_s for wait_s in waits_s if closing.gather(view, 1.0 + wait_s)[1]]
    assert closable == [wait_s for wait_s in waits_s if closable_after_s is not None and wait_s >= closable_after_s]


def test_the_grace_time_begins_anew_when_the_quorum_is_not_alive_any_more() -> None:
    closing, view = a_closing([0, 1, 2]), a_view(*[AT_WORK] * 4)
    closing.gather(view, 0.0)
    assert closing.gather({**view, PEERS[2]: QUIET}, GRACE_S) == ([], False)
    assert closing.gather(view, GRACE_S + FINISH_S) == ([], False)
    assert closing.gather(view, 2 * GRACE_S + 2 * FINISH_S)[1]


@pytest.mark.parametrize(
    ("took_s", "fair_s"),
    [(24.0, LATE * 8.0), (2400.0, LATE * 800.0), (24_000.0, LONGEST_FAIR_S)],
    ids=["half a minute", "forty minutes", "hours in which the swarm stood still"],
)
def test_a_long_round_waits_for_the_fair_time_though_it_is_longer_than_the_grace_time(took_s: float, fair_s: float) -> None:
    closing, view = a_closing([0, 1, 2]), a_view(*[AT_WORK] * 4)
    finish = [Send((PEERS[3],), Finish(round=5, base=TIP))]
    assert fair_s > GRACE_S
    gathered = [closing.gather(view, took_s + wait_s) for wait_s in (0.0, fair_s / 2 - 0.25, fair_s / 2)]
    assert gathered == [([], False), ([], False), (finish, False)]
    closable = [closing.gather(view, took_s + fair_s + wait_s)[1] for wait_s in (0.0, FINISH_S - 0.25, FINISH_S)]
    assert closable == [False, False, True]


# -- lateness -------------------------------------------------------------------------------------------------------------


def rounds_held_up(late: Sequence[PeerId], electors: Sequence[int], rounds: int) -> list[int]:
    """The rounds, of so many, that were not closed at once because of these peers, who are at work and never ready."""
    lateness, held_up = LatenessMemory(), []
    for round in range(rounds):
        base = replace(BASE, round=round)
        closing = ClosingPolicy(ME, SETTINGS, base, lateness)
        for number in electors:
            assert says_ready(closing, number, round=round)
        view = {**a_view(*[AT_WORK] * 4), **dict.fromkeys(late, AT_WORK)}
        closable = [closing.gather(view, wait_s)[1] for wait_s in (0.0, GRACE_S, GRACE_S + FINISH_S)]
        assert closable[-1], "no round is held up for longer"
        held_up += [] if closable[0] else [round]
    return held_up


def test_an_elector_that_stalls_rounds_is_waited_for_in_ever_fewer() -> None:
    assert rounds_held_up([PEERS[3]], [0, 1, 2], 40) == [0, 1, 6, 15, 32]


def test_all_strangers_together_hold_up_no_more_rounds_than_one_stalling_elector() -> None:
    crowd = [PeerId(f"stranger {number}") for number in range(100)]
    assert rounds_held_up(crowd, range(4), 40) == [0, *range(1, 40, 1 + FIRST_ROUNDS)]


@pytest.mark.parametrize(
    ("trained_s", "after_s", "share"),
    [(0.0, LATE * 2.0 + ANSWER_S, 1.0), (0.0, LATE * 2.0 + ANSWER_S + 0.1, HURRIED), (4.0, LATE * 2.0 + ANSWER_S, 1.0)],
    ids=["fair", "longer", "part of the six seconds they trained before the round"],
)
def test_who_costs_more_than_its_fair_part_of_the_time_has_stalled_though_it_was_waited_for(
    trained_s: float, after_s: float, share: float
) -> None:
    """Three are ready after six seconds: each brings as much as two seconds of the swarm."""
    lateness = LatenessMemory()
    closing, view = a_closing([0, 1, 2], lateness=lateness), a_view(*[AT_WORK] * 4)
    closing.note_training(trained_s)
    closing.gather(view, 6.0 - trained_s)
    closing.gather(view, 6.0 - trained_s + after_s)
    assert says_ready(closing, 3) and closing.gather(view, 6.0 - trained_s + after_s)[1]
    assert lateness.trainers.share(PEERS[3], BASE.round + 1) == share


@pytest.mark.parametrize(
    ("ready", "looks", "closable_after_s"),
    [
        ([0], [AT_WORK, AT_WORK, AT_WORK, LONG_SILENT], EVICTION_S),
        ([0], [AT_WORK, AT_WORK, ELSEWHERE, GONE], EVICTION_S),
        ([0], [AT_WORK, QUIET, ELSEWHERE, GONE], EVICTION_S),
        ([0, 1], [AT_WORK, AT_WORK, AT_WORK, LONG_SILENT], 0.0),
        ([0], [AT_WORK, LONG_SILENT, GONE, LONG_SILENT], 0.0),
        ([0], [AT_WORK, ELSEWHERE, ELSEWHERE, LONG_SILENT], 0.0),
        ([0, 3], [AT_WORK, AT_WORK, AT_WORK, AT_WORK], 0.0),
    ],
    ids=["one of three", "one of two", "one is quiet", "most", "alone", "others elsewhere", "the elector is here"],
)
def test_where_no_elector_is_heard_most_of_the_recent_work_is_waited_for(
    ready: list[int], looks: list[PeerView], closable_after_s: float
) -> None:
    """The fourth peer is the elector; the first three did the recent work, and stalled so often that nobody waits."""
    work = RecentWork((tuple((peer, 10) for peer in PEERS[:3]),))
    base = replace(BASE, electors=(PEERS[3],), work=work)
    lateness = LatenessMemory()
    for peer, round in product(PEERS[:3], (base.round - 2, base.round - 1)):
        lateness.trainers.lost_with(peer, round)
    closing = ClosingPolicy(ME, replace(SETTINGS, min_members=1), base, lateness)
    view = a_view(*looks)
    for number in ready:
        assert says_ready(closing, number)
    closable = [closing.gather(view, wait_s)[1] for wait_s in (0.0, EVICTION_S - 0.25, EVICTION_S)]
    assert closable == [wait_s >= closable_after_s for wait_s in (0.0, EVICTION_S - 0.25, EVICTION_S)]
    assert bool(closing.decisive(view)) == (closable_after_s > 0), "the view names those that are waited for"


def test_members_are_outweighed_by_others_that_are_here_and_did_more_of_the_recent_work() -> None:
    work = RecentWork((tuple(zip(PEERS[:3], (10, 10, 25), strict=True)),))
    closing = ClosingPolicy(ME, SETTINGS, replace(BASE, electors=(PEERS[3],), work=work), LatenessMemory())
    assert closing.are_outweighed(PEERS[:2], a_view(*[AT_WORK] * 3, GONE))
    assert not closing.are_outweighed(PEERS[:2], a_view(AT_WORK, AT_WORK, GONE, GONE))
    assert not closing.are_outweighed([PEERS[0], PEERS[2]], a_view(*[AT_WORK] * 3, GONE))


@pytest.mark.parametrize("members", [PEERS[:3], PEERS[:4]], ids=["no elector", "the elector is here"])
def test_members_with_recent_work_answer_for_strangers_only_beside_an_elector(members: list[PeerId]) -> None:
    """The fourth peer is the elector, the first two did the recent work, and the third one stalls each exchange."""
    base = replace(BASE, electors=(PEERS[3],), work=RecentWork((tuple((peer, 10) for peer in PEERS[:2]),)))
    lateness, stalled = LatenessMemory(), Observed({}, [PEERS[2]])
    lateness.judge_exchange(ME, members, base, stalled, stall_s=20.0, fair_s=1.0)
    with_friend = share_of(lateness.members, deputised(replace(base, round=base.round + 1), members), PEERS[1])
    assert (with_friend == 1.0) == (PEERS[3] not in members)


def test_equal_parts_stay_equal_where_the_work_of_strangers_is_bounded() -> None:
    """A part that looks heavier by a rounding would take back the rounds of the other one."""
    tokens = tuple(zip(PEERS[:4], (100, 33, 33, 34), strict=True))
    work = RecentWork((tokens,)).bounded_by([PEERS[0]])
    assert work.of(PEERS[1:3]) * 34 == work.of([PEERS[3]]) * 66
    assert 2 * work.of(PEERS[1:4]) == work.of([PEERS[0]])


def test_who_is_not_waited_for_is_in_the_plan_when_it_is_ready_in_time() -> None:
    lateness = LatenessMemory()
    lateness.trainers.lost_with(PEERS[3], BASE.round - 1)
    closing, view = a_closing(range(4), lateness=lateness), a_view(*[AT_WORK] * 4)
    plan = closing.make_plan(view, STATE, [])
    assert plan is not None and [member.peer for member in plan.members] == PEERS[:4]


# -- members --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("digest", "agreed"), [(STATE, [0, 2]), (OTHER_STATE, [1]), (None, [0, 1, 2])])
def test_live_peers_on_our_state_count(digest: Hash | None, agreed: list[int]) -> None:
    closing = a_closing([0, 2, 3])
    assert says_ready(closing, 1, state_digest=OTHER_STATE)
    assert closing.agreed(a_view(AT_WORK, AT_WORK, AT_WORK, QUIET), digest) == [PEERS[number] for number in agreed]


@cases(
    "ready, looks, held, members",
    {
        "all that are ready": ([0, 1, 2], [AT_WORK] * 3, [], [0, 1, 2]),
        "who is alive": ([0, 1, 2], [AT_WORK, AT_WORK, QUIET], [], [0, 1]),
        "an elector whose READY others hold": ([0, 1, 2], [AT_WORK, AT_WORK, QUIET], [2], [0, 1, 2]),
        "one whose READY we lack": ([0, 1], [AT_WORK] * 3, [2], None),
        "too few": ([0], [AT_WORK], [], None),
        "electors come first": ([0, 1, 2, 3, 4], [AT_WORK] * 5, [], [0, 1, 2, 3]),
        "then strangers": ([0, 1, 4], [AT_WORK] * 5, [], [0, 1, 4]),
    },
)
def test_the_members_of_a_plan(ready: list[int], looks: list[PeerView], held: list[int], members: list[int] | None) -> None:
    plan = a_closing(ready).make_plan(a_view(*looks), STATE, [PEERS[number] for number in held])
    assert (plan and [PEERS.index(PeerId(member.peer)) for member in plan.members]) == members


def test_a_plan_stands_on_our_state_and_each_member_signed_its_ready() -> None:
    closing = a_closing([0, 1])
    assert says_ready(closing, 2, state_digest=OTHER_STATE, tokens=50)
    view = a_view(*[AT_WORK] * 3)
    plan = closing.make_plan(view, STATE, [])
    assert plan is not None and (plan.round, plan.base, plan.state_digest) == (BASE.round, TIP, STATE)
    assert flaw_of_plan(SETTINGS, BASE, plan) is None
    assert closing.make_plan(view, STATE, [PEERS[2]]) is None, "it is on another state, and may not be left out"


def test_a_plan_has_no_more_newcomers_than_their_token_admits_and_none_without_a_proof() -> None:
    """Whoever signs a READY chooses what it shows; a plan that others must reject would cost an attempt."""
    organiser = IDENTITIES[PEERS[0]]
    manifest = RunManifest(
        name="club", organiser=organiser.peer_id, founders="anyone", admission=Admission.INVITE, total_rounds=10**6
    )
    settings = replace(SETTINGS, manifest=manifest)
    base = replace(BASE, electors=tuple(PEERS[:2]), contributors=tuple(PEERS[:2]), known=frozenset(PEERS[:2]))
    closing = ClosingPolicy(ME, settings, base, LatenessMemory())
    for number in (0, 1):
        assert says_ready(closing, number)
    key = IDENTITIES[PEERS[1]]
    token = bearer_token(organiser, RUN, key, expires=1, until_round=9, uses=1)
    for number in (2, 3):
        assert says_ready(closing, number, admission=make_proof(token, RUN, PEERS[number], key))
    assert not says_ready(closing, 4, admission=b"let me in")
    plan = closing.make_plan(a_view(*[AT_WORK] * 5), STATE, [])
    assert plan is not None and flaw_of_plan(settings, base, plan) is None
    assert [member.peer for member in plan.members] == PEERS[:3]
    used = TokenUses().after([(PEERS[2], make_proof(token, RUN, PEERS[2], key))])
    later = ClosingPolicy(ME, settings, replace(base, uses=used), LatenessMemory())
    assert not says_ready(later, 3, admission=make_proof(token, RUN, PEERS[3], key)), "no plan could have it"


@pytest.mark.parametrize(
    ("electors", "ours", "others", "against"), [(4, 1, 3, True), (4, 2, 2, False), (3, 2, 1, True), (3, 3, 0, False)]
)
def test_the_state_is_looked_at_again(electors: int, ours: int, others: int, against: bool) -> None:
    """From four electors on if a quorum is against us; below four, whoever is."""
    closing = ClosingPolicy(ME, SETTINGS, replace(BASE, electors=tuple(PEERS[:electors])), LatenessMemory())
    for number in range(ours + others):
        assert says_ready(closing, number, state_digest=STATE if number < ours else OTHER_STATE)
    assert (closing.state_against(STATE) == OTHER_STATE) is against


# -- who is gone ----------------------------------------------------------------------------------------------------------


@cases(
    "looks, absent",
    {
        "all live": ([AT_WORK, AT_WORK, AT_WORK, AT_WORK], []),
        "a quorum without a goodbye": ([AT_WORK, AT_WORK, AT_WORK, GONE], []),
        "a quorum without the silent": ([AT_WORK, AT_WORK, AT_WORK, LONG_SILENT], []),
        "silent for too short a time": ([AT_WORK, AT_WORK, QUIET, LONG_SILENT], [3]),
        "the one that said goodbye, and no more": ([AT_WORK, AT_WORK, GONE, LONG_SILENT], [2]),
        "whichever it is": ([AT_WORK, AT_WORK, LONG_SILENT, GONE], [3]),
        "only we are left": ([AT_WORK, LONG_SILENT, GONE, LONG_SILENT], [1, 2, 3]),
        "one that may be back would be missing": ([AT_WORK, QUIET, GONE, LONG_SILENT], []),
    },
)
def test_electors_are_absent(looks: list[PeerView], absent: list[int]) -> None:
    assert a_closing().absent(a_view(*looks)) == tuple(PEERS[number] for number in absent)


@pytest.mark.parametrize(
    ("number", "look", "may"),
    [
        (1, AT_WORK, False),
        (1, QUIET, False),
        (1, LONG_SILENT, True),
        (1, GONE, True),
        (0, LONG_SILENT, False),
        (4, GONE, False),
    ],
    ids=["live", "silent for too short a time", "long silent", "goodbye", "ourselves", "no elector"],
)
def test_a_voter_agrees_that_an_elector_is_absent(number: int, look: PeerView, may: bool) -> None:
    peer: PeerId = PEERS[number]
    assert a_closing().may_be_absent([peer], {peer: look}) is may


def a_plan_without(aside: Sequence[int], ready: Sequence[int], *, held: Sequence[int] = (), least: int = 1) -> list[int]:
    """The members of our plan if we have set some aside."""
    closing = ClosingPolicy(ME, replace(SETTINGS, min_members=least), BASE, LatenessMemory())
    closing.note_aside([PEERS[number] for number in aside])
    for number in ready:
        assert says_ready(closing, number)
    plan = closing.make_plan(a_view(*[AT_WORK] * len(PEERS)), STATE, [PEERS[number] for number in held])
    assert plan is not None
    return [PEERS.index(PeerId(member.peer)) for member in plan.members]


@pytest.mark.parametrize(
    ("options", "members"),
    [
        ({}, [0, 2]),
        ({"held": [1]}, [0, 1, 2]),
        ({"least": 2}, [0, 2]),
        ({"least": 3}, [0, 1, 2]),
    ],
)
def test_who_is_set_aside_is_in_a_plan_only_if_demanded_or_needed(options: dict[str, Any], members: list[int]) -> None:
    assert sorted(a_plan_without([1], [0, 1, 2], **options)) == members


def test_who_is_set_aside_is_neither_waited_for_nor_demanded() -> None:
    view = a_view(*[AT_WORK] * 3)
    closing = a_closing([0, 2])
    assert closing.awaited(view)[0] == [PEERS[1]]
    closing.note_aside([PEERS[1]])
    assert closing.awaited(view) == ([], [])
    assert says_ready(closing, 1) and PEERS[1] not in closing.held(view, STATE)
    closing.note_aside([ME])
    assert ME in closing.held(view, STATE), "we never leave ourselves out"
