"""Detection of electors that contradict themselves, from a bounded memory of their statements on the newest tips.

The witness sees all statements that reach this peer about the running round and the round before it: view changes and votes
(which a proposer collects), proposals and record proposals, and the certificates in prevote certificates, commits, locks and
record proposals.  A statement that contradicts an earlier one becomes evidence, which `protocol.audit.ejection` judges like
the evidence of any other peer.  Safety does not rest on the witness: it does not catch a liar that sends different
statements to two peers that never compare them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.agreement.ballot import Ballot
from protocol.audit.evidence import (
    Claim,
    ContraryRecordProposal,
    Evidence,
    OneStatement,
    TwoStatements,
    certified,
    contradict,
    lie_of,
    slot,
    tip_of,
)
from protocol.bounds import BoundedDict
from protocol.chain.base import Base
from protocol.chain.history import History
from protocol.chain.records import record_hash
from protocol.wire.envelope import Body, Envelope, is_authentic, rebuild
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Proposal, RecordProposal, ViewChange, Vote, unpack

TIPS = 2
"""Number of the newest tips watched: the running round's tip, and the tip before it, whose last votes may still arrive."""
KEPT_STATEMENTS = 48
KEPT_BYTES = 2 << 20
"""Limit on the bytes of one elector's statements; the oldest are evicted.  The largest record proposal takes half of it."""
KEPT_CERTIFICATES = 8
"""Number of certificates kept for each elector that sent them."""


@dataclass(frozen=True)
class _Statement:
    """One signed statement.  body: None for a large statement, which is decoded again when it is compared."""

    round: int
    raw: bytes
    body: ViewChange | Vote | None


@dataclass
class _Testimony:
    """Statements that one elector has signed, and certificates that it has sent; the oldest first."""

    statements: dict[tuple[object, ...], _Statement] = field(default_factory=dict)
    claims: BoundedDict[bytes, Claim] = field(default_factory=lambda: BoundedDict(KEPT_CERTIFICATES))

    def keep(self, key: tuple[object, ...], statement: _Statement) -> None:
        self.statements[key] = statement
        size = sum(len(each.raw) for each in self.statements.values())
        while len(self.statements) > KEPT_STATEMENTS or size > KEPT_BYTES:
            size -= len(self.statements.pop(next(iter(self.statements))).raw)

    def claim(self, claim: Claim) -> bool:
        """Keep a certificate, and return True if it is new."""
        name = claim.vote.encode()
        is_new = name not in self.claims
        self.claims.setdefault(name, claim)
        return is_new

    def forget_before(self, round: int) -> None:
        self.statements = {key: each for key, each in self.statements.items() if each.round >= round}
        for name in [name for name, each in self.claims.items() if each.vote.round < round]:
            del self.claims[name]


