"""A voter that remembers says nothing more than one that forgets.

`tests.explore.search` makes the voter anew for every step.  Here one `Voter` lives on: it hears record proposals, proofs and
results in every order, and calls attempts in between.  Whatever it says and keeps must also follow from what was on its
disk, for a voter that was just started and hears the same.  Then the search leaves out nothing.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from protocol.agreement.events import Persist, RoundEffect, Send
from protocol.agreement.round_state import RoundState
from protocol.agreement.voter import Voter
from protocol.wire.messages import Certificate, PrevoteCertificate, RecordProposal, Step, ViewChange, Vote
from tests.explore.council import NAMES, BallotKey, Council, LockKey, Seats, ViewChangeKey, VoteKey
from tests.explore.electors import Electors, proof_of

ME = 2
"""The seat of the voter.  All others are liars, so it hears all that can be said."""
ABSENCES: tuple[Seats, ...] = ((), (3,))

STEPS = 3
"""A voter with a memory does as much at once: it calls an attempt, and casts two votes."""
Event = RecordProposal | PrevoteCertificate | bytes | BallotKey
"""A record proposal or a proof arrives, the result with this root is on the disk, or the voter calls this ballot."""


class Life(NamedTuple):
    """A voter with all that it remembers, and the state of the forgetful elector that says all that it says."""

    voter: Voter
    state: RoundState
    double: int


@dataclass(frozen=True)
class Remembered:
    """states: that a voter with a memory was in.  flaw: what it said that one without could not have; None if nothing."""

    states: int
    flaw: str | None


class Memory:
    """All that one voter can hear in so many attempts.  folder: for vote files."""

    def __init__(self, folder: Path, attempts: int = 2) -> None:
        self._attempts = attempts
        self._council = council = Council()
        self._electors = Electors(council, ABSENCES, folder)
        self._ballots = [BallotKey(*each) for each in product(range(attempts), ABSENCES)]
        self._shown = [pair for ballot in self._ballots for pair in self._record_proposals(ballot)]
        proofs = {proof.encode(): proof for _, proof in self._shown}
        roots = [record.result_root for record in council.records]
        self._events: list[Event] = [proposal for proposal, _ in self._shown]
        self._events += [*proofs.values(), *roots, *self._ballots]
        self._next: dict[int, list[int]] = {}

    def explore(self) -> Remembered:
        """Every order of events, breadth first."""
        state = self._council.state(ME, None)
        state.obtained = set()
        layer = [Life(Voter(state), state, self._electors.start(ME))]
        known, seen = {self._memory_of(layer[0])}, 0
        while layer:
            following = []
            for life in layer:
                seen += 1
                for event in self._events:
                    after = _copy(life)
                    double = self._double(life.double, self._happen(after, event))
                    if double is None:
                        return Remembered(seen, f"what it says after {event!r:.300}")
                    after = after._replace(double=double)
                    name = self._memory_of(after)
                    if name not in known:
                        known.add(name)
                        following.append(after)
            layer = following
        return Remembered(seen, None)

    # -- what it hears ------------------------------------------------------------------------------------------------

    def _record_proposals(self, ballot: BallotKey) -> list[tuple[RecordProposal, PrevoteCertificate]]:
        """Record proposals for each record, fresh and carried on from each possible lock; and their first votes' proofs."""
        council, shown = self._council, []
        others = [seat for seat in council.voters(ballot.absent) if seat != ME]
        lists = dict.fromkeys([(), ballot.absent])
        for record in range(len(NAMES)):
            locks = [LockKey(attempt, absent, record) for attempt in range(ballot.attempt) for absent in lists]
            for lock in [None, *locks]:
                full, reduced = (None, lock) if lock is not None and lock.absent else (lock, None)
                view_changes = [council.view_change(seat, ViewChangeKey(*ballot, full, reduced)) for seat in others]
                proposal = council.record_proposal(
                    ballot, record, view_changes, self._proof(lock) if lock is not None else None
                )
                shown.append((proposal, proof_of(proposal, self._proof(LockKey(*ballot, record)))))
        return shown

    def _proof(self, lock: LockKey) -> Certificate:
        first = VoteKey(Step.FIRST, *lock)
        return self._council.certificate(first, {seat: first for seat in self._council.voters(lock.absent) if seat != ME})

    def _happen(self, life: Life, event: Event) -> list[RoundEffect]:
        council, voter, state = self._council, life.voter, life.state
        match event:
            case RecordProposal():
                proposer = state.ballot(event.attempt, event.absent, event.record.members).proposer
                return voter.on_record_proposal(proposer, event, council.view(council.seats(event.absent)), 0.0)
            case PrevoteCertificate():
                return voter.on_prevote_certificate(council.peers[0], event)
            case bytes():
                state.obtained.add(event)
                return voter.on_result_obtained(event)
        if event.attempt < state.attempt:
            return []
        state.go_to_attempt(event.attempt, 0.0)
        view = next(iter(self._electors.views_for(ME, event)), None)
        return voter.change_view(view, 0.0)[0] if view is not None else []

    # -- what one that forgets would say ------------------------------------------------------------------------------

    def _double(self, number: int, effects: list[RoundEffect]) -> int | None:
        """The state of an elector without a memory, a few steps on, that has said all this and has the same on its disk."""
        council, electors = self._council, self._electors
        bodies = [effect.body for effect in effects if isinstance(effect, Send)]
        votes = {council.key_of_vote(body) for body in bodies if isinstance(body, Vote)}
        view_changes = {council.key_of_view_change(body) for body in bodies if isinstance(body, ViewChange)}
        kept = electors.known[number].kept
        for effect in effects:
            kept = electors.key(effect.kept) if isinstance(effect, Persist) else kept
        reached = [number]
        for _ in range(STEPS + 1):
            for each in reached:
                elector = electors.known[each]
                if elector.kept == kept and votes <= elector.votes and view_changes <= elector.view_changes:
                    return each
            reached = [after for each in reached for after in self._steps(each)]
        return None

    def _steps(self, number: int) -> list[int]:
        if number not in self._next:
            self._next[number] = list(dict.fromkeys(self._steps_from(number)))
        return self._next[number]

    def _steps_from(self, number: int) -> list[int]:
        electors = self._electors
        steps = [
            electors.vote(ME, number, proposal, shown, (at, shown is not None))
            for at, (proposal, proof) in enumerate(self._shown)
            for shown in (None, proof.certificate)
            if proposal.attempt <= electors.called(number)
        ]
        later = electors.called(number) + 1
        return [*steps, electors.call(ME, number, later)] if later < self._attempts else steps

    # -- its memory ---------------------------------------------------------------------------------------------------

    def _memory_of(self, life: Life) -> tuple[object, ...]:
        """The same for voters that remember the same."""
        state = life.state
        remembered = [
            id(value) if isinstance(value, BaseModel) else repr(value)
            for name, value in sorted(vars(life.voter).items())
            if not isinstance(value, RoundState)
        ]
        return (
            life.double,
            self._electors.key(state.kept),
            state.attempt,
            state.entered,
            frozenset(state.obtained),
            *remembered,
        )


def _copy(life: Life) -> Life:
    """The same voter, of which the first goes another way."""
    voter, state = copy(life.voter), copy(life.state)
    state.obtained = set(state.obtained)
    for name, value in vars(voter).items():
        if isinstance(value, RoundState):
            setattr(voter, name, state)
        elif not isinstance(value, BaseModel):
            setattr(voter, name, copy(value))
    return Life(voter, state, life.double)
