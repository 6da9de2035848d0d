"""All attacks, by name."""

from __future__ import annotations

from tests.attacks import certificates
from tests.attacks.attack import Attack, Outcome, carry_out

SIMULATED: dict[str, Attack] = {attack.name: attack for module in (certificates,) for attack in module.ATTACKS}


def run_named(name: str) -> Outcome:
    """What comes of the attack with this name."""
    return carry_out(SIMULATED[name])
