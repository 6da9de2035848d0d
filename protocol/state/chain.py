"""The record chain: what a record is called, when it is certified, which of two chains is the run's.

Pure functions over `protocol.wire.messages`.  A chain begins at the genesis tip, a hash of the run; each record names
the tip it stands on, and its hash is the next tip.  Certificates are verified here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from protocol.state.base import Base, RoundSettings
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import is_authentic, rebuild
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import PeerId
from protocol.wire.masks import members_in
from protocol.wire.messages import Certificate, ChunkEntry, Commit, Record, Vote

FINAL_ROUNDS = 100
"""A chain of so many rounds is not given up for one that shares nothing with it."""


def genesis_tip(run: Hash) -> Hash:
    """The tip before the first round."""
    return hash_bytes("genesis", run)


def record_hash(record: Record) -> Hash:
    """The tip after this record."""
    return hash_bytes("record", record.encode())


def index_root(entries: Sequence[ChunkEntry]) -> Hash:
    """The name of a result: of all its chunks' hashes and masks."""
    return hash_bytes("index", canonical.encode([[entry.hash, entry.mask] for entry in entries]))


def quorum_size(voters: int) -> int:
    """A majority."""
    return voters // 2 + 1


def effective_electorate(previous: Record | None, record: Record, evicted: Iterable[str]) -> tuple[PeerId, ...]:
    """Who votes: the members of the previous record less the evicted; if nobody is left, the record's own members."""
    gone = set(evicted)
    stay = tuple(PeerId(member.peer) for member in previous.members if member.peer not in gone) if previous else ()
    return stay or tuple(PeerId(member.peer) for member in record.members)


def verify_record(settings: RoundSettings, record: Record, index: Sequence[ChunkEntry], base: Base) -> None:
    """Whether a record makes sense as the next one on `base`; raises `Malformed` with the reason."""
    previous = base.previous
    if record.round != base.round or record.previous != base.tip:
        raise Malformed("a record that does not stand on this tip")
    if previous is not None and previous.round != base.round - 1:
        raise Malformed("a record whose predecessor is another round")
    if record.fragment != base.fragment or record.codec != settings.codec:
        raise Malformed("a record of another fragment or codec than the round's")
    peers = [member.peer for member in record.members]
    if peers != sorted(set(peers)) or not settings.min_members <= len(peers) <= settings.max_members:
        raise Malformed("a record whose members are not sorted, too few or too many")
    if any(member.tokens > settings.max_tokens for member in record.members):
        raise Malformed("a record that credits a member with more tokens than a round has")
    if len(index) != settings.chunks or index_root(index) != record.result_root:
        raise Malformed("a record whose chunks do not match its result root")
    for entry in index:
        members_in(entry.mask, len(peers))


def verify_certificate(run: Hash, record: Record, previous: Record | None, certificate: Certificate) -> None:
    """Whether a quorum of the electorate signed this record; raises `Malformed` with the reason."""
    evicted = list(certificate.evicted)
    electors = {member.peer for member in previous.members} if previous else set()
    if evicted != sorted(set(evicted)) or not set(evicted) <= electors:
        raise Malformed("a certificate that evicts others than electors")
    voters = effective_electorate(previous, record, evicted)
    signers = [vote.peer for vote in certificate.votes]
    if signers != sorted(set(signers)) or not set(signers) <= set(voters):
        raise Malformed("a certificate with signatures of others than electors")
    if len(signers) < quorum_size(len(voters)):
        raise Malformed(f"a certificate with {len(signers)} of the {quorum_size(len(voters))} votes it needs")
    vote = Vote(
        round=record.round,
        attempt=certificate.attempt,
        proposer=certificate.proposer,
        evicted=evicted,
        record_hash=record_hash(record),
    )
    body = vote.encode()
    for signature in certificate.votes:
        if not is_authentic(rebuild(run, Vote.KIND, PeerId(signature.peer), body, signature.signature)):
            raise Malformed("a certificate with a false signature")


def verify_commit(settings: RoundSettings, commit: Commit, base: Base) -> None:
    """Record, index and certificate together; raises `Malformed`."""
    verify_record(settings, commit.record, commit.index, base)
    verify_certificate(settings.run, commit.record, base.previous, commit.certificate)


def prefer(common: Record | None, ours: Sequence[Commit], theirs: Sequence[Commit]) -> bool:
    """Fork choice: whether `theirs` wins over `ours`, both verified and both beginning after the last common record.

    At the first record: more signers from the common electorate (a majority always beats those who went on without
    it); then the greater sum of committed tokens over the branch; then the lower tip hash.  Total and antisymmetric.

    Where no elector is common, nothing but claims of tokens could decide, and anybody can sign a long chain from genesis
    alone: a branch of `FINAL_ROUNDS` stays with whoever holds it.
    """
    if not theirs or not ours:
        return bool(theirs)
    if common is None and len(ours) >= FINAL_ROUNDS:
        return False
    return _rank(common, theirs) < _rank(common, ours)


def _rank(common: Record | None, branch: Sequence[Commit]) -> tuple[int, int, bytes]:
    electors = {member.peer for member in common.members} if common else set()
    signers = sum(vote.peer in electors for vote in branch[0].certificate.votes)
    tokens = sum(member.tokens for commit in branch for member in commit.record.members)
    return -signers, -tokens, record_hash(branch[-1].record)


@dataclass(frozen=True)
class Credit:
    """What the chain credits a peer with.  tokens: weighted by the share of its chunks that were averaged."""

    rounds: int
    tokens: int


def ledger(commits: Iterable[Commit]) -> Mapping[PeerId, Credit]:
    """Tokens and rounds of every member over these rounds; everybody who holds the chain gets the same."""
    credits: dict[PeerId, Credit] = {}
    for commit in commits:
        members = commit.record.members
        included = [0] * len(members)
        for entry in commit.index:
            for index in members_in(entry.mask, len(members)):
                included[index] += 1
        for member, chunks in zip(members, included, strict=True):
            peer = PeerId(member.peer)
            old = credits.get(peer, Credit(0, 0))
            share = member.tokens * chunks // len(commit.index)
            credits[peer] = Credit(old.rounds + (chunks > 0), old.tokens + share)
    return credits
