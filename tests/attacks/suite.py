"""All attacks, by name."""

from __future__ import annotations

from tests.attacks import accusations, cabals, certificates, crowds, exchanges, histories, proposers, voters
from tests.attacks.attack import Attack, Outcome, carry_out

MODULES = (certificates, proposers, voters, exchanges, crowds, accusations, histories, cabals)
SIMULATED: dict[str, Attack] = {attack.name: attack for module in MODULES for attack in module.ATTACKS}


def run_named(name: str) -> Outcome:
    """What comes of the attack with this name."""
    return carry_out(SIMULATED[name])
