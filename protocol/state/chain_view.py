"""How a chain of records looks to its readers, whether it is ours or a branch beside it."""

from __future__ import annotations

from typing import Protocol

from protocol.wire.hashes import Hash
from protocol.wire.messages import Commit


class Chain(Protocol):
    """Records from genesis to a tip; our own history, or a branch."""

    @property
    def length(self) -> int:
        """Rounds committed."""
        ...

    def tip_at(self, rounds: int) -> Hash:
        """The tip after `rounds` rounds, at most `length`."""
        ...

    def commit_at(self, round: int) -> Commit:
        """The commit of a round below `length`.  Blocking."""
        ...
