"""Finality: the records that no honest peer gives up, and the recent work that decides between two parts of a run.

Pure functions of the chain.  A record is *full* if a quorum of all electors of its tip certified it, and *provisional* if
some electors were left out because they were absent.  Provisional records become **confirmable** once a quorum of their own
electors are members of records above them.  Then a second vote in a ballot of all electors also **confirms** them.  An
elector that has cast such a vote makes no other statement at the tips before these records
(`protocol.chain.store.VoteFiles.confirm`).  An elector that is locked on another record at one of these tips casts no such
vote (`protocol.chain.store.is_locked_elsewhere`).  So a provisional record is final once a quorum of its own electors has
confirmed it, for the same reason as a full record: two quorums share an honest elector.

A record is final if it and all records before it are full or confirmed.

Why not confirm at once?  Electors that miss some records lose their seats, so a part without a quorum of the earlier
electors soon makes full records of its own.  If their voters were bound, two such parts could never come together again.
Two parts cannot both make their records confirmable, because this also takes two quorums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import dropwhile, takewhile
from types import MappingProxyType

from protocol.chain.progress import MOST_OF_OTHERS, counted_by_member
from protocol.wire.identity import PeerId
from protocol.wire.messages import Certificate, Commit

RECENT_RECORDS = 16
"""Number of newest records whose tokens are the recent work."""


@dataclass(frozen=True)
class Unconfirmed:
    """Provisional records in a row with the same electors.  first, last: their rounds.

    since: the first round whose full record can confirm them; None if they are not confirmable.
    """

    first: int
    last: int
    electors: tuple[PeerId, ...]
    quorum: int
    since: int | None = None

    @property
    def rounds(self) -> range:
        """The rounds of these records."""
        return range(self.first, self.last + 1)

    def is_confirmable(self, newest: Mapping[PeerId, int]) -> bool:
        """Return True if a quorum of the electors are members of records above these.

        newest: the round of the newest record of which each peer is a member.
        """
        return sum(newest.get(peer, -1) > self.last for peer in self.electors) >= self.quorum

    def has_confirmed(self, peer: PeerId, signed: Mapping[PeerId, int]) -> bool:
        """Return True if an elector has confirmed these records.  signed: see `Finality`."""
        return self.since is not None and signed.get(peer, -1) >= self.since

    def is_confirmed(self, signed: Mapping[PeerId, int]) -> bool:
        """Return True if a quorum of the electors has confirmed these records.  signed: see `Finality`."""
        return sum(self.has_confirmed(peer, signed) for peer in self.electors) >= self.quorum


@dataclass(frozen=True)
class Finality:
    """The final records of a chain.  Immutable.

    rounds: number of records so far.  unconfirmed: the provisional records that are not final, in order.  signed: the round
    of the newest full record that each peer signed.  newest: the round of the newest record of which each peer is a member.
    Both maps contain only electors of unconfirmed records, and only records since the first of these.
    """

    rounds: int = 0
    unconfirmed: tuple[Unconfirmed, ...] = ()
    signed: Mapping[PeerId, int] = field(default_factory=lambda: MappingProxyType({}))
    newest: Mapping[PeerId, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def final(self) -> int:
        """Number of final records."""
        return self.unconfirmed[0].first if self.unconfirmed else self.rounds

    def confirmable(self, members: Collection[PeerId]) -> tuple[Unconfirmed, ...]:
        """Return the first provisional records, which a vote for a next full record with these members confirms."""
        newest = {**self.newest, **dict.fromkeys(members, self.rounds)}
        return tuple(takewhile(lambda each: each.since is not None or each.is_confirmable(newest), self.unconfirmed))

    def after(
        self, electors: tuple[PeerId, ...], quorum: int, certificate: Certificate, members: Collection[PeerId]
    ) -> Finality:
        """Return the finality after one more record.

        electors, quorum: electors and quorum of the tip that the record stands on.  members: members of the record.
        """
        round, rounds, is_full = self.rounds, self.rounds + 1, not certificate.absent
        if not self.unconfirmed and is_full:
            return replace(self, rounds=rounds)
        signed, unconfirmed = self.signed, self.unconfirmed
        if is_full:
            signed = {**signed, **{PeerId(vote.peer): round for vote in certificate.votes}}
            noted = {each: replace(each, since=round) for each in self.confirmable(members) if each.since is None}
            unconfirmed = tuple(
                dropwhile(lambda each: each.is_confirmed(signed), (noted.get(each, each) for each in unconfirmed))
            )
        elif unconfirmed and (unconfirmed[-1].last, unconfirmed[-1].electors) == (round - 1, electors):
            unconfirmed = (*unconfirmed[:-1], Unconfirmed(unconfirmed[-1].first, round, electors, quorum))
        else:
            unconfirmed = (*unconfirmed, Unconfirmed(round, round, electors, quorum))
        newest = {**self.newest, **dict.fromkeys(members, round)}
        relevant = {peer for each in unconfirmed for peer in each.electors}
        return Finality(rounds, unconfirmed, _only(relevant, signed), _only(relevant, newest))

    @property
    def missing(self) -> frozenset[PeerId]:
        """Electors of the first unconfirmed records that have not confirmed them; empty if all records are final."""
        if not self.unconfirmed:
            return frozenset()
        first = self.unconfirmed[0]
        return frozenset(peer for peer in first.electors if not first.has_confirmed(peer, self.signed))


def _only(peers: Collection[PeerId], rounds: Mapping[PeerId, int]) -> Mapping[PeerId, int]:
    return MappingProxyType({peer: round for peer, round in rounds.items() if peer in peers})


# ------------------------------------------------------------------------------------------------------------------------
# Recent work.  Of two parts that went on without each other, the part wins in which members with more than half of the
# recent work took part.


@dataclass(frozen=True)
class RecentWork:
    """Tokens of the members of the newest `RECENT_RECORDS` records, as `counted_by_member` counts them.  Immutable.

    If keys are free, strangers can be most of the members, so their work is compared with that of others only after
    `bounded_by`.
    """

    records: tuple[tuple[tuple[PeerId, int], ...], ...] = ()

    def after(self, commit: Commit) -> RecentWork:
        """Return the recent work after one more record."""
        counted = zip((PeerId(member.peer) for member in commit.record.members), counted_by_member(commit), strict=True)
        return RecentWork((*self.records[-RECENT_RECORDS + 1 :], tuple(counted)))

    @cached_property
    def tokens(self) -> Mapping[PeerId, int]:
        """Tokens of each member."""
        total = Counter[PeerId]()
        for record in self.records:
            for peer, tokens in record:
                total[peer] += tokens
        return total

    def bounded_by(self, electors: Collection[PeerId]) -> RecentWork:
        """Return the work with the tokens of all other peers together at most half of the electors'.

        The work of others loses weight in proportion.  To keep equal parts equal without rounding, both sides are multiplied
        instead of dividing one, so only ratios of the result mean anything.  If no elector has worked, nothing is bounded.
        """
        own = self.of(electors)
        others, most = sum(self.tokens.values()) - own, int(MOST_OF_OTHERS * own)
        if not own or others <= most:
            return self
        bounded = ((peer, tokens * (others if peer in electors else most)) for peer, tokens in self.tokens.items())
        return RecentWork((tuple(bounded),))

    def of(self, peers: Collection[PeerId]) -> int:
        """Return the tokens of these peers."""
        return sum(self.tokens.get(peer, 0) for peer in peers)

    def is_most(self, peers: Collection[PeerId], without: Sequence[PeerId] = ()) -> bool:
        """Return True if these peers did more than half of the work, leaving out the work of the peers in `without`."""
        rest = [peer for peer in self.tokens if peer not in without]
        return 2 * self.of([peer for peer in peers if peer not in without]) > self.of(rest)
