"""The run that figures are compared with: one that the person names, the one of the peer here, or the demo."""

from __future__ import annotations

from pathlib import Path

from peer.control.client import ControlClient, ControlError
from peer.errors import ExitCode, PeerError
from peer.joining.run_source import find_run, read_manifest, stored_manifest
from protocol.events.status import PeerStatus
from protocol.run.invitation import Invitation
from protocol.run.manifest import SignedManifest, demo_manifest
from protocol.wire.hashes import Hash


def chosen(word: str | None, folder: Path) -> tuple[SignedManifest, PeerStatus | None]:
    """The run, and the status of the peer here if it takes part in it.

    word: a run's name, or whatever `peer join` and `peer run show` take.  folder: the data directory.  Raises PeerError.
    """
    status = _status(folder)
    if word is None:
        signed = stored_manifest(Hash(bytes.fromhex(status.run)), folder) if status is not None else None
        signed = signed or demo_manifest()
    else:
        signed = _named(word, folder)
    return signed, status if status is not None and status.run == signed.run.hex() else None


def _status(folder: Path) -> PeerStatus | None:
    try:
        return ControlClient(folder).status()
    except ControlError:
        return None


def _named(word: str, folder: Path) -> SignedManifest:
    manifests = [read_manifest(path) for path in sorted(folder.glob("runs/*/manifest"))]
    named = [signed for signed in manifests if signed.manifest.name == word]
    if len(named) > 1:
        raise PeerError(f"{len(named)} runs are called {word[:80]}; give the run ID", ExitCode.INPUT)
    if named or word == demo_manifest().manifest.name:
        return named[0] if named else demo_manifest()
    found = find_run(word, folder)
    if not isinstance(found, Invitation):
        return found
    known = stored_manifest(Hash(found.run), folder)
    if known is None:
        raise PeerError("only the run's peers know what this invitation is to; join first: `peer join`", ExitCode.INPUT)
    return known
