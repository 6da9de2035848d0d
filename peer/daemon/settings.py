"""Input of a running peer at its start: the run, and the settings of the command line."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from peer.console.display import Style
from peer.errors import PeerError
from peer.files import LockHeld, locked
from peer.joining.run_source import DEFAULT_PORT, find_run, stored_manifest
from peer.paths import runtime_dir
from peer.settings.file import LiveSettings
from protocol.run.invitation import Anchor, Invitation
from protocol.run.manifest import SignedManifest, demo_manifest
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role

# ------------------------------------------------------------------------------------------------------------------------
# Choice of the TCP port on which a peer listens.
#
# Only one peer of a computer has the usual port: invitations name it and people open it in their routers.  Further peers
# take a free one.  A lock decides between peers that start at the same moment, because the library would let them share
# a port silently.


FREE = 0


@contextmanager
def chosen_port(wanted: int | None, local: bool) -> Iterator[int]:
    """Yield the port to listen on, ours within the block; `FREE` lets the system choose.

    wanted: the person's choice; None for the usual port, or for a free one if that is taken or if only `local` peers meet.
    """
    if wanted is not None or local:
        yield FREE if wanted is None else wanted
        return
    with ExitStack() as stack:
        yield DEFAULT_PORT if _take(DEFAULT_PORT, stack) and _is_free(DEFAULT_PORT) else FREE


def _take(port: int, stack: ExitStack) -> bool:
    """Hold the lock on `port` among this user's peers until `stack` closes; False if another peer holds it."""
    try:
        stack.enter_context(locked(runtime_dir() / f"port-{port}.lock"))
    except (LockHeld, OSError, PeerError):
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104 - where the peer will listen
            probe.listen(1)
        except OSError:
            return False
    return True


# ------------------------------------------------------------------------------------------------------------------------


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