class Witness:
    """Witness of one node.  max_members: the most members of a round."""

    def __init__(self, run: Hash, history: History, max_members: int) -> None:
        self._run, self._history, self._max_members = run, history, max_members
        self._testimonies: dict[PeerId, _Testimony] = {}
        self._oldest = 0
        """Number of the first round whose tip is watched."""

    def hear(self, sender: PeerId, body: Body, envelope: Envelope) -> list[Evidence]:
        """Record a statement with a verified signature; return evidence of the lies that it shows, for the judge."""
        tip = tip_of(body)
        base = self._history.base_at(*tip) if tip is not None else None
        oldest = max(0, self._history.length + 1 - TIPS)
        if oldest != self._oldest:
            self._oldest = oldest
            for each in self._testimonies.values():
                each.forget_before(oldest)
            self._testimonies = {peer: each for peer, each in self._testimonies.items() if each.statements or each.claims}
        if base is None or base.round < self._oldest or sender not in base.electors:
            return []
        testimony = self._testimonies.setdefault(sender, _Testimony())
        lies: list[Evidence] = []
        if isinstance(body, ViewChange | Vote | Proposal | RecordProposal):
            lies += self._on_statement(base, sender, body, envelope.raw, testimony)
        claim = certified(body)
        if claim is not None and testimony.claim(claim):
            lies += self._on_claim(base, claim)
        return lies

    # -- statements of electors ---------------------------------------------------------------------------------------

    def _on_statement(
        self,
        base: Base,
        sender: PeerId,
        body: ViewChange | Vote | Proposal | RecordProposal,
        raw: bytes,
        testimony: _Testimony,
    ) -> list[Evidence]:
        key = slot(body) or ("roll", tip_of(body), body.attempt)
        known = testimony.statements.get(key)
        if known is not None and known.raw == raw:
            return []  # sent again
        if lie_of(self._run, sender, body, base, self._max_members) is not None:
            return [OneStatement(statement=raw)]
        if isinstance(body, ViewChange | Vote):
            comparable = [each for each in testimony.statements.values() if each.body is not None]
        else:
            keys = [key, ("record proposal" if isinstance(body, Proposal) else "proposal", *key[1:])]
            comparable = [testimony.statements[each] for each in keys if each in testimony.statements]
        for other in comparable:
            if contradict(sender, other.body or unpack(other.raw, self._run)[1], body, base):
                return [TwoStatements(first=other.raw, second=raw)]
        if known is None:
            testimony.keep(key, _Statement(base.round, raw, body if isinstance(body, ViewChange | Vote) else None))
        if isinstance(body, Vote):
            rivals = [each for each in self._claims(body.attempt) if slot(each.vote) == slot(body) and each.vote != body]
            others = [self._vote_in(rival, sender) for rival in rivals]
            return [TwoStatements(first=other, second=raw) for other in others if other is not None]
        if isinstance(body, RecordProposal):
            cases = [self._against_record_proposal(claim, body, raw) for claim in self._claims(body.attempt)]
            return [case for case in cases if case is not None]
        return []

    # -- votes in certificates ----------------------------------------------------------------------------------------

    def _claims(self, attempt: int) -> list[Claim]:
        claims = [claim for testimony in self._testimonies.values() for claim in testimony.claims.values()]
        return [claim for claim in claims if claim.vote.attempt == attempt]

    def _on_claim(self, base: Base, claim: Claim) -> list[Evidence]:
        """Return evidence from votes, certificates and the record proposal that contradict a certificate."""
        lies: list[Evidence] = []
        rivals = [each for each in self._claims(claim.vote.attempt) if slot(each.vote) == slot(claim.vote)]
        rivals = [each for each in rivals if each.vote != claim.vote]
        for each in claim.certificate.votes:
            voter = PeerId(each.peer)
            others = [self._vote_in(rival, voter) for rival in rivals]
            testimony = self._testimonies.get(voter)
            kept = testimony.statements.get(slot(claim.vote) or ()) if testimony is not None else None
            if kept is not None and kept.body != claim.vote:
                others.append(kept.raw)
            other = next((raw for raw in others if raw is not None), None)
            if other is None:
                continue
            ours = self._vote_in(claim, voter)
            if ours is None:
                break  # the certificate is forged
            lies.append(TwoStatements(first=other, second=ours))
        proposer = Ballot(base, claim.vote.attempt).proposer if base.electors else None
        statements = self._testimonies[proposer].statements if proposer in self._testimonies else {}
        kept = statements.get(("record proposal", tip_of(claim.vote), claim.vote.attempt))
        proposal = unpack(kept.raw, self._run)[1] if kept is not None else None
        if kept is not None and isinstance(proposal, RecordProposal):
            case = self._against_record_proposal(claim, proposal, kept.raw)
            lies += [case] if case is not None else []
        return lies

    def _against_record_proposal(self, claim: Claim, proposal: RecordProposal, raw: bytes) -> ContraryRecordProposal | None:
        """Return evidence if a certificate of the whole electorate, in the same ballot, is for another record."""
        vote = claim.vote
        if vote.absent or proposal.absent or (vote.attempt, (vote.round, vote.base)) != (proposal.attempt, tip_of(proposal)):
            return None
        if vote.record_hash == record_hash(proposal.record):
            return None
        return ContraryRecordProposal(
            motion=raw, record_hash=vote.record_hash, step=vote.step, certificate=claim.certificate
        )

    def _vote_in(self, claim: Claim, voter: PeerId) -> bytes | None:
        """Return the signed vote of one signer of a certificate, as an envelope; None if it is missing or forged."""
        for each in claim.certificate.votes:
            if each.peer == voter:
                vote = rebuild(self._run, Vote.KIND, voter, claim.vote.encode(), each.signature)
                return vote.raw if is_authentic(vote) else None
        return None
