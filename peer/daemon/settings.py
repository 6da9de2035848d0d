"""Input of a running peer at its start: the run, and the settings of the command line."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from peer.console.display import Style
from peer.errors import PeerError
from peer.files import LockHeld, locked
from peer.joining.run_source import DEFAULT_PORT, find_run, stored_manifest
from peer.paths import runtime_dir
from peer.settings.file import Settings
from protocol.run.invitation import Anchor, Invitation
from protocol.run.manifest import SignedManifest, demo_manifest
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role

# ------------------------------------------------------------------------------------------------------------------------
# Choice of the TCP port on which a peer listens.
#
# Only one peer of a computer has the usual port, which invitations name and people open in their routers.  Further peers
# use a free port.  A lock decides between peers that start at the same moment, because the library would silently let them
# share a port.


FREE = 0


@contextmanager
def chosen_port(wanted: int | None, local: bool) -> Iterator[int]:
    """Yield the port to listen on, reserved for us within the block; `FREE` lets the system choose.

    wanted: the person's choice; None for the usual port, or for a free port if the usual one is taken or `local` is set.
    """
    if wanted is not None or local:
        yield FREE if wanted is None else wanted
        return
    with ExitStack() as stack:
        port = FREE
        with suppress(LockHeld, OSError, PeerError):  # another peer has the lock, or another program the port
            stack.enter_context(locked(runtime_dir() / f"port-{DEFAULT_PORT}.lock"))
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("0.0.0.0", DEFAULT_PORT))  # noqa: S104 - where the peer will listen
                probe.listen(1)
            port = DEFAULT_PORT
        yield port


# ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunChoice:
    """The chosen run.  signed: None while only the run's hash is known.  admission: this peer's proof, from an invitation.

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
class LeaveConditions:
    """Conditions under which a peer leaves by itself.

    rounds: leave after this many committed rounds; None for no such limit.  until_end: leave when the run has ended.
    until_eof: leave when standard input has ended.  ignore_closed_output: continue although standard output has no reader
    any more.
    """

    rounds: int | None = None
    until_end: bool = False
    until_eof: bool = False
    ignore_closed_output: bool = False


@dataclass(frozen=True)
class DaemonSettings:
    """Settings of a running peer.

    live: a person's settings, some of which may change while the peer runs.  local: meet only peers on this computer.
    only_copy: vote at once, although the data directory was copied or restored.
    """

    data_dir: Path
    style: Style
    live: Settings
    leave: LeaveConditions = LeaveConditions()
    local: bool = False
    only_copy: bool = False

    @property
    def role(self) -> Role | None:
        """Role that the person chose; None for the role that the run and this computer allow."""
        role = self.live.now.role
        return None if role == "auto" else Role(role)

    def name_of(self, peer: PeerId) -> str:
        """Return this peer's name, made from its ID if the person gave no name."""
        return self.live.now.name or f"peer-{peer[-6:]}"


# ------------------------------------------------------------------------------------------------------------------------
# Choice of the run to join, by the word on the command line.


def choose(what: str | None, folder: Path, peer: PeerId) -> RunChoice:
    """Return the run that `what` names.  Raises PeerError or Malformed.

    what: an invitation, a run file, a manifest, or a stored run's ID; None for the demo.
    """
    found = demo_manifest() if what is None else find_run(what, folder, founding=True)
    if not isinstance(found, Invitation):
        return RunChoice(found.run, PeerId(found.manifest.organiser), found)
    known = stored_manifest(Hash(found.run), folder)
    addresses, proof = tuple(found.addresses), found.proof_for(peer)
    return RunChoice(Hash(found.run), PeerId(found.organiser), known, addresses, proof, found.anchor)
