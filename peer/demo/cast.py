"""Who takes part in a demo: a part for each peer, with its role, and whether it cheats."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from protocol.wire.presence import Role

ROLLOUT_PEERS = 2


class Cheat(str, Enum):
    """Which peer of a demo with rollouts cheats (`peer.demo.cheats` says how)."""

    ROLLOUT = "rollout"
    VALIDATOR = "validator"


@dataclass(frozen=True)
class Part:
    """One peer of a demo.  name: what it is called, and its folder.  cheat: how it cheats; None for an honest one."""

    name: str
    role: Role
    cheat: Cheat | None = None

    @property
    def program(self) -> tuple[str, ...]:
        """The module that it runs, and words before those of an ordinary peer."""
        return ("peer",) if self.cheat is None else ("peer.demo.cheats", self.cheat.value)


def only_trainers(count: int) -> tuple[Part, ...]:
    """Of a demo without rollouts."""
    return tuple(Part(f"peer-{number}", Role.TRAINER) for number in range(1, count + 1))


def with_rollouts(cheat: Cheat | None) -> tuple[Part, ...]:
    """A trainer, rollout peers and a validator.  The last of them cheats; a lying validator comes beside an honest one."""
    writers = [Part(f"rollout-{number}", Role.ROLLOUT) for number in range(1, ROLLOUT_PEERS + 1)]
    judges = [Part("validator-1", Role.VALIDATOR)]
    if cheat is Cheat.ROLLOUT:
        writers[-1] = Part(writers[-1].name, Role.ROLLOUT, cheat)
    elif cheat is Cheat.VALIDATOR:
        judges.append(Part("validator-2", Role.VALIDATOR, cheat))
    return (Part("trainer", Role.TRAINER), *writers, *judges)
