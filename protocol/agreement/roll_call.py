"""Rolls and locks that a peer has heard in a round: they show which attempt is due, and what it may be led with."""

from __future__ import annotations

from protocol.agreement.ballot import RATIFYING, Ballot, Justification, check_lock, check_view_change, demanded, held_in
from protocol.agreement.round_state import RoundState
from protocol.agreement.validation import flaw_of_record_proposal
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import rebuild
from protocol.wire.identity import PeerId
from protocol.wire.messages import Lock, LockName, ViewChange

MAX_LEAD = 16
"""Attempts by which a single voter may take us ahead."""
LOCKS_KEPT = 2
"""Locks kept of each voter: one of the whole electorate, and one of a part."""


class ViewChangeLog:
    """Roll of the highest attempt of each voter, and the locks that each voter proved.

    If there are electors, no other peer's statement takes us to an attempt: keys are free.
    """

    def __init__(self, state: RoundState) -> None:
        self._state = state
        self._rolls: dict[PeerId, tuple[ViewChange, bytes]] = {}
        """Roll of each voter, opened and as it travelled."""
        self._locks: dict[PeerId, list[Lock]] = {}
        self._pulled: dict[PeerId, None] = {}
        """Voters that we have followed into a higher attempt."""

    # -- hearing ------------------------------------------------------------------------------------------------------

    def on_view_change(self, sender: PeerId, roll: ViewChange, signature: bytes, now: float) -> str | None:
        """Take a roll, and return an objection or None.

        An attempt that some honest voter has entered is due for us as well.  Below four electors every voter counts as
        honest, but takes us ahead by at most `MAX_LEAD` attempts.
        """
        state, electors = self._state, self._state.base.electors
        if not state.is_for_this_round(roll.round, roll.base):
            return None
        if sender not in electors and (sender not in state.closing.readys or set(roll.absent) != set(electors)):
            return "its sender does not vote"
        if roll.attempt >= RATIFYING:
            return "there is no such attempt"
        known = self._rolls.get(sender)
        if known is not None and known[0].attempt > roll.attempt:
            return None
        raw = rebuild(state.settings.run, ViewChange.KIND, sender, roll.encode(), signature).raw
        self._rolls[sender] = (roll, raw)
        ahead = sorted(self._entered().values(), reverse=True)
        needed = state.ballot(0, ()).some_honest
        if len(ahead) >= needed:
            limit = ahead[0] if needed > 1 else state.attempt + MAX_LEAD
            state.go_to_attempt(min(ahead[needed - 1], limit), now)
        return None

    def on_lock(self, sender: PeerId, lock: Lock) -> None:
        """Keep the proof of a lock that a roll names, until the roll arrives.

        Only a lock that can be put to the vote is kept: its proof names the record alone, so the index beside it may be
        wrong.
        """
        state = self._state
        if sender not in state.base.electors and sender not in state.closing.readys:
            return
        if flaw_of_record_proposal(state.settings, state.base, lock.record, lock.index, lock.provenance) is not None:
            return
        kept = [known for known in self._locks.get(sender, []) if bool(known.proof.absent) != bool(lock.proof.absent)]
        self._locks[sender] = [*kept, lock][-LOCKS_KEPT:]

    # -- which attempt is due -----------------------------------------------------------------------------------------

    def _entered(self) -> dict[PeerId, int]:
        """Return the attempt that each voter is in."""
        electors = self._state.base.electors
        return {peer: roll.attempt for peer, (roll, _) in self._rolls.items() if not electors or peer in electors}

    def pull(self) -> int:
        """Return the highest attempt entered by a voter that has not pulled us before; 0 if none is ahead."""
        ahead = {
            peer: attempt
            for peer, attempt in self._entered().items()
            if 0 < attempt - self._state.attempt <= MAX_LEAD and peer not in self._pulled
        }
        highest = max(ahead.values(), default=0)
        self._pulled |= {peer: None for peer, attempt in ahead.items() if attempt == highest}
        return highest

    def present_in(self, ballot: Ballot) -> int:
        """Return the number of voters of this ballot that have entered its attempt or a later one, including ourselves."""
        others = sum(
            roll.attempt >= ballot.attempt
            for peer, (roll, _) in self._rolls.items()
            if peer in ballot.voters and peer != self._state.me
        )
        return others + (self._state.me in ballot.voters)

    def are_calling(self) -> bool:
        """Return True if some honest voter other than us wants the round closed."""
        others = sum(peer != self._state.me for peer in self._entered())
        return others >= self._state.ballot(0, ()).some_honest

    # -- what to lead with --------------------------------------------------------------------------------------------

    def provable(self, ballot: Ballot) -> dict[PeerId, bytes]:
        """Return the rolls for this ballot whose locks we can prove, sorted by voter."""
        rolls: dict[PeerId, bytes] = {}
        for peer in sorted(ballot.voters):
            roll, raw = self._rolls.get(peer, (None, b""))
            if roll is not None and check_view_change(ballot, roll) is None and self._has_proofs(ballot, roll):
                rolls[peer] = raw
        return rolls

    def satisfiable(self, ballot: Ballot, rolls: dict[PeerId, bytes]) -> dict[PeerId, bytes]:
        """Return these rolls if we hold the READYs that they demand for our state; else only rolls whose READYs we all hold.

        A voter may hold a READY that we have not heard yet, or claim to hold one.
        """
        state, ours = self._state, set[PeerId]()
        for peer in state.base.electors:
            ready = state.closing.ready_of(peer)
            if ready is not None and ready.state == state.outer:
                ours.add(peer)
        if demanded(ballot, [self._rolls[peer][0] for peer in rolls]) <= ours:
            return rolls
        return {
            peer: raw
            for peer, raw in rolls.items()
            if (held_in(state.base.electors, self._rolls[peer][0].held) or set()) <= ours
        }

    def lock_to_carry(self, justification: Justification) -> Lock | None:
        """Return the lock that the rolls oblige us to carry on; None if they name none."""
        for name in justification.highest_locks():
            lock = self._proven(justification.ballot, name)
            if lock is not None:
                return lock
        return None

    def _has_proofs(self, ballot: Ballot, roll: ViewChange) -> bool:
        return all(name is None or self._proven(ballot, name) is not None for name in (roll.lock, roll.reduced))

    def _proven(self, ballot: Ballot, name: LockName) -> Lock | None:
        """Return a lock of this name, with its proof; None if we have none."""
        for lock in (lock for locks in self._locks.values() for lock in locks):
            try:
                check_lock(self._state.settings.run, ballot, lock.record, name, lock.proof)
            except Malformed:
                continue
            return lock
        return None
