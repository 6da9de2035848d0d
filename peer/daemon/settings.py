"""What a running peer is told at its start: the run, and what the person said on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from peer.console.display import Style
from peer.rests.judge import Limits
from protocol.run.anchor import Anchor
from protocol.run.manifest import SignedManifest
from protocol.run.settings import WeightSettings
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role


@dataclass(frozen=True)
class RunChoice:
    """Which run, and what an invitation added.  signed: None while only its hash is known.  admission: this peer's proof.

    anchor: a record that the run's chain goes through.
    """

    run: Hash
    organiser: PeerId
    signed: SignedManifest | None
    addresses: tuple[str, ...] = ()
    admission: bytes = b""
    anchor: Anchor | None = None

    @property
    def run_name(self) -> str:
        """Empty until the manifest is known."""
        return self.signed.manifest.name if self.signed is not None else ""


@dataclass(frozen=True)
class DaemonSettings:
    """What the person said on the command line.

    port: None for the usual one, or a free one when that is busy.  rounds: stop when so many are committed.
    local: meet only peers on this computer.  until_eof: leave when standard input ends.
    ignore_closed_output: go on when nobody reads standard output any more.
    up_limit, down_limit: bytes a second.
    only_copy: vote at once, although the data directory was copied or put back.
    weights: how much of the versions of the weights is kept.
    announce: multiaddrs at which others reach us; None for those that a provider tells.
    port_mapping: have the router open the port.  relay_rate: bytes a second that we carry for others, 0 for none.
    limits: when it rests by itself.  metrics_port: on loopback, for Prometheus.
    owners: who may watch and steer this peer from elsewhere.
    """

    data_dir: Path
    name: str
    role: Role
    style: Style
    port: int | None = None
    threads: int = 0
    rounds: int | None = None
    local: bool = False
    until_eof: bool = False
    ignore_closed_output: bool = False
    up_limit: float | None = None
    down_limit: float | None = None
    only_copy: bool = False
    weights: WeightSettings = WeightSettings()
    announce: tuple[str, ...] | None = None
    port_mapping: bool = False
    relay_rate: float = 1.25e6
    limits: Limits = Limits()
    metrics_port: int | None = None
    owners: tuple[PeerId, ...] = ()
