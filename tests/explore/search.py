"""Breadth-first search through all that four electors and their liars can do in one round.

The network is the set of statements ever sent: anybody may receive any of them at any time, in any order, again, or never.
A state is therefore what binds each honest elector and what it has said so far.  The liars have no state: whatever they can
sign is always there.  Three steps change the state: an elector calls the next attempt (its view changes are sent), casts a
first vote, or casts a second vote.

What is left out changes nothing.  Statements are only added to, and a view change binds to nothing but its attempt, so an
elector sends every view change when it enters an attempt, and enters the attempts one by one: whoever skips one has said
less.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from protocol.chain import store as store_rules
from protocol.chain.electorate import quorum_size
from protocol.chain.records import is_full, rank
from protocol.wire.messages import Certificate, Commit, RecordProposal, Step
from tests.explore.certificates import Assembled, Certificates
from tests.explore.council import NAMES, SEATS, BallotKey, Council, LockKey, Seats, ViewChangeKey, VoteKey
from tests.explore.electors import Electors
from tests.explore.progress import Progress
from tests.explore.record_proposals import Candidates, RecordProposals
from tests.explore.symmetry import Name, Past, State, Symmetry

WHOLE: Seats = ()
ALL_BUT_ONE: list[Seats] = [(seat,) for seat in range(SEATS)]
ONE: list[Seats] = [tuple(other for other in range(SEATS) if other != seat) for seat in range(SEATS)]
"""Everybody but one is absent.  Four electors never go on without exactly two: three can do so without one."""


@dataclass(frozen=True)
class Config:
    """What is explored.  liars: their seats.  absences: the lists of absent electors that ballots may have.

    in_order: whether states are left out that differ only in the order of independent steps (`Search.moves`).
    symmetric: whether of states that differ only in who is who one is explored.
    progress: whether it is looked at that nobody is stuck.  confirming: and which records could be confirmed in each state.
    max_states, max_s: the search stops there, and is then not exhaustive.
    """

    liars: Seats
    attempts: int
    absences: tuple[Seats, ...] = (WHOLE,)
    in_order: bool = False
    symmetric: bool = True
    progress: bool = True
    confirming: bool = True
    max_states: int = 10_000_000
    max_s: float = 3600.0

    def __str__(self) -> str:
        liars = "liar " + " and ".join(f"P{seat}" for seat in self.liars) if self.liars else "no liar"
        lists = [" and ".join(f"P{seat}" for seat in absent) for absent in self.absences if absent]
        order = "in order" if self.in_order else "in any order"
        return f"{liars}, {self.attempts} attempts {order}, absent: {' or '.join(['nobody', *lists])}"


class Move(NamedTuple):
    """A step of an honest elector, or of all.  proposal, proof: what it was shown."""

    seat: int | None
    what: str
    proposal: RecordProposal | None = None
    proof: Certificate | None = None


@dataclass(frozen=True)
class Outcome:
    """What a search found.

    violation: in a phrase; trace: the steps that lead there.  exhaustive: whether nothing is left.
    """

    states: int
    depth: int
    seconds: float
    exhaustive: bool
    violation: str | None
    trace: tuple[str, ...]


class Search:
    """One search.  folder: for the vote files."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.council = config, Council()
        self.honest = tuple(seat for seat in range(SEATS) if seat not in config.liars)
        self.electors = Electors(self.council, config.absences, folder)
        self.proposals = RecordProposals(self.council, config.liars, config.absences)
        self.certificates = Certificates(self.council, config.liars, list(config.absences), config.attempts)
        self._symmetry = Symmetry(
            self.electors,
            self.honest,
            config.liars,
            config.attempts,
            self.proposals.leader,
            trivial=not config.symmetric,
        )
        self._progress = Progress(self.council, self.electors, self.proposals, self.honest, config.liars, config.attempts)
        self._pasts: dict[int, Past] = {}
        self._flaws: dict[int, str | None] = {}
        self._confirms: dict[tuple[int, int], bool] = {}
        self._said: dict[int, tuple[dict[BallotKey, frozenset[ViewChangeKey]], frozenset[VoteKey]]] = {}

    # -- the search ---------------------------------------------------------------------------------------------------

    def run(self, visit: Callable[[State], None] = lambda state: None) -> Outcome:
        """Search until everything is seen, something is wrong, or the limits are reached.  visit: is shown every state."""
        began, config = time.perf_counter(), self.config
        start: State = tuple(self.electors.start(seat) for seat in self.honest)
        parents: dict[Name, State | None] = {self._name(start): None}
        layer, depth = [start], 0
        while layer:
            following: list[State] = []
            for state in layer:
                visit(state)
                flaw = self.flaw(state)
                if flaw is not None:
                    trace = self._trace(state, parents)
                    return Outcome(len(parents), depth, time.perf_counter() - began, False, flaw, trace)
                for _, successor in self.moves(state):
                    name = self._name(successor)
                    if name not in parents:
                        parents[name] = state
                        following.append(successor)
                if len(parents) > config.max_states or time.perf_counter() - began > config.max_s:
                    return Outcome(len(parents), depth, time.perf_counter() - began, False, None, ())
            layer, depth = following, depth + 1
        return Outcome(len(parents), depth - 1, time.perf_counter() - began, True, None, ())

    def moves(self, state: State) -> list[tuple[Move, State]]:
        """Every step that changes something, and where it leads."""
        assembled = self.assembled(state)
        if self.config.in_order:
            return self._moves_in_order(state, assembled)
        moves = []
        for place in range(len(self.honest)):
            steps = [*self._calls(state, place), *self._first(state, place, assembled)]
            moves += [*steps, *self._second(state, place, assembled)]
        return moves

    def _moves_in_order(self, state: State, assembled: Assembled) -> list[tuple[Move, State]]:
        """First votes, then second votes, then everybody calls the next attempt.

        Other orders lead nowhere else: no vote in an attempt depends on anything that is said in later ones, no first vote
        on a second vote of the same attempt, and everything that was said stays.  Nor do electors that do less, except for
        second votes: neither a call nor a first vote binds an elector to anything once it has called the next attempt.
        """
        places = range(len(self.honest))
        kept = [self.electors.known[number].kept for number in state]
        if not any(each.second is not None for each in kept):
            for place in places:
                moves = self._first(state, place, assembled) if kept[place].first is None else []
                if moves:
                    return moves
        moves = [move for place in places for move in self._second(state, place, assembled)]
        attempt = self.electors.called(state[0]) + 1
        if attempt < self.config.attempts:
            called = [self.electors.call(seat, number, attempt) for seat, number in zip(self.honest, state, strict=True)]
            moves.append((Move(None, f"call attempt {attempt}"), tuple(called)))
        return moves

    def _calls(self, state: State, place: int) -> list[tuple[Move, State]]:
        """One elector restarts, or takes part in a later attempt."""
        electors, seat, number = self.electors, self.honest[place], state[place]
        moves = [(Move(seat, "restarts"), electors.restart(seat, number))]
        for attempt in sorted({electors.called(number) + 1, electors.known[number].kept.attempt + 1}):
            if attempt < self.config.attempts:
                moves.append((Move(seat, f"calls attempt {attempt}"), electors.call(seat, number, attempt)))
        return _changes(state, place, moves)

    def _first(self, state: State, place: int, assembled: Assembled) -> list[tuple[Move, State]]:
        """One elector hears a record proposal that it votes for."""
        seat, number, moves = self.honest[place], state[place], []
        for ballot, record in self.electors.open_ballots(seat, number):
            found = self._heard(state, place, ballot, record, assembled, None)
            moves += [
                (Move(seat, f"casts its first vote for {NAMES[record]}", proposal), after) for proposal, after in found
            ]
        return _changes(state, place, moves)

    def _second(self, state: State, place: int, assembled: Assembled) -> list[tuple[Move, State]]:
        """One elector hears a record proposal and its proof, and votes for it."""
        seat, number, moves = self.honest[place], state[place], []
        for ballot, record, proof in self._provable(number, assembled):
            what = f"casts its second vote for {NAMES[record]}"
            found = self._heard(state, place, ballot, record, assembled, proof)
            moves += [(Move(seat, what, proposal, proof), after) for proposal, after in found]
        return _changes(state, place, moves)

    def _heard(
        self, state: State, place: int, ballot: BallotKey, record: int, assembled: Assembled, proof: Certificate | None
    ) -> list[tuple[RecordProposal, int]]:
        """The first of the record proposals for a record in a ballot that the elector votes for, and its state then."""
        for name, proposal in self.available(state, ballot, record, assembled):
            after = self.electors.vote(self.honest[place], state[place], proposal, proof, (name, proof is not None))
            if after != state[place]:
                return [(proposal, after)]
        return []

    def _provable(self, number: int, assembled: Assembled) -> list[tuple[BallotKey, int, Certificate]]:
        """The ballots in which this elector has cast a first vote, and can be shown a proof, and has not voted again."""
        votes = self.electors.known[number].votes
        return [
            (BallotKey(vote.attempt, vote.absent), vote.record, assembled.proofs[LockKey(*vote[1:])])
            for vote in sorted(votes)
            if vote.step is Step.FIRST
            and vote._replace(step=Step.SECOND) not in votes
            and LockKey(*vote[1:]) in assembled.proofs
        ]

    def _name(self, state: State) -> Name:
        """The same for states that are like each other.

        Where the attempts are explored in order, nobody votes in an attempt any more once the next one has been called.
        What matters of it then is what binds the electors, what can be proven and what is certified.
        """
        if not self.config.in_order:
            return self._symmetry.name(state)
        return self._symmetry.name(state, self.past(state))

    def past(self, state: State) -> Past:
        """What came of the votes that were cast."""
        assembled = self.assembled(state)
        if id(assembled) not in self._pasts:
            certified = frozenset(claim for claim in assembled.second if not claim.absent)
            self._pasts[id(assembled)] = Past(frozenset(assembled.proofs), certified)
        return self._pasts[id(assembled)]

    # -- what was said ------------------------------------------------------------------------------------------------

    def said(self, number: int) -> tuple[dict[BallotKey, frozenset[ViewChangeKey]], frozenset[VoteKey]]:
        """The view changes by ballot, and the votes, of an elector in this state."""
        if number not in self._said:
            elector, view_changes = self.electors.known[number], dict[BallotKey, frozenset[ViewChangeKey]]()
            for view_change in elector.view_changes:
                ballot = BallotKey(view_change.attempt, view_change.absent)
                view_changes[ballot] = view_changes.get(ballot, frozenset()) | {view_change}
            self._said[number] = view_changes, elector.votes
        return self._said[number]

    def assembled(self, state: State) -> Assembled:
        """What the votes that were cast prove."""
        cast = [frozenset[VoteKey]()] * SEATS
        for seat, number in zip(self.honest, state, strict=True):
            cast[seat] = self.said(number)[1]
        return self.certificates.of(tuple(cast))

    def available(self, state: State, ballot: BallotKey, record: int, assembled: Assembled) -> Candidates:
        """The record proposals for a record in a ballot that can be made of what was said."""
        heard = [frozenset[ViewChangeKey]()] * SEATS
        for seat, number in zip(self.honest, state, strict=True):
            heard[seat] = self.said(number)[0].get(ballot, frozenset())
        return self.proposals.find(ballot, record, tuple(heard), assembled)

    # -- what must hold -----------------------------------------------------------------------------------------------

    def flaw(self, state: State) -> str | None:
        """What is wrong with this state."""
        assembled = self.assembled(state)
        if id(assembled) not in self._flaws:
            self._flaws[id(assembled)] = self._flaw_of(assembled)
        flaw = self._flaws[id(assembled)]
        if flaw is None and self.config.confirming:
            flaw = self._flaw_of_confirmation(state, assembled)
        return flaw or (self._progress.flaw(state) if self.config.progress else None)

    def _flaw_of(self, assembled: Assembled) -> str | None:
        council = self.council
        commits = [
            (
                claim,
                Commit(record=council.records[claim.record], index=council.indices[claim.record], certificate=certificate),
            )
            for claim, certificate in assembled.second.items()
        ]
        for claim, commit in commits:
            for other, rival in commits:
                if claim.record == other.record or not is_full(commit.certificate):
                    continue
                pair = (
                    f"{NAMES[claim.record]} in attempt {claim.attempt} and {NAMES[other.record]} in attempt {other.attempt}"
                )
                if is_full(rival.certificate):
                    return f"two full certificates: {pair}"
                if rank(council.base.electors, rival) < rank(council.base.electors, commit):
                    return f"a provisional certificate beats a full one: {pair}"
        return None

    def _flaw_of_confirmation(self, state: State, assembled: Assembled) -> str | None:
        """Whether a provisional record can become final beside another one that is certified by all.

        Who confirms a record says nothing at its tip afterwards, and nothing that others do there follows from it: so it is
        as if all that do had done so last.  Liars confirm everything.
        """
        for certified in {claim.record for claim in assembled.second if not claim.absent}:
            for record in set(range(len(NAMES))) - {certified}:
                ready = sum(self._may_confirm(number, record) for number in state) + len(self.config.liars)
                if ready >= quorum_size(SEATS):
                    return f"{NAMES[record]} can be confirmed beside a full certificate for {NAMES[certified]}"
        return None

    def _may_confirm(self, number: int, record: int) -> bool:
        known = self._confirms.get((number, record))
        if known is None:
            is_locked = store_rules.is_locked_elsewhere(self.electors.kept(number), self.council.hash(record))
            known = self._confirms[number, record] = not is_locked
        return known

    # -- how it came about --------------------------------------------------------------------------------------------

    def _trace(self, state: State, parents: dict[Name, State | None]) -> tuple[str, ...]:
        states: list[State] = [state]
        while (before := parents[self._name(states[-1])]) is not None:
            states.append(before)
        states.reverse()
        lines: list[str] = []
        for before, after in itertools.pairwise(states):
            move = next(move for move, successor in self.moves(before) if successor == after)
            lines.append(self._describe(move))
        claims = [claim for claim in self.assembled(state).second if not claim.absent]
        lines += [f"full certificate for {NAMES[claim.record]} in attempt {claim.attempt}" for claim in sorted(claims)]
        return tuple(lines)

    def _describe(self, move: Move) -> str:
        from tests.explore.reading import read_proof, read_record_proposal

        text = f"{'all' if move.seat is None else f'P{move.seat}'} {move.what}"
        if move.proposal is not None:
            text += f" in {read_record_proposal(self.council, self.config.liars, move.proposal, shown=move.proof is None)}"
        if move.proof is not None:
            text += f", shown {read_proof(self.council, move.proof)}"
        return text


def _changes(state: State, place: int, moves: list[tuple[Move, int]]) -> list[tuple[Move, State]]:
    """The moves of one elector that change something, and where they lead."""
    return [(move, (*state[:place], after, *state[place + 1 :])) for move, after in moves if after != state[place]]
