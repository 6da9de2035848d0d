"""Time and bytes of exchanges, agreements and gossip, known by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from peer.planning.cost import (
    AGREEMENT_RTTS,
    AGREEMENT_S,
    CHUNK_STATEMENT,
    GOSSIP_BYTES,
    MEMBER_STATEMENT,
    ROUND_GOSSIP,
    ROUND_STATEMENT,
    VOTE_STATEMENT,
    WIRE,
    RoundLoad,
    agreement_cost,
    beside_gossip,
    exchange_cost,
    exchange_end,
    gossip_cost,
)
from protocol.audit.auditor import PART_TIMEOUT_S, SHARE
from protocol.membership.liveness import BEAT_S

LINE = 1e6 * WIRE
FREE = RoundLoad(steps=10, delay=0, step_tokens=1000, parameters=0, contribution_bytes=0, result_bytes=0, chunks=8)
TEN_SECONDS = replace(FREE, contribution_bytes=10_000_000, result_bytes=10_000_000)
"""An exchange of two members with lines of `LINE` takes ten seconds."""
ALL_OF_FOUR = np.ones(4, np.bool_)


def test_each_member_sends_and_receives_its_part_of_contributions_and_results() -> None:
    lines = np.full(4, 1e6)
    cost = exchange_cost(lines, lines, replace(FREE, contribution_bytes=400, result_bytes=800), 4)
    assert cost.sent == pytest.approx([3 / 4 * (400 + 800)] * 4)
    assert cost.received == pytest.approx([3 / 4 * (400 + 800)] * 4)


def test_a_slow_line_owns_no_chunk() -> None:
    up = np.array([10e6, 10e6, 10e6, 1e6])
    cost = exchange_cost(up, up, replace(TEN_SECONDS, chunks=100), 3)
    assert cost.sent[3] == pytest.approx(10_000_000)
    assert cost.seconds[3] == pytest.approx(10 * WIRE)
    assert cost.sent.sum() == pytest.approx(cost.received.sum())


def test_the_slower_direction_of_a_line_counts() -> None:
    up, down = np.full(4, 1e6), np.full(4, 4e6)
    cost = exchange_cost(up, down, TEN_SECONDS, 4)
    assert cost.seconds == pytest.approx([WIRE * 15] * 4)


def test_alone_nothing_is_exchanged() -> None:
    cost = exchange_cost(np.array([1e6]), np.array([1e6]), TEN_SECONDS, 1)
    assert (cost.seconds[0], cost.sent[0], cost.received[0]) == (0, 0, 0)


def test_others_go_on_without_a_line_that_takes_much_longer() -> None:
    assert exchange_end(np.array([10.0, 10.0, 10.0, 14.0])) == 14
    assert exchange_end(np.array([10.0, 10.0, 10.0, 60.0])) == 10


# ------------------------------------------------------------------------------------------------------------------------
# The agreement.


def test_a_proposer_sends_its_statements_to_all_others() -> None:
    up, down = np.full(4, 1e3), np.full(4, 1e15)
    cost = agreement_cost(up, down, 0.0, FREE, ALL_OF_FOUR)
    statements = 3 * (ROUND_STATEMENT + 4 * MEMBER_STATEMENT + 3 * VOTE_STATEMENT + 8 * CHUNK_STATEMENT)
    assert cost.seconds == pytest.approx(AGREEMENT_S + WIRE * statements / 1e3)
    assert cost.sent.sum() == cost.received.sum() == pytest.approx(statements)


def test_voters_fetch_the_parts_of_one_chunk_before_they_vote() -> None:
    lines = np.full(4, 1e6)
    with_audit = agreement_cost(lines, lines, 0.1, TEN_SECONDS, ALL_OF_FOUR)
    without = agreement_cost(lines, lines, 0.1, FREE, ALL_OF_FOUR)
    parts = 3 * 10_000_000 / 8
    assert with_audit.seconds - without.seconds == pytest.approx(WIRE * parts / 1e6)
    assert with_audit.received - without.received == pytest.approx([parts] * 4)
    assert with_audit.sent - without.sent == pytest.approx([parts] * 4)


def test_members_without_a_vote_show_their_parts_and_fetch_none() -> None:
    lines = np.full(4, 1e9)
    votes = np.array([True, True, True, False])
    load = replace(TEN_SECONDS, chunks=8 * SHARE * 4)
    cost, free = (agreement_cost(lines, lines, 0.0, each, votes) for each in (load, replace(load, contribution_bytes=0)))
    part = 8 * 10_000_000 / load.chunks
    assert cost.sent - free.sent == pytest.approx([2 * part, 2 * part, 2 * part, 3 * part])
    assert cost.received - free.received == pytest.approx([3 * part, 3 * part, 3 * part, 0])


def test_nobody_waits_long_for_parts_that_a_line_does_not_carry() -> None:
    lines = np.full(4, 1e3)
    slow, free = (agreement_cost(lines, lines, 0.0, load, ALL_OF_FOUR) for load in (TEN_SECONDS, FREE))
    assert slow.seconds - free.seconds == pytest.approx(PART_TIMEOUT_S)


def test_alone_nothing_is_sent_to_agree() -> None:
    cost = agreement_cost(np.ones(1), np.ones(1), 1.0, TEN_SECONDS, np.ones(1, np.bool_))
    assert (cost.seconds, cost.sent[0], cost.received[0]) == (AGREEMENT_S, 0, 0)


def test_the_agreement_takes_its_round_trips() -> None:
    lines = np.full(4, 1e15)
    near, far = (agreement_cost(lines, lines, rtt, FREE, ALL_OF_FOUR).seconds for rtt in (0.0, 1.0))
    assert far - near == pytest.approx(AGREEMENT_RTTS + 1)


# ------------------------------------------------------------------------------------------------------------------------
# Gossip.


def test_in_a_small_swarm_everybody_passes_a_heartbeat_on_to_everybody() -> None:
    cost = gossip_cost(3)
    assert cost.bytes_per_s == pytest.approx(3 * 4 / 3 * GOSSIP_BYTES / BEAT_S)
    assert cost.round_bytes == pytest.approx(ROUND_GOSSIP * 4 * GOSSIP_BYTES)


def test_gossip_of_a_large_swarm_does_not_grow_because_heartbeats_slow_down() -> None:
    assert gossip_cost(1000).bytes_per_s == pytest.approx(gossip_cost(100).bytes_per_s, rel=0.01)
    assert gossip_cost(1).bytes_per_s == 0


def test_gossip_takes_its_share_of_a_line_but_not_all_of_it() -> None:
    assert beside_gossip(np.array([1e6, 1e4]), 2e4) == pytest.approx([0.98e6, 0.5e4])
