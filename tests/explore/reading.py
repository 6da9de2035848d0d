"""Record proposals, view changes and certificates in words."""

from __future__ import annotations

from protocol.wire.envelope import MAX_VIEW_CHANGE_BYTES
from protocol.wire.messages import Certificate, LockName, RecordProposal, ViewChange, unpack
from tests.explore.council import NAMES, BallotKey, Council, Seats
from tests.protocol.council import RUN


def read_absent(council: Council, absent: list[str]) -> str:
    """Who is absent."""
    seats = council.seats(absent)
    return " without " + ", ".join(f"P{seat}" for seat in seats) if seats else ""


def read_record_proposal(council: Council, liars: Seats, proposal: RecordProposal, *, shown: bool) -> str:
    """The ballot of a record proposal; with its justification where it is `shown`."""
    ballot = BallotKey(proposal.attempt, council.seats(proposal.absent))
    text = f"attempt {proposal.attempt}{read_absent(council, proposal.absent)}"
    if not shown:
        return text
    leader = council.peers.index(council.ballot(ballot).proposer)
    view_changes = "; ".join(read_view_change(council, raw) for raw in proposal.view_changes)
    proof = f", {read_proof(council, proposal.proof)}" if proposal.proof is not None else ""
    return f"{text}: {'the liar ' if leader in liars else ''}P{leader} shows the view changes of {view_changes}{proof}"


def read_view_change(council: Council, raw: bytes) -> str:
    """Who it is of, and what it names."""
    sender, view_change, _ = unpack(raw, RUN, max_bytes=MAX_VIEW_CHANGE_BYTES)
    assert isinstance(view_change, ViewChange)
    locks = [read_lock(council, lock) for lock in (view_change.lock, view_change.reduced) if lock is not None]
    return f"P{council.peers.index(sender)} ({' and '.join(locks) or 'no lock'})"


def read_lock(council: Council, lock: LockName) -> str:
    """The record and the ballot of a lock."""
    return f"{NAMES[council.names[lock.record_hash]]} of attempt {lock.attempt}{read_absent(council, lock.absent)}"


def read_proof(council: Council, proof: Certificate) -> str:
    """Whose votes it is made of."""
    if all(vote.signature == bytes(64) for vote in proof.votes):
        return "a forged proof"
    seats = ", ".join(f"P{seat}" for seat in council.seats([vote.peer for vote in proof.votes]))
    return f"the votes of {seats} in attempt {proof.attempt}{read_absent(council, proof.absent)}"
