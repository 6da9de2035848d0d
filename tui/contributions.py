"""Contributions of all peers by the run's records, as the peer's ledger counts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class PeerCredit:
    """Credit of one peer by the records.

    rank: its place by tokens, from 1.  rounds, tokens, share: its rounds and tokens as a member, and its share of the
    tokens.  batches, accepted_tokens: batches and tokens of its rollouts from which members learned.
    """

    rank: int
    rounds: int
    tokens: int
    share: float
    batches: int
    accepted_tokens: int


@dataclass(frozen=True)
class Contributions:
    """Contributions by peer ID.  peers: number of peers that contributed, which may be larger."""

    peers: int = 0
    of: Mapping[str, PeerCredit] = field(default_factory=dict)

    @classmethod
    def from_fields(cls, given: Mapping[str, Any]) -> Self:
        """Return the content of the answer to `ledger`.  Raises ValueError if the fields are not such an answer."""
        try:
            found = {
                str(each["peer"]): PeerCredit(
                    rank,
                    int(each["rounds"]),
                    int(each["tokens"]),
                    float(each["share"]),
                    int(each["batches"]),
                    int(each["accepted_tokens"]),
                )
                for rank, each in enumerate(given["members"], 1)
            }
            return cls(len(found) + int(given["untold"]), found)
        except (TypeError, LookupError, OverflowError) as error:
            raise ValueError(f"no ledger: {error}") from error

    def to_fields(self) -> dict[str, Any]:
        """Return the fields of an answer to `ledger`."""
        members = [
            {"peer": peer, **{name: value for name, value in vars(each).items() if name != "rank"}}
            for peer, each in self.of.items()
        ]
        return {"members": members, "untold": self.peers - len(members)}
