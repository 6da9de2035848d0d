"""What the exchange machine is told."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry


@dataclass(frozen=True)
class PartArrived:
    """A verified part.  From a peer that takes us for the owner of a chunk we have, it is a wish for the result."""

    peer: PeerId
    chunk: int


@dataclass(frozen=True)
class ResultArrived:
    """A verified result, from its owner or from somebody who passes it on."""

    peer: PeerId
    chunk: int
    entry: ChunkEntry


@dataclass(frozen=True)
class Averaged:
    """Our average of a chunk is complete."""

    chunk: int
    entry: ChunkEntry
