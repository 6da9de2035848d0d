"""Which certificates can be assembled from the votes that have been cast.  The real `verify_votes` is the judge."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.chain.records import verify_votes
from protocol.wire.canonical import Malformed
from protocol.wire.messages import Certificate, Step
from tests.explore.council import NAMES, Council, LockKey, Seats, VoteKey
from tests.protocol.council import RUN

Votes = tuple[frozenset[VoteKey], ...]
"""The votes that were cast, by seat; those of the liars are not needed."""


@dataclass(frozen=True)
class Assembled:
    """What a set of votes proves.  proofs: of locks; provable: those on each record; second: what they certify."""

    proofs: dict[LockKey, Certificate]
    provable: tuple[frozenset[LockKey], ...]
    second: dict[VoteKey, Certificate]


class Certificates:
    """Assembles what can be; liars cast every vote."""

    def __init__(self, council: Council, liars: Seats, absences: list[Seats], attempts: int) -> None:
        self._council, self._liars = council, liars
        self._claims = [
            VoteKey(step, attempt, absent, record)
            for step in Step
            for attempt in range(attempts)
            for absent in absences
            for record in range(len(NAMES))
        ]
        self._judged: dict[tuple[object, ...], Certificate | None] = {}
        self._assembled: dict[Votes, Assembled] = {}

    def of(self, cast: Votes) -> Assembled:
        """All that these votes prove."""
        if cast not in self._assembled:
            proofs, second = {}, {}
            for claim in self._claims:
                certificate = self._claim(claim, cast)
                if certificate is None:
                    continue
                if claim.step is Step.FIRST:
                    proofs[LockKey(*claim[1:])] = certificate
                else:
                    second[claim] = certificate
            provable = tuple(frozenset(lock for lock in proofs if lock.record == record) for record in range(len(NAMES)))
            self._assembled[cast] = Assembled(proofs, provable, second)
        return self._assembled[cast]

    def _claim(self, claim: VoteKey, cast: Votes) -> Certificate | None:
        """A certificate that says `claim`.

        It is made of votes that say so; failing that, if it speaks for the whole electorate, also of votes for the same
        record with another absent list.
        """
        voters = self._council.voters(claim.absent)
        same = {seat: claim for seat in voters if seat in self._liars or claim in cast[seat]}
        mixed = dict(same)
        for seat in voters if not claim.absent else ():
            if seat not in same:
                like = [v for v in cast[seat] if (v.step, v.attempt, v.record) == (claim.step, claim.attempt, claim.record)]
                mixed |= {seat: min(like)} if like else {}
        return self._judge(claim, same) or (self._judge(claim, mixed) if mixed != same else None)

    def _judge(self, claim: VoteKey, votes: dict[int, VoteKey]) -> Certificate | None:
        if not votes:
            return None
        known = (claim, tuple(sorted(votes.items())))
        if known not in self._judged:
            council = self._council
            certificate = council.certificate(claim, votes)
            try:
                verify_votes(RUN, council.base, council.records[claim.record], certificate, claim.step)
                self._judged[known] = certificate
            except Malformed:
                self._judged[known] = None
        return self._judged[known]
