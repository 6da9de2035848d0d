"""Ratification: votes of the electors that were away make a provisional record full.

Pure.  A record that was certified without the absent may be given up for a full record on the same tip, together with all
records that stand on it.  When the provisional record is settled, and a full record stands on it, each elector ratifies it:
it casts a second vote for it, of the whole electorate, in the attempt `RATIFYING` of its tip.  That attempt is above all
others, and has no proposer, no first votes and no proof.  A quorum of such votes is a full certificate like any other, for
the same record.  Nothing is exchanged again.

It is safe for the same reason as the other ballots of a tip.  If another record of this tip had a full certificate, one
honest elector of any quorum would have cast a second vote for it, and still be locked on it (`protocol.agreement.voting`):
so it does not ratify.  An elector that has ratified takes part in no attempt of that tip any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.agreement.ballot import RATIFYING
from protocol.agreement.voting import blank, enter
from protocol.chain.base import Base
from protocol.chain.records import quorum_of, record_hash
from protocol.wire.envelope import is_authentic, rebuild
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Certificate, Signature, Step, Vote, VoterState


def has_ratified(kept: VoterState | None) -> bool:
    """Return True if an elector has ratified a record of this tip, which is its last vote there."""
    return kept is not None and kept.attempt == RATIFYING


def objection_to_ratify(kept: VoterState | None, record: Hash) -> str | None:
    """Return the reason why our voter state at a tip forbids us to ratify this record of it; None if it does not.

    The same record may be ratified again.
    """
    if kept is None:
        return None
    if has_ratified(kept):
        return None if kept.second == record else "we ratified another record"
    if kept.lock is not None and record_hash(kept.lock.record) != record:
        return "we are locked on another record by the whole electorate"
    return None


def ratify(kept: VoterState | None, base: Base, record: Hash) -> tuple[VoterState, Vote]:
    """Return our vote to ratify a record on `base`, which nothing forbids, after the new voter state that binds us."""
    assert objection_to_ratify(kept, record) is None
    kept = enter(kept or blank(base), RATIFYING).model_copy(update={"second": record})
    return kept, vote_to_ratify(base, record)


def vote_to_ratify(base: Base, record: Hash) -> Vote:
    """Return the vote with which an elector ratifies this record on `base`."""
    return Vote(round=base.round, base=base.tip, attempt=RATIFYING, step=Step.SECOND, absent=[], record_hash=record)


class Tally:
    """Known votes to ratify one record.  base: the base of the record; it has electors."""

    def __init__(self, run: Hash, base: Base, record: Hash) -> None:
        self.base, self.record = base, record
        self._run, self._vote = run, vote_to_ratify(base, record).encode()
        self._votes: dict[PeerId, bytes] = {}

    def add(self, votes: Sequence[Signature]) -> None:
        """Take the votes that electors truly signed, and ignore others."""
        for each in votes:
            peer = PeerId(each.peer)
            if peer in self._votes or peer not in self.base.electors:
                continue
            if is_authentic(rebuild(self._run, Vote.KIND, peer, self._vote, each.signature)):
                self._votes[peer] = each.signature

    def has(self, peer: PeerId) -> bool:
        """Return True if the vote of this elector is known."""
        return peer in self._votes

    @property
    def is_enough(self) -> bool:
        """True if the votes are a quorum of the whole electorate."""
        return len(self._votes) >= quorum_of(self.base, self.base.electors, ())

    @property
    def certificate(self) -> Certificate | None:
        """Certificate of all known votes; it certifies the record once they are enough.  None while there are no votes."""
        votes = [Signature(peer=peer, signature=self._votes[peer]) for peer in sorted(self._votes)]
        return Certificate(attempt=RATIFYING, absent=[], votes=votes) if votes else None
