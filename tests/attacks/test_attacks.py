"""The quick attacks break no invariant, and rounds go on; `python -m tests.attacks` runs all, and asks for their pace."""

from __future__ import annotations

import pytest

from tests.attacks.attack import Attack, simulated
from tests.attacks.cost import MAX_GROWTH, MAX_STALL_S, Cost
from tests.attacks.resources import Burden, bear
from tests.attacks.stage import Stage
from tests.attacks.suite import BURDENS, SIMULATED
from tests.tiers import first_fast

LEAST = 40
"""Attacks that there have to be."""
REPEATED = {
    *("64 strangers certify", "one vote five times", "votes of another attempt", "absent and signing"),
    *(
        "two propose nothing",
        "two silent electors",
        "two withhold everything",
        "two always late",
        "two averages always late",
    ),
    *("two averages a little late", "two overtake the owners", "two sign early and withhold", "two own all for themselves"),
    *("two claim wide lines", "two turn on each owner", "two report falsely", "two keys peek"),
    *("2 of 7 say anything, 2", "2 of 7 lie always", "2 of 7 lie carefully", "2 of 7 delay most", "1 of 4 say anything, 2"),
    *("proposes to half", "record proposal to half", "keeps it and repeats", "keeps it and makes noise"),
    *("padded plan", "16 attempts ahead", "one attempt ahead", "lock with its own proof", "false signatures in plans"),
    *("averages a little late", "late for each", "a stranger overtakes the owners", "overtakes itself"),
    *("READY to the proposer", "READY to nobody", "READY late", "ten mute members", "crowd the buffers"),
    *("another genesis, demo run", "another first record, demo", "joiners without state, founded", "decided, dead, 2 leave"),
    *(
        "proof of nothing: a false signature",
        "plus and minus zero",
        "strangers ask to finish",
        "nobody lies, some are slower",
    ),
}
"""Another attack says nearly the same with fewer liars or another number: these are for the command alone."""
QUICK = [name for name, attack in SIMULATED.items() if attack.quick and name not in REPEATED]
FAST = [
    "lone certificate",
    "proposes nothing",
    "another genesis",
    "peeks and copies",
]
"""Of the fast tier: with certificates, by proposers, with histories, on contributions."""
BORNE = [burden for burden in BURDENS.values() if not burden.real]
"""The first takes as long as all others."""
SHORT_S = 20.0
"""Virtual seconds of an attack after its third round; too few to judge the pace."""


def test_there_are_attacks_of_every_kind_under_names_of_their_own() -> None:
    assert len(SIMULATED) >= LEAST
    assert all(attack.name == name for name, attack in SIMULATED.items())
    assert set(FAST) <= set(QUICK) and SIMULATED.keys() >= REPEATED


@pytest.mark.parametrize("name", first_fast([*FAST, *(name for name in QUICK if name not in FAST)], len(FAST)))
def test_it_is_held(name: str) -> None:
    outcome = simulated(SIMULATED[name], SHORT_S)
    assert outcome.held, outcome.failure


@pytest.mark.parametrize("burden", first_fast(reversed(BORNE), len(BORNE) - 1), ids=lambda burden: burden.name)
def test_it_is_borne(burden: Burden) -> None:
    outcome = bear(burden, timed=False)
    assert outcome.held, outcome.failure
    assert outcome.cost is not None and outcome.cost.stall_s >= outcome.cost.busy_s


def test_what_costs_too_much_memory_or_time_is_not_borne() -> None:
    assert Cost(grown=MAX_GROWTH).flaw(timed=True) is None
    assert Cost(grown=MAX_GROWTH + 1).flaw(timed=False) is not None
    busy = Cost()
    busy.late(1.0, 2 * MAX_STALL_S)
    busy.late(0.01, 1.0)
    assert (busy.stall_s, busy.busy_s) == (1.0, 2 * MAX_STALL_S), "nobody computes longer than it is late"
    assert busy.flaw(timed=False) is None and busy.flaw(timed=True) is not None


@pytest.mark.slow
def test_an_attack_that_breaks_what_it_expects_is_not_held() -> None:
    async def nothing(stage: Stage) -> None:
        stage.expect("what never happens", lambda: False, within_s=1.0)

    outcome = simulated(Attack("nothing", "", nothing, 4, 0), SHORT_S)
    assert outcome.failure is not None and "what never happens" in outcome.failure
