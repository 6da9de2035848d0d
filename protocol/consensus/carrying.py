"""What a round carries on, while those that it needs are here: a lock, a plan, a certified record.  Pure.

Where members vote, only crashes are tolerated, and so many of them may be gone that no quorum of them can carry on a lock or
a plan.  It is let go then: else their deaths would end a run that has just begun.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.consensus.ballot import Ballot
from protocol.consensus.round_state import RoundState
from protocol.consensus.terms import View
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit, Kept, Member


def carried_lock(state: RoundState, ballot: Ballot, view: View) -> Kept:
    """What is kept, without a lock that cannot be carried on."""
    kept = state.kept
    lock = kept.reduced if ballot.absent else kept.lock
    if lock is None or _are_here(state, lock.record.members, ballot, view):
        return kept
    return kept.model_copy(update={"lock": None, "reduced": None})


def carried_plan(state: RoundState, ballot: Ballot, view: View) -> Hash | None:
    """The plan that we took up, if it stands and can be carried on."""
    plan = state.plan
    return state.standing_plan() if plan is not None and _are_here(state, plan.members, ballot, view) else None


def is_result_lost(state: RoundState, commit: Commit, view: View) -> bool:
    """Whether all who may have the result of a certified record are gone.

    Then it is as if we had not heard of the record; whoever of them comes back shows it again.
    """
    members = (PeerId(member.peer) for member in commit.record.members)
    holders = {*state.base.electors, *members} - {state.me}
    return bool(holders) and all(state.closing.is_gone(peer, view) for peer in holders)


def _are_here(state: RoundState, members: Sequence[Member], ballot: Ballot, view: View) -> bool:
    """Whether a quorum of these members is, or members do not vote."""
    here = sum(not state.closing.is_gone(PeerId(member.peer), view) for member in members)
    return not ballot.members or here > len(members) // 2
