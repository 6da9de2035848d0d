"""Measured figures as plain numbers: the one JSON object, and the source of the table."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class CodecSpeed:
    """Speed of the codec on one core, over fp32 values of 4 bytes each."""

    encode_parameters_per_s: float
    decode_parameters_per_s: float
    encode_mb_per_s: float
    decode_mb_per_s: float


@dataclass(frozen=True)
class ExchangeSpeed:
    """Speed of an exchange between `peers` peers in one process, over real sockets on loopback."""

    parameters_per_s: float
    peers: int
    parameters: int


@dataclass(frozen=True)
class TrainingSpeed:
    """Training speed of the demo run's model in a real trainer.  device: where it computed."""

    tokens_per_s: float
    device: str
    threads: int
    parameters: int
    steps: int


@dataclass(frozen=True)
class DiskSpeed:
    """Speed of writing, then of reading, in the data directory.  read_is_cached: reads could not bypass the page cache."""

    write_bytes_per_s: float
    read_bytes_per_s: float
    bytes_moved: int
    read_is_cached: bool


@dataclass(frozen=True)
class PeerLine:
    """Line from one peer to here.  problem: why nothing came; else empty."""

    peer: str
    name: str
    down_bytes: int
    down_bytes_per_s: float
    problem: str


@dataclass(frozen=True)
class LineSpeed:
    """Speed of the lines to some peers of a run.  up_bytes_per_s: observed in pushes to them, or this peer's cap if none
    was observed; 0 if neither is known."""

    run: str
    peers: list[PeerLine]
    up_bytes_per_s: float

    @property
    def down_bytes_per_s(self) -> float:
        """Highest rate at which a peer sent; 0 if none sent anything."""
        return max((line.down_bytes_per_s for line in self.peers), default=0.0)


@dataclass
class Figures:
    """Measured figures; `missing` has the reasons for the others, by name."""

    codec: CodecSpeed | None = None
    exchange: ExchangeSpeed | None = None
    training: TrainingSpeed | None = None
    disk: DiskSpeed | None = None
    lines: LineSpeed | None = None
    missing: dict[str, str] = field(default_factory=dict)

    def to_fields(self) -> dict[str, Any]:
        """Return the figures as a map of maps."""
        fields = asdict(self)
        if self.lines is not None:
            fields["lines"]["down_bytes_per_s"] = self.lines.down_bytes_per_s
        return fields
