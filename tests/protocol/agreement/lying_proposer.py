"""A proposer that lies, played by a test: it makes plans, records and certificates from what it really heard."""

from __future__ import annotations

from protocol.chain.records import index_root, record_hash
from protocol.wire.envelope import Body
from protocol.wire.hashes import ZERO_HASH, chunk_hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import (
    Certificate,
    ChunkEntry,
    Plan,
    PrevoteCertificate,
    Proposal,
    RecordProposal,
    Step,
    Vote,
    member_of,
)
from tests.protocol.agreement.parliament import Parliament, first_proposer, put_to_the_vote
from tests.protocol.council import certificate_of, signed


class LyingProposer:
    """The proposer of attempt 0 of four, of whom it is one; it has the view changes of the others."""

    def __init__(self, parliament: Parliament | None = None) -> None:
        self.parliament = parliament or Parliament(4)
        self.peer = first_proposer(self.parliament)
        self.others = [peer for peer in self.parliament.seats if peer != self.peer]
        self._heard = self.parliament.make_puppet(self.peer)
        self.parliament.call()
        called = {peer: signed(peer, body) for peer, body in self._heard}
        called[self.peer] = signed(self.peer, self.parliament.view_change(0))
        self.view_changes = [called[peer] for peer in sorted(called)]

    def plan(self, owner: int) -> Plan:
        """All four, and one of them averages everything."""
        readys = self.parliament.seats[self.others[0]].machine.state.closing.readys
        members = [member_of(peer, signed.ready, signed.signature) for peer, signed in sorted(readys.items())]
        base = self.parliament.base
        return Plan(
            round=base.round,
            fragment=0,
            base=base.tip,
            members=members,
            owners=bytes((owner + chunk) % len(members) for chunk in range(3)),
            state_digest=ZERO_HASH,
        )

    def proposal(self, owner: int) -> Proposal:
        return Proposal(attempt=0, absent=[], plan=self.plan(owner), view_changes=self.view_changes)

    def record_proposal(self, version: bytes) -> RecordProposal:
        """The plan's record with averages of this version."""
        plan = self.plan(0)
        index = [ChunkEntry(hash=chunk_hash(version + bytes([chunk])), mask=b"\x0f") for chunk in range(3)]
        example = put_to_the_vote(Parliament(4))[1]
        record = example.record.model_copy(update={"members": plan.members, "result_root": index_root(index)})
        provenance = example.provenance.model_copy(update={"owners": plan.owners, "signers": plan.owners})
        return example.model_copy(
            update={
                "record": record,
                "index": index,
                "view_changes": self.view_changes,
                "proof": None,
                "provenance": provenance,
            }
        )

    def hears(self, step: Step, record_proposal: RecordProposal) -> Certificate:
        """The votes of this step for this record that it has heard, with its own."""
        name = record_hash(record_proposal.record)
        votes = {
            peer: body
            for peer, body in self._heard
            if isinstance(body, Vote) and (body.step, body.record_hash) == (step, name)
        }
        own = next(iter(votes.values()))
        votes[self.peer] = own
        return certificate_of(0, [], votes)

    def says(self, body: Body, *to: PeerId) -> None:
        """And they hear it at once; what they answer, too."""
        self.parliament.say(self.peer, body, *to)
        self.parliament.pass_on(type(body))
        self.parliament.pass_on(Vote)

    def proof(self, record_proposal: RecordProposal) -> PrevoteCertificate:
        base = self.parliament.base
        certificate = self.hears(Step.FIRST, record_proposal)
        return PrevoteCertificate(
            round=base.round, base=base.tip, record_hash=record_hash(record_proposal.record), certificate=certificate
        )

    def is_outlived(self) -> None:
        """The others come to one record."""
        self.parliament.outlives(90)
