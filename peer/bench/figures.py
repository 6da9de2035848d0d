"""What was measured, as plain numbers: the one JSON object, and what the table is made from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class CodecSpeed:
    """Of one core, over fp32 values of 4 bytes each."""

    encode_parameters_per_s: float
    decode_parameters_per_s: float
    encode_mb_per_s: float
    decode_mb_per_s: float


@dataclass(frozen=True)
class ExchangeSpeed:
    """Of an exchange between `peers` peers in one process, over its real sockets on loopback."""

    parameters_per_s: float
    peers: int
    parameters: int


@dataclass(frozen=True)
class TrainingSpeed:
    """Of the demo run's model in a real trainer.  device: where it computed."""

    tokens_per_s: float
    device: str
    threads: int
    parameters: int
    steps: int


@dataclass(frozen=True)
class DiskSpeed:
    """In the data directory, one after the other.  read_is_cached: the system could not be kept from using its memory."""

    write_bytes_per_s: float
    read_bytes_per_s: float
    bytes_moved: int
    read_is_cached: bool


@dataclass(frozen=True)
class PeerLine:
    """From one peer to here.  problem: why nothing came; else empty."""

    peer: str
    name: str
    down_bytes: int
    down_bytes_per_s: float
    problem: str


@dataclass(frozen=True)
class LineSpeed:
    """Of the lines to some peers of a run.  up_bytes_per_s: what pushes to them were seen to
    carry, or this peer's cap while they were not; 0 when neither is known."""

    run: str
    peers: list[PeerLine]
    up_bytes_per_s: float

    @property
    def down_bytes_per_s(self) -> float:
        """The best that a peer sent; 0 when none sent anything."""
        return max((line.down_bytes_per_s for line in self.peers), default=0.0)


@dataclass
class Figures:
    """Those that were measured; `missing` has the reasons for the others, by name."""

    codec: CodecSpeed | None = None
    exchange: ExchangeSpeed | None = None
    training: TrainingSpeed | None = None
    disk: DiskSpeed | None = None
    lines: LineSpeed | None = None
    missing: dict[str, str] = field(default_factory=dict)

    def to_fields(self) -> dict[str, Any]:
        """A map of maps."""
        fields = asdict(self)
        if self.lines is not None:
            fields["lines"]["down_bytes_per_s"] = self.lines.down_bytes_per_s
        return fields
