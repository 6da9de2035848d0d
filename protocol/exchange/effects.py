"""The effects of the exchange machine: actions that `protocol.exchange.runner` performs, in the order of the list."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.wire.identity import PeerId


@dataclass(frozen=True)
class SendPart:
    """Push our part of a chunk."""

    to: PeerId
    chunk: int


@dataclass(frozen=True)
class SendResult:
    """Push the average of a chunk with its owner's statement."""

    to: PeerId
    chunk: int


@dataclass(frozen=True)
class Reduce:
    """Average these members' parts of a chunk (indices in the plan, ascending), then say `Averaged`."""

    chunk: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class Ask:
    """Ask a peer for the result of a chunk, or for its part."""

    peer: PeerId
    chunk: int


@dataclass(frozen=True)
class Lost:
    """This member is not waited for any more."""

    peer: PeerId


@dataclass(frozen=True)
class Done:
    """All results are here."""


ExchangeEffect = SendPart | SendResult | Reduce | Ask | Lost | Done
