"""Check of this peer's admission to a run, on its own computer, before any other peer is asked.

The admission proof is kept in the run's folder, so that `peer join RUN` works without the invitation.  The proof is
not secret, because no other peer can use it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from peer.errors import ExitCode, PeerError
from peer.files import write_atomically
from peer.joining.run_source import environment_problem
from protocol.chain.base import round_settings
from protocol.chain.history import History
from protocol.chain.store import Store
from protocol.run.admission import admit_at_door, needs_proof, verify_admission, version_problem
from protocol.run.invitation import Anchor
from protocol.run.manifest import RunManifest
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_ADMISSION_BYTES
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role

KEPT_AS = "admission"


@dataclass(frozen=True)
class Standing:
    """Result of the check.  problem: reason why this peer may not take part; None if it may, with this admission proof."""

    problem: str | None
    admission: bytes = b""


def find_standing(
    manifest: RunManifest, run: Hash, peer: PeerId, invited_with: bytes, wall_now: float, role: Role, folder: Path
) -> Standing:
    """Check whether `peer` may take part, and return its proof for other peers.  Blocking.

    invited_with: the proof from the invitation; if it is empty, the stored proof is used.  wall_now: unix seconds.  folder:
    the run's folder, with the files of earlier starts.  A member of a record stays a member.  A peer that voted in a round
    and left may be in a record that it has not seen, so in that case the other peers decide.
    """
    problem, unknown = version_problem(manifest), environment_problem(manifest) if role is not Role.SEED else None
    if problem is None and unknown is not None:
        problem = f"this software cannot open the run's tasks ({unknown}); install the version of the run's organiser"
    elif problem is None and manifest.rl is None and role in (Role.ROLLOUT, Role.VALIDATOR):
        problem = f"the run has no rollouts, so there is nothing to do for the role {role.value}; join with --role trainer"
    if problem is not None:
        return Standing(problem)
    if not needs_proof(manifest, peer):
        refused = admit_at_door(manifest, run, peer, b"", wall_now, role=role)
        return Standing(refused if isinstance(refused, str) else None)
    kept = b""
    with suppress(OSError), (folder / KEPT_AS).open("rb") as file:
        kept = file.read(MAX_ADMISSION_BYTES)
    proofs = [proof for proof in (invited_with, kept) if proof] or [b""]
    problems = []
    for proof in proofs:
        admitted = admit_at_door(manifest, run, peer, proof, wall_now, role=role)
        if not isinstance(admitted, str):
            return Standing(None, proof)
        problems.append(admitted)
    store = Store(folder) if (folder / "records").is_dir() else None
    if store is None or not (History(round_settings(run, manifest), store).has_member(peer) or store.votes.any()):
        return Standing(problems[0])
    for proof in proofs:
        with suppress(Malformed):
            verify_admission(manifest, run, peer, proof, role=role)
            return Standing(None, proof)
    return Standing(None)


def compare_with_anchor(anchor: Anchor | None, history: History, run: Hash) -> None:
    """Raise PeerError if the final history on our disk differs from the history to which we are invited."""
    if anchor is not None and history.final >= anchor.rounds and history.tip_at(anchor.rounds) != anchor.tip:
        raise PeerError(
            f"the invitation names a history whose round {anchor.rounds - 1} differs from the one on this disk; join "
            f"with the run ID {run.hex()[:12]} to stay with it, or follow it with another --data-dir",
            ExitCode.INPUT,
        )


def keep_admission(proof: bytes, folder: Path) -> None:
    """Store a proof for later starts.  Blocking."""
    if proof:
        write_atomically(folder / KEPT_AS, proof)
