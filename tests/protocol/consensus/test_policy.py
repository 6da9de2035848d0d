"""When a round is closed, by which proposer and with which members: tables of how peers look and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from protocol.consensus.effects import Send
from protocol.consensus.policy import FINISH_S, RESEND_S, ClosingPolicy
from protocol.consensus.terms import PeerView, View
from protocol.wire.hashes import ZERO_HASH, Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Finish
from tests.protocol.consensus.examples import (
    ARRIVING,
    AT_WORK,
    BASE,
    ELSEWHERE,
    GONE,
    LONG_SILENT,
    PEERS,
    QUIET,
    SETTINGS,
    TIP,
    a_ready,
)

ME = PEERS[0]
GRACE_S = SETTINGS.grace_s
OTHER_STATE = Hash(b"\x04" * 32)


def a_closing(ready: Sequence[int] = (), **changes: Any) -> ClosingPolicy:
    """The policy of the first peer, with the READY of these peers."""
    closing = ClosingPolicy(ME, SETTINGS, BASE)
    for number in ready:
        assert closing.add(PEERS[number], a_ready(**changes))
    return closing


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
        ({"tokens": SETTINGS.max_tokens}, True),
        ({"tokens": SETTINGS.max_tokens + 1}, False),
    ],
)
def test_a_ready_is_for_this_round_and_within_its_tokens(changes: dict[str, Any], taken: bool) -> None:
    closing = a_closing()
    assert closing.add(PEERS[1], a_ready(**changes)) is taken
    assert (PEERS[1] in closing.readys) is taken


@pytest.mark.parametrize(
    ("changes", "taken", "tokens"),
    [
        ({}, True, 100),
        ({"tokens": 50}, False, 100),
        ({"serial": 0, "tokens": 50}, False, 100),
        ({"serial": 2, "tokens": 50}, True, 50),
        ({"incarnation": 2, "serial": 0, "tokens": 50}, True, 50),
        ({"incarnation": 0, "serial": 9, "tokens": 50}, False, 100),
    ],
)
def test_a_newer_ready_takes_the_place_of_an_older_one(changes: dict[str, Any], taken: bool, tokens: int) -> None:
    closing = a_closing([1])
    assert closing.add(PEERS[1], a_ready(**changes)) is taken
    assert closing.readys[PEERS[1]].tokens == tokens


@pytest.mark.parametrize(
    ("look", "waited_for", "coming"),
    [
        (AT_WORK, True, False),
        (replace(AT_WORK, near=True), True, False),
        (ARRIVING, False, True),
        (ELSEWHERE, False, False),
        (QUIET, False, False),
        (GONE, False, False),
    ],
)
def test_peers_at_work_on_the_tip_are_waited_for(look: PeerView, waited_for: bool, coming: bool) -> None:
    view = a_view(AT_WORK, look)
    assert (PEERS[1] in a_closing([0]).waiting_for(view), PEERS[1] in a_closing([0]).coming(view)) == (waited_for, coming)
    assert a_closing([0, 1]).waiting_for(view) == a_closing([0, 1]).coming(view) == [], "not any more when it is ready"


@pytest.mark.parametrize(
    ("ready", "looks", "closable_after_s"),
    [
        ([0], [AT_WORK], None),
        ([0, 1], [AT_WORK, QUIET], None),
        ([0, 1], [AT_WORK, AT_WORK], 0.0),
        ([0, 1], [AT_WORK, AT_WORK, ELSEWHERE], 0.0),
        ([0, 1], [AT_WORK, AT_WORK, ARRIVING], GRACE_S),
        ([0, 1], [AT_WORK, AT_WORK, AT_WORK], GRACE_S + FINISH_S),
        ([0, 1], [AT_WORK] * 4, GRACE_S + FINISH_S),
        ([0, 1], [AT_WORK] * 5, None),
    ],
    ids=["too few", "too few alive", "all", "all on the tip", "one arrives", "most", "half", "less than half"],
)
def test_a_round_is_closed(ready: list[int], looks: list[PeerView], closable_after_s: float | None) -> None:
    closing, view = a_closing(ready), a_view(*looks)
    waits_s = [0.0, GRACE_S - 0.25, GRACE_S, GRACE_S + FINISH_S - 0.25, GRACE_S + FINISH_S]
    closable = [wait_s for wait_s in waits_s if closing.gather(view, 100.0 + wait_s)[1]]
    assert closable == [wait_s for wait_s in waits_s if closable_after_s is not None and wait_s >= closable_after_s]


def test_late_peers_are_asked_to_finish_after_the_grace_time_and_again() -> None:
    closing, view = a_closing([0, 1]), a_view(AT_WORK, AT_WORK, AT_WORK)
    asked = {since: closing.gather(view, since)[0] for since in (0.0, GRACE_S, GRACE_S + RESEND_S / 2, GRACE_S + RESEND_S)}
    finish = [Send((PEERS[2],), Finish(round=5, base=TIP))]
    assert list(asked.values()) == [[], finish, [], finish]


def test_the_grace_time_begins_anew_when_half_are_not_ready_any_more() -> None:
    closing = a_closing([0, 1])
    half, fewer = a_view(AT_WORK, AT_WORK, AT_WORK), a_view(*[AT_WORK] * 5)
    closing.gather(half, 0.0)
    assert closing.gather(fewer, GRACE_S) == ([], False)
    assert closing.gather(half, GRACE_S + FINISH_S) == ([], False)
    assert closing.gather(half, 2 * GRACE_S + 2 * FINISH_S)[1]


@pytest.mark.parametrize(
    ("ready", "looks", "may"),
    [
        ([0, 1], [AT_WORK] * 4, True),
        ([0, 1], [AT_WORK] * 5, False),
        ([0, 1], [AT_WORK, QUIET, AT_WORK, AT_WORK], False),
    ],
)
def test_peers_are_asked_to_finish_only_when_half_are_ready(ready: list[int], looks: list[PeerView], may: bool) -> None:
    assert a_closing(ready).may_ask_to_finish(a_view(*looks)) is may


def test_the_proposer_is_a_live_ready_elector_and_another_in_most_attempts() -> None:
    everybody, view = a_closing(range(5)), a_view(*[AT_WORK] * 5)
    turns = [everybody.proposer(view, attempt) for attempt in range(60)]
    assert set(turns) == set(PEERS[:4]), "the fifth is no elector"
    first = everybody.proposer(view, 0)
    assert first is not None
    assert everybody.proposer({**view, first: QUIET}, 0) != first or first == ME
    assert a_closing([4]).proposer(view, 0) == PEERS[4], "no elector is ready"
    assert a_closing().proposer(view, 0) is None


@pytest.mark.parametrize(
    ("states", "agreed"),
    [
        ([None, None, None], [0, 1, 2]),
        ([None, OTHER_STATE, None], [0, 2]),
        ([OTHER_STATE, None, OTHER_STATE], [0, 2]),
        ([OTHER_STATE, None], [1]),
    ],
    ids=["one state", "most", "most on the other", "a tie goes to the lower digest"],
)
def test_peers_on_the_most_common_state_count(states: list[Hash | None], agreed: list[int]) -> None:
    closing = a_closing()
    for peer, state in zip(PEERS, states, strict=False):
        assert closing.add(peer, a_ready(**({"state_digest": state} if state else {})))
    assert closing.agreed(a_view(*[AT_WORK] * 5)) == [PEERS[number] for number in agreed]


def test_a_plan_has_the_ready_peers_and_their_mean_loss_by_tokens() -> None:
    closing = a_closing()
    for number, (tokens, loss) in enumerate([(100, 1.0), (300, 2.0), (200, 9.0)]):
        assert closing.add(PEERS[number], a_ready(tokens=tokens, loss=loss))
    plan = closing.make_plan(a_view(AT_WORK, AT_WORK, QUIET))
    assert plan is not None and [member.peer for member in plan.members] == PEERS[:2]
    assert plan.loss == pytest.approx((100 * 1.0 + 300 * 2.0) / 400)
    assert len(plan.owners) == SETTINGS.chunks and (plan.round, plan.base) == (BASE.round, TIP)


@pytest.mark.parametrize(("ready", "size"), [([0], None), ([0, 1], 2), ([0, 1, 2, 3, 4], 4)])
def test_a_plan_has_as_many_members_as_the_run_allows(ready: list[int], size: int | None) -> None:
    plan = a_closing(ready).make_plan(a_view(*[AT_WORK] * 5))
    assert (len(plan.members) if plan is not None else None) == size


@pytest.mark.parametrize(
    ("looks", "evicted"),
    [
        ([AT_WORK, AT_WORK, AT_WORK, AT_WORK], []),
        ([AT_WORK, AT_WORK, AT_WORK, GONE], [3]),
        ([AT_WORK, AT_WORK, AT_WORK, LONG_SILENT], []),
        ([AT_WORK, AT_WORK, LONG_SILENT, LONG_SILENT], [2, 3]),
        ([AT_WORK, AT_WORK, QUIET, LONG_SILENT], [3]),
        ([AT_WORK, AT_WORK, GONE, LONG_SILENT], [2]),
        ([AT_WORK, LONG_SILENT, GONE, LONG_SILENT], [1, 2, 3]),
    ],
    ids=[
        "all live",
        "goodbye",
        "a quorum without the silent",
        "no quorum",
        "silent for too short a time",
        "a quorum of those who stay",
        "only we are left",
    ],
)
def test_electors_are_evicted(looks: list[PeerView], evicted: list[int]) -> None:
    assert a_closing().evictable(a_view(*looks)) == tuple(PEERS[number] for number in evicted)


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
def test_an_eviction_is_agreed_to(number: int, look: PeerView, may: bool) -> None:
    peer: PeerId = PEERS[number]
    assert a_closing().may_evict([peer], {peer: look}) is may


def test_an_elector_that_is_not_known_is_not_evicted() -> None:
    assert not a_closing().may_evict([PEERS[1]], {})
