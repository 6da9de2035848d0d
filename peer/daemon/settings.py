"""Input of a running peer at its start: the run, and the settings of the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from peer.console.display import Style
from peer.joining.run_source import find_run, stored_manifest
from peer.settings.live import LiveSettings
from protocol.run.invitation import Anchor, Invitation
from protocol.run.manifest import SignedManifest, demo_manifest
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role


@dataclass(frozen=True)
class RunChoice:
    """The chosen run.  signed: None while only its hash is known.  admission: this peer's proof, from an invitation.

    anchor: a record that the run's chain contains.
    """

    run: Hash
    organiser: PeerId
    signed: SignedManifest | None
    addresses: tuple[str, ...] = ()
    admission: bytes = b""
    anchor: Anchor | None = None

    @property
    def run_name(self) -> str:
        """Name of the run; empty until the manifest is known."""
        return self.signed.manifest.name if self.signed is not None else ""


@dataclass(frozen=True)
class DaemonSettings:
    """Settings of the command line.

    role: None for the role that the run and this computer allow.
    live: settings that may change while the peer runs.
    port: None for the usual one, or for a free one if that is busy.  rounds: leave once this many are committed.
    until_end: leave when the run has ended.
    local: meet only peers on this computer.  until_eof: leave when standard input ends.
    ignore_closed_output: go on when nobody reads standard output any more.
    only_copy: vote at once, although the data directory was copied or put back.
    announce: multiaddrs at which others reach us; None for those that a provider tells.
    port_mapping: have the router open the port.  relay_rate: bytes a second that we carry for others, 0 for none.
    metrics_port: on loopback, for Prometheus.
    owners: peers that may watch and steer this one from elsewhere.
    """

    data_dir: Path
    name: str
    role: Role | None
    style: Style
    live: LiveSettings
    port: int | None = None
    rounds: int | None = None
    until_end: bool = False
    local: bool = False
    until_eof: bool = False
    ignore_closed_output: bool = False
    only_copy: bool = False
    announce: tuple[str, ...] | None = None
    port_mapping: bool = False
    relay_rate: float = 1.25e6
    metrics_port: int | None = None
    owners: tuple[PeerId, ...] = ()


# ------------------------------------------------------------------------------------------------------------------------
# Choice of the run to join, by the word on the command line.


def choose(what: str | None, folder: Path, peer: PeerId) -> RunChoice:
    """Return the run that `what` names.  what: an invitation, a run file, a manifest, a stored run's ID; None for the demo.
    Raises PeerError or Malformed."""
    found = demo_manifest() if what is None else find_run(what, folder, founding=True)
    if not isinstance(found, Invitation):
        return RunChoice(found.run, PeerId(found.manifest.organiser), found)
    known = stored_manifest(Hash(found.run), folder)
    addresses, proof = tuple(found.addresses), found.proof_for(peer)
    return RunChoice(Hash(found.run), PeerId(found.organiser), known, addresses, proof, found.anchor)
