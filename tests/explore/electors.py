"""One honest elector, step by step: the real `Voter` is made anew from what is on the disk, and told one thing.

So every step is also a crash and a restart: nothing volatile outlives a step.  That a `Voter` which remembers says nothing
more than one which forgets is shown in `tests.explore.memory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from protocol.agreement.ballot import blank, objection_to_vote
from protocol.agreement.events import Persist, RoundEffect, Send, View
from protocol.agreement.voter import Voter
from protocol.chain.records import record_hash
from protocol.chain.store import VoteFiles, read_voter_state
from protocol.disk import Disk
from protocol.wire.envelope import Body
from protocol.wire.messages import Certificate, Lock, PrevoteCertificate, RecordProposal, Step, ViewChange, Vote, VoterState
from tests.explore.council import (
    AT_WORK,
    LEFT,
    NAMES,
    SEATS,
    SILENT,
    BallotKey,
    Council,
    LockKey,
    Seats,
    ViewChangeKey,
    VoteKey,
)


class KeptKey(NamedTuple):
    """What binds an elector, in short; attempt -1 when nothing does.

    Which quorum proves a lock makes no difference to what the elector may say.
    """

    attempt: int
    absent: Seats
    first: int | None
    second: int | None
    lock: LockKey | None
    reduced: LockKey | None


class Elector(NamedTuple):
    """An honest elector: what binds it, and all that it ever said."""

    kept: KeptKey
    view_changes: frozenset[ViewChangeKey]
    votes: frozenset[VoteKey]


class Electors:
    """Numbers the states that an honest elector can be in, and makes the steps between them.

    absences: the lists of absent electors that are explored.  folder: of the vote files.
    """

    def __init__(self, council: Council, absences: Sequence[Seats], folder: Path) -> None:
        self.council, self.absences = council, absences
        self._files = VoteFiles(Disk(durable=False), folder)
        self._numbers: dict[Elector, int] = {}
        self.known: list[Elector] = []
        self._kept: dict[int, VoterState | None] = {}
        self._steps: dict[tuple[object, ...], int] = {}
        self._open: dict[tuple[int, int], list[tuple[BallotKey, int]]] = {}

    def number(self, elector: Elector) -> int:
        """The number of this state, which stays the same."""
        number = self._numbers.get(elector)
        if number is None:
            number = self._numbers[elector] = len(self.known)
            self.known.append(elector)
        return number

    def kept(self, number: int) -> VoterState | None:
        """What is on the disk in this state; None before anything is."""
        return self._kept[number]

    def called(self, number: int) -> int:
        """The highest attempt that it has called."""
        return max((view_change.attempt for view_change in self.known[number].view_changes), default=-1)

    # -- steps --------------------------------------------------------------------------------------------------------

    def start(self, seat: int) -> int:
        """It begins the round and calls attempt 0."""
        return self.call(seat, self.keep(Elector(self.key(None), frozenset(), frozenset()), None), 0)

    def call(self, seat: int, number: int, attempt: int) -> int:
        """It takes part in an attempt, and sends every view change for it that any view of the others can make it send."""
        key = ("call", seat, number, attempt)
        if key not in self._steps:
            elector, kept = self.known[number], self.kept(number)
            for view in self._views(seat):
                state = self.council.state(seat, self.kept(number))
                state.go_to_attempt(attempt, 0.0)
                said, bound = self._perform(self.kept(number), Voter(state).change_view(view, 0.0)[0])
                view_changes = frozenset(
                    self.council.key_of_view_change(body) for body in said if isinstance(body, ViewChange)
                )
                view_changes = frozenset(
                    view_change
                    for view_change in view_changes
                    if view_change.attempt == attempt and view_change.absent in self.absences
                )
                if view_changes:
                    elector, kept = elector._replace(view_changes=elector.view_changes | view_changes), bound
            self._steps[key] = self.keep(elector, kept)
        return self._steps[key]

    def vote(self, seat: int, number: int, proposal: RecordProposal, proof: Certificate | None, name: object) -> int:
        """It hears a record proposal, and then a proof; `name` stands for both.  The same state when it says nothing new."""
        key = ("vote", seat, number, name)
        if key not in self._steps:
            council = self.council
            state = council.state(seat, self.kept(number))
            voter, absent = Voter(state), council.seats(proposal.absent)
            ballot = state.ballot(proposal.attempt, proposal.absent, proposal.record.members)
            said, kept = self._perform(
                self.kept(number), voter.on_record_proposal(ballot.proposer, proposal, council.view(absent), 0.0)
            )
            if proof is not None:
                more, kept = self._perform(kept, voter.on_prevote_certificate(ballot.proposer, proof_of(proposal, proof)))
                said = [*said, *more]
            votes = frozenset(council.key_of_vote(body) for body in said if isinstance(body, Vote))
            elector = self.known[number]
            self._steps[key] = self.keep(elector._replace(votes=elector.votes | votes), kept)
        return self._steps[key]

    def restart(self, seat: int, number: int) -> int:
        """It is killed, and begins the round again with what is on its disk."""
        key = ("restart", seat, number)
        if key not in self._steps:
            kept, base = self.kept(number), self.council.base
            if kept is not None:
                self._files.save(base.round, base.tip, kept.encode())
            back = read_voter_state(self._files.load(base.round, base.tip))
            self._files.drop_before(base.round + 1)
            self._steps[key] = self.keep(self.known[number], back)
        return self._steps[key]

    def open_ballots(self, seat: int, number: int) -> list[tuple[BallotKey, int]]:
        """The ballots that it has called, and the records for which what it kept does not forbid a first vote in them."""
        key = (seat, number)
        if key not in self._open:
            council = self.council
            kept = self.kept(number) or blank(council.base)
            ballots = {BallotKey(view_change.attempt, view_change.absent) for view_change in self.known[number].view_changes}
            self._open[key] = [
                (ballot, record)
                for ballot in sorted(ballots)
                for record in range(len(NAMES))
                if VoteKey(Step.FIRST, *ballot, record) not in self.known[number].votes
                and objection_to_vote(kept, Step.FIRST, ballot.attempt, council.absent(ballot.absent), council.hash(record))
                is None
            ]
        return self._open[key]

    # -- what a step leaves -------------------------------------------------------------------------------------------

    @staticmethod
    def _perform(kept: VoterState | None, effects: list[RoundEffect]) -> tuple[list[Body], VoterState | None]:
        """What it says, and what is on its disk then: a crash right after loses the rest."""
        said: list[Body] = []
        for effect in effects:
            if isinstance(effect, Persist):
                assert not said, "what binds us is on the disk before anything is said"
                kept = effect.kept
            elif isinstance(effect, Send):
                said.append(effect.body)
        return said, kept

    def keep(self, elector: Elector, kept: VoterState | None) -> int:
        """The number of an elector that is bound by `kept` from now on."""
        number = self.number(elector._replace(kept=self.key(kept)))
        self._kept.setdefault(number, kept)
        return number

    def key(self, kept: VoterState | None) -> KeptKey:
        """What is on a disk, in short."""
        if kept is None:
            return KeptKey(-1, (), None, None, None, None)
        council = self.council

        def short(lock: Lock | None) -> LockKey | None:
            if lock is None:
                return None
            name = council.names[record_hash(lock.record)]
            return LockKey(lock.proof.attempt, council.seats(lock.proof.absent), name)

        def number(hash: bytes | None) -> int | None:
            return None if hash is None else council.names[hash]

        return KeptKey(
            kept.attempt,
            council.seats(kept.absent),
            number(kept.first),
            number(kept.second),
            short(kept.lock),
            short(kept.reduced),
        )

    def views_for(self, seat: int, ballot: BallotKey) -> list[View]:
        """Those views of the others that make an elector call this ballot."""
        found = []
        for view in self._views(seat):
            state = self.council.state(seat, None)
            state.go_to_attempt(ballot.attempt, 0.0)
            called = Voter(state).change_view(view, 0.0)[1]
            if called is not None and BallotKey(called.attempt, self.council.seats(called.absent)) == ballot:
                found.append(view)
        return found

    def _views(self, seat: int) -> list[View]:
        """Every way in which each of the others can look: at work, silent for long, or gone with a goodbye."""
        others = [other for other in range(SEATS) if other != seat]
        peers = self.council.peers
        return [
            {peers[seat]: AT_WORK, **{peers[other]: look for other, look in zip(others, looks, strict=True)}}
            for looks in product((AT_WORK, SILENT, LEFT), repeat=len(others))
        ]


def proof_of(proposal: RecordProposal, certificate: Certificate) -> PrevoteCertificate:
    """The statement that shows a quorum of first votes for what this record proposal put to the vote."""
    record = proposal.record
    return PrevoteCertificate(
        round=record.round, base=record.previous, record_hash=record_hash(record), certificate=certificate
    )
