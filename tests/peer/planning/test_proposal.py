"""Proposed settings, for lines on which the right answer is plain."""

from __future__ import annotations

import pytest

from peer.planning import proposal
from peer.planning.cost import RoundRules
from peer.planning.proposal import LONG_ROUND, MOST_WASTED, propose
from peer.planning.swarm import PlannedPeers, read_groups
from protocol.run.manifest import RunManifest, demo_manifest


@pytest.fixture(scope="module")
def manifest() -> RunManifest:
    return demo_manifest().manifest


def peers(count: str = "4", **options: str) -> PlannedPeers:
    usual = {"speed": "5000", "up": "100mbit", "down": "100mbit", "rtt": "1ms", "online": "always"}
    return PlannedPeers.of(read_groups(count, usual | options))


def test_lines_for_which_the_exchange_is_nothing_need_no_fragments(manifest: RunManifest) -> None:
    setting, why = propose(manifest, RoundRules.of(manifest), peers(speed="100", up="10gbit", down="10gbit"))
    assert setting == ("int4", 20, 1, 0) and "int4 costs no loss" in why


def test_slower_lines_need_longer_rounds(manifest: RunManifest) -> None:
    rules = RoundRules.of(manifest)
    steps = [propose(manifest, rules, peers(up=up))[0].inner_steps for up in ("20mbit", "2mbit", "500kbit")]
    assert steps == sorted(steps) and steps[0] < steps[-1]


def test_a_proposal_that_does_not_suffice_says_so(manifest: RunManifest) -> None:
    _, why = propose(manifest, RoundRules.of(manifest), peers(speed="5000000", up="130kbit"))
    assert why.startswith(f"no setting wastes less than {100 * MOST_WASTED:.1f} % of the time")


def test_many_members_get_fewer_bits_rather_than_long_rounds(manifest: RunManifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight members lose 2 to 3 % with rounds of 300 steps, and half a percent with int2."""
    rules, eight = RoundRules.of(manifest), peers("8", speed="20000", up="2mbit")
    found = propose(manifest, rules, eight)[0]
    assert (found.codec, found.inner_steps) == ("int2", 200)
    monkeypatch.setattr(proposal, "MANY_MEMBERS", 9)
    found = propose(manifest, rules, eight)[0]
    assert (found.codec, found.inner_steps) == ("int4", LONG_ROUND)
