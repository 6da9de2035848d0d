"""The record chain: names of records, their certification, and the choice between two chains.

Pure functions over `protocol.wire.messages`.  A chain begins at the genesis tip, a hash of the run; each record names the
tip it stands on, and its hash is the next tip.  Certificates are verified only here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from protocol.chain.base import Base, RoundSettings
from protocol.chain.electorate import check_admissions, quorum_size
from protocol.chain.leases import MAX_COLUMN, count_rows, stretches_from, stretches_in
from protocol.run.manifest import RunManifest
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import is_authentic, rebuild
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import PeerId
from protocol.wire.messages import (
    Certificate,
    ChunkEntry,
    Commit,
    Learned,
    Member,
    Ready,
    Record,
    Signature,
    Step,
    Vote,
    check_learned,
    check_losses,
    members_in,
    ready_of,
    weights_in,
)

# ------------------------------------------------------------------------------------------------------------------------
# The read interface of a chain of records, for our own chain and for branches.


class Chain(Protocol):
    """Records from genesis to a tip; our own history, or a branch."""

    @property
    def length(self) -> int:
        """Number of committed rounds."""
        ...

    def tip_at(self, rounds: int) -> Hash:
        """Return the tip after `rounds` rounds, at most `length`."""
        ...

    def commit_at(self, round: int) -> Commit:
        """Return the commit of a round below `length`.  Blocking."""
        ...


# ------------------------------------------------------------------------------------------------------------------------


def genesis_tip(run: Hash) -> Hash:
    """Return the tip before the first round."""
    return hash_bytes("genesis", run)


def record_hash(record: Record) -> Hash:
    """Return the tip after this record."""
    return hash_bytes("record", record.encode())


def encoded_record_hash(commit: bytes) -> Hash | None:
    """Return the tip after the record of an encoded `Commit`, without decoding it; None if the bytes have no record."""
    place = canonical.place_of(commit, "record")
    return hash_bytes("record", commit[place]) if place is not None else None


def index_root(entries: Sequence[ChunkEntry]) -> Hash:
    """Return the name of a result: a hash of all its chunks' hashes and masks."""
    return hash_bytes("index", canonical.encode([[entry.hash, entry.mask] for entry in entries]))


def verify_record(settings: RoundSettings, record: Record, index: Sequence[ChunkEntry], base: Base) -> None:
    """Check that a record is valid as the next one on `base`; raises `Malformed` with the reason."""
    if record.round != base.round or record.previous != base.tip:
        raise Malformed("a record that does not stand on this tip")
    if record.fragment != base.fragment or record.codec != settings.codec:
        raise Malformed("a record of another fragment or codec than the round's")
    if len(index) != settings.chunks or index_root(index) != record.result_root:
        raise Malformed("a record whose chunks do not match its result root")
    for entry in index:
        members_in(entry.mask, len(record.members))
    verify_members(settings, record.members, base, record.state)
    base.check_amendment(settings.run, settings.manifest, record.amendment)


def verify_members(settings: RoundSettings, members: Sequence[Member], base: Base, state: bytes) -> None:
    """Check the members of a round on `base`; raises `Malformed` with the reason.

    The members must be in order and admitted, and each must have signed its READY on this state.  No two of them read the
    same rows, unless the run permits no smaller record: otherwise peers whose leases are equal could hold up a run for ever.
    state: the state's name.
    """
    peers = [member.peer for member in members]
    if peers != sorted(set(peers)) or not settings.min_members <= len(peers) <= settings.max_members:
        raise Malformed("members that are not sorted, too few or too many")
    for member in members:
        check_claims(settings.manifest, base, PeerId(member.peer), member)
    if len(peers) > settings.min_members and base.shares_slots(settings.manifest, [PeerId(peer) for peer in peers]):
        raise Malformed("two members that read the same rows")
    if (weights_in(state) is not None) != (settings.manifest.rl is not None):
        raise Malformed("the root of bf16 weights in a run without rollouts, or none in a run with them")
    if any((member.against or 0).bit_length() > len(base.tasks.sets) for member in members):
        raise Malformed("a member that votes against a set of tasks that does not exist")
    for member in members:
        ready = ready_of(member, base.round, base.fragment, base.tip, state)
        statement = rebuild(settings.run, Ready.KIND, PeerId(member.peer), ready.encode(), member.signature)
        if not is_authentic(statement):
            raise Malformed("a member that did not send READY")
    check_admissions(settings.manifest, settings.run, base.round, members, base.known, base.uses)


