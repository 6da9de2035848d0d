"""Whether this peer may take part in a run, as its own computer can tell before anybody else is asked."""

from __future__ import annotations

from pathlib import Path

from protocol.run.admission import admit, version_problem
from protocol.run.manifest import RunManifest
from protocol.state.base import round_settings
from protocol.state.history import History
from protocol.state.store import Store
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Role


def standing_problem(
    manifest: RunManifest, run: Hash, peer: PeerId, token: bytes | None, wall_now: float, role: Role, folder: Path
) -> str | None:
    """Why `peer` may not take part, as a sentence; None when it may.  Blocking.

    wall_now: unix seconds.  folder: the run's, with what earlier lives kept.  A member of a record stays one; a peer that
    voted in a round and left may be in a record that it has not seen, so then the others decide.
    """
    problem = version_problem(manifest)
    if problem is not None:
        return problem
    problem = admit(manifest, peer, token, wall_now, role=role)
    if problem is not None and (folder / "records").is_dir():
        store = Store(folder)
        member = History(round_settings(run, manifest), store).has_member(peer) or store.votes.any()
        return admit(manifest, peer, token, wall_now, role=role, member=member)
    return problem
