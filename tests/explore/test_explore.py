"""A small exploration: the agreement holds in every state of it, and a broken rule shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.explore.configs import PARTS_QUICK, QUICK, TWO_LIARS
from tests.explore.council import LockKey, Seats
from tests.explore.memory import Memory
from tests.explore.mutations import MUTATIONS, PARTS, RETURNS, Mutation, mutated
from tests.explore.parts import Parting, Parts
from tests.explore.returning import explore_returns
from tests.explore.search import Config, Search
from tests.explore.symmetry import Past, State
from tests.tiers import first_fast

LIAR: Seats = (1,)


def is_long(mutation: Mutation) -> bool:
    """Return True for a search of several seconds."""
    return isinstance(mutation.config, Parting) and not mutation.config.restarts


@pytest.mark.parametrize("config", first_fast(QUICK, len(QUICK) - 1), ids=str)
def test_agreement_holds_in_every_state(config: Config, tmp_path: Path) -> None:
    outcome = Search(config, tmp_path).run()
    assert outcome.violation is None and outcome.exhaustive and outcome.states > 100


@pytest.mark.parametrize("mutation", first_fast(MUTATIONS), ids=lambda mutation: mutation.name)
def test_a_broken_rule_leads_to_a_split(mutation: Mutation, tmp_path: Path) -> None:
    assert isinstance(mutation.config, Config)
    with mutated(mutation):
        outcome = Search(mutation.config, tmp_path).run()
    assert outcome.violation is not None
    assert outcome.violation.startswith("two full certificates") or "can be confirmed beside a full" in outcome.violation


def test_two_liars_of_four_can_split_the_run(tmp_path: Path) -> None:
    outcome = Search(TWO_LIARS, tmp_path).run()
    assert outcome.violation is not None
    assert outcome.trace[-2:] == ("full certificate for A in attempt 0", "full certificate for B in attempt 0")


@pytest.mark.slow
def test_steps_in_order_lead_wherever_steps_in_any_order_lead(tmp_path: Path) -> None:
    """To the same locks of everybody, with no less proven and certified."""
    in_order = dict[object, list[Past]]()
    for locks, past in reached(Config(LIAR, 2, in_order=True, symmetric=False), tmp_path):
        in_order.setdefault(locks, []).append(past)
    for locks, past in reached(Config(LIAR, 2, symmetric=False), tmp_path):
        assert any(past.proven <= more.proven and past.certified <= more.certified for more in in_order[locks])


def reached(config: Config, folder: Path) -> set[tuple[tuple[LockKey | None, ...], Past]]:
    """What came of each state of a search: the locks of the electors, and of their votes."""
    search, found = Search(config, folder), set[tuple[tuple[LockKey | None, ...], Past]]()

    def visit(state: State) -> None:
        found.add((tuple(search.electors.known[number].kept.lock for number in state), search.past(state)))

    search.run(visit)
    return found


@pytest.mark.slow
def test_everybody_ends_on_one_branch() -> None:
    returned = explore_returns()
    assert returned.flaws == [] and returned.stands > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("mutation", RETURNS, ids=lambda mutation: mutation.name)
def test_a_broken_rule_of_following_leaves_peers_apart(mutation: Mutation) -> None:
    with mutated(mutation):
        assert explore_returns(9, 10).flaws


@pytest.mark.parametrize("config", PARTS_QUICK, ids=str)
def test_parts_of_a_run_hold_no_conflicting_records_for_final_and_go_on(config: Parting) -> None:
    parted = Parts(config).run()
    assert parted.flaw is None and parted.states > 100


@pytest.mark.parametrize("mutation", first_fast(sorted(PARTS, key=is_long), 6), ids=lambda mutation: mutation.name)
def test_a_broken_rule_of_several_tips_is_found(mutation: Mutation) -> None:
    assert isinstance(mutation.config, Parting)
    with mutated(mutation):
        assert Parts(mutation.config).run().flaw is not None


@pytest.mark.slow
def test_a_voter_that_remembers_says_nothing_more(tmp_path: Path) -> None:
    remembered = Memory(tmp_path, attempts=1).explore()
    assert remembered.flaw is None and remembered.states > 20