def check_claims(manifest: RunManifest, base: Base, peer: PeerId, said: Ready | Member) -> None:
    """Raise `Malformed` with the reason if `peer` cannot have learned from these rollouts, or from so many steps or tokens.

    A member that votes against a task set may name no rollouts: once no peer has the set, there are no rollouts, and the
    record that drops the set has to be made without them.
    """
    learned, learns = said.rollouts, manifest.learns_from_rollouts(base.round)
    if (learned is not None) != learns and not (learns and said.against):
        raise Malformed("a member that names rollouts in a round without rollouts, or names none in a round with rollouts")
    if learned is not None and manifest.rl is not None:
        check_learned(learned, manifest.rl.batches_per_round, manifest.rl.tokens_per_batch)
    most = most_tokens(manifest, base.round, learned)
    if learns and said.stretches:
        raise Malformed("a member that names rows in a round that learns from rollouts")
    if not learns:
        rows = base.count_leased(manifest, peer)
        if said.stretches:
            rows = _check_stretches(manifest, base, peer, said)
        if said.steps > max(1, rows // manifest.data.sequences_per_step):
            raise Malformed("a member that claims more steps than its lease has rows for")
        read = min(rows, said.steps * manifest.data.sequences_per_step)
        most = min(most, max(1, read * manifest.data.row_tokens))
    if said.receipts is not None and not manifest.receipt_bytes:
        raise Malformed("a member with receipts in a run without them")
    check_losses(said.losses, 0 if learns else len(manifest.data.sources))
    if said.tokens > most:
        raise Malformed("a member that claims more tokens than its contribution can have")


def _check_stretches(manifest: RunManifest, base: Base, peer: PeerId, said: Ready | Member) -> int:
    """Return the number of rows in the stretches that a member states; raise `Malformed` unless they are in its column."""
    stretches = stretches_in(said.stretches)
    if not manifest.leases_rows(base.round) or stretches[-1][1] > MAX_COLUMN * manifest.round_steps:
        raise Malformed("stretches in a round without leases, or beyond the end of the column")
    if said.steps > manifest.round_steps or count_rows(stretches) != said.steps or not stretches_from(stretches):
        raise Malformed("stretches that are not as long as its steps, or that are the first steps")
    rows = count_rows(base.rows_read(manifest, peer, said.steps, stretches))
    if rows != said.steps * manifest.data.sequences_per_step:
        raise Malformed("stretches of rows that do not exist")
    return rows


def most_tokens(manifest: RunManifest, round: int, learned: Learned | None) -> int:
    """Return the most tokens that a member can claim: the tokens of the batches that it names, or of a round's text."""
    if not manifest.learns_from_rollouts(round):
        return manifest.tokens_per_round
    return learned.tokens if learned is not None else 1


def voters_of(base: Base, members: Iterable[Member], absent: Sequence[str]) -> tuple[PeerId, ...]:
    """Return the voters on a record: the electors without the absent ones, or the record's members if no elector is left."""
    stay = tuple(peer for peer in base.electors if peer not in absent)
    return stay or tuple(PeerId(member.peer) for member in members)


def quorum_of(base: Base, voters: Sequence[PeerId], absent: Collection[str]) -> int:
    """Return the number of votes that certify a record: a quorum of the present electors, or a majority of the members."""
    return quorum_size(len(voters)) if set(base.electors) - set(absent) else len(voters) // 2 + 1


def verify_votes(run: Hash, base: Base, record: Record, certificate: Certificate, step: Step) -> None:
    """Check that a quorum cast the vote of `step` for this record; raises `Malformed` with the reason."""
    absent = list(certificate.absent)
    if absent != sorted(set(absent)) or not set(absent) <= set(base.electors):
        raise Malformed("a certificate that lists a non-elector as absent")
    vote = Vote(
        round=record.round,
        base=base.tip,
        attempt=certificate.attempt,
        step=step,
        absent=absent,
        record_hash=record_hash(record),
    )
    verify_quorum(run, base, voters_of(base, record.members, absent), vote, certificate.votes)


def verify_quorum(run: Hash, base: Base, voters: Sequence[PeerId], vote: Vote, votes: Sequence[Signature]) -> None:
    """Check that enough of `voters` signed `vote`; raises `Malformed` with the reason."""
    signers = [each.peer for each in votes]
    if signers != sorted(set(signers)) or not set(signers) <= set(voters):
        raise Malformed("a certificate with votes of non-electors")
    if set(signers) & set(vote.absent):
        raise Malformed("a certificate that lists one of its signers as absent")
    needed = quorum_of(base, voters, vote.absent)
    if len(signers) < needed:
        raise Malformed(f"a certificate with {len(signers)} of the {needed} votes it needs")
    body = vote.encode()
    for each in votes:
        if not is_authentic(rebuild(run, Vote.KIND, PeerId(each.peer), body, each.signature)):
            raise Malformed("a certificate with a false signature")


def is_full(certificate: Certificate) -> bool:
    """Return True if no elector was left out; a provisional record is certified without the absent electors."""
    return not certificate.absent


def verify_commit(settings: RoundSettings, commit: Commit, base: Base) -> None:
    """Verify record, index and certificate together; raises `Malformed`."""
    verify_record(settings, commit.record, commit.index, base)
    verify_votes(settings.run, base, commit.record, commit.certificate, Step.SECOND)


class Rank(NamedTuple):
    """Rank of a certified record among all records on one tip; the smaller rank is preferred.

    lacks_most: True if members with at most half of the recent work took part in the branch that begins with the record.
    unsigned: number of electors whose votes the certificate does not show.
    """

    is_provisional: bool
    lacks_most: bool
    unsigned: int
    record: Hash


def rank(electors: Sequence[PeerId], commit: Commit, *, lacks_most: bool = False) -> Rank:
    """Return the rank of a verified record.  electors: the electors of the tip that it stands on.

    The rank depends on the certificate: a peer with another certificate for the same record may rank it differently.
    """
    signers = sum(vote.peer in electors for vote in commit.certificate.votes)
    return Rank(not is_full(commit.certificate), lacks_most, len(electors) - signers, record_hash(commit.record))
