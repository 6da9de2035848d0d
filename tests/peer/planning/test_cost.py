"""Time and bytes of exchanges and agreements, known by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from peer.planning.cost import (
    AGREEMENT_S,
    CHUNK_STATEMENT,
    MEMBER_STATEMENT,
    ROUND_STATEMENT,
    VOTE_STATEMENT,
    WIRE,
    RoundLoad,
    agreement_cost,
    exchange_cost,
    exchange_end,
)

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
