"""How long a run is: one number, in tokens or in rounds, from which its learning rate follows as well."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Unit(StrEnum):
    """What the total of a run counts."""

    TOKENS = "tokens"
    ROUNDS = "rounds"


@dataclass(frozen=True)
class Goal:
    """The end of a run.  total: in `unit`, of all members together.  cooldown: share of it in which the rate comes down."""

    unit: Unit
    total: int
    cooldown: float
