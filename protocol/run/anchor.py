"""A record of the run that an invitation names: a newcomer cannot be shown another history, and a person can choose one."""

from __future__ import annotations

from typing import Annotated, Protocol

from pydantic import Field

from protocol.wire.body import Body, HashField
from protocol.wire.hashes import Hash

MAX_ROUNDS = 1 << 53


class Chain(Protocol):
    """Our chain, or a branch of it."""

    @property
    def length(self) -> int:
        """Rounds to its end."""
        ...

    def tip_at(self, rounds: int) -> Hash:
        """The tip after `rounds` rounds, at most `length`."""
        ...


class Anchor(Body):
    """After so many rounds the tip of the chain is `tip`: a final record of whoever invites, or one that it chose."""

    rounds: Annotated[int, Field(ge=1, le=MAX_ROUNDS)]
    tip: HashField

    def holds(self, chain: Chain) -> bool:
        """Whether the chain goes through this record."""
        return chain.length >= self.rounds and chain.tip_at(self.rounds) == self.tip
