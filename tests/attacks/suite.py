"""All attacks, by name."""

from __future__ import annotations

from tests.attacks import (
    accusations,
    admissions,
    cabals,
    certificates,
    crowds,
    exchanges,
    histories,
    newcomers,
    peeking,
    proposers,
    resources,
    standing,
    voters,
)
from tests.attacks.attack import Attack, Outcome, carry_out

MODULES = (
    certificates,
    proposers,
    voters,
    exchanges,
    crowds,
    accusations,
    histories,
    admissions,
    cabals,
    standing,
    newcomers,
    peeking,
)
SIMULATED: dict[str, Attack] = {attack.name: attack for module in MODULES for attack in module.ATTACKS}


BURDENS = {burden.name: burden for burden in resources.BURDENS}


def run_named(name: str) -> Outcome:
    """What comes of the attack with this name."""
    if name in BURDENS:
        return resources.bear(BURDENS[name])
    return carry_out(SIMULATED[name])
