"""The run that a word on the command line means, to join it."""

from __future__ import annotations

from pathlib import Path

from peer.daemon.settings import RunChoice
from peer.joining.run_source import find_run, stored_manifest
from protocol.run.invitation import Invitation
from protocol.run.manifest import demo_manifest
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId


def choose(what: str | None, folder: Path, peer: PeerId) -> RunChoice:
    """what: an invitation, a run file, a manifest, a stored run's ID; None for the demo.  Raises PeerError or Malformed."""
    found = demo_manifest() if what is None else find_run(what, folder, founding=True)
    if not isinstance(found, Invitation):
        return RunChoice(found.run, PeerId(found.manifest.organiser), found)
    known = stored_manifest(Hash(found.run), folder)
    addresses, proof = tuple(found.addresses), found.proof_for(peer)
    return RunChoice(Hash(found.run), PeerId(found.organiser), known, addresses, proof, found.anchor)
