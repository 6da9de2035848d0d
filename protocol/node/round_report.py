"""What the user of this peer learns about a round: events, and the sentence that says what it waits for."""

from __future__ import annotations

from protocol.audit.auditor import Unaccountable
from protocol.consensus.effects import Reject
from protocol.consensus.machine import RoundMachine
from protocol.consensus.terms import View
from protocol.events import Dropped, Notice, ReadySent, RoundProposed, RoundVoted
from protocol.membership.activity import Activity
from protocol.membership.liveness import Membership
from protocol.network.session import Session
from protocol.wire.body import Body
from protocol.wire.messages import Plan, Proposal, Ready, Step, Vote
from protocol.wire.presence import Phase, WhyIdle


class RoundReport:
    """For one round.  Changes nothing but what is shown.  abstains: we say nothing as a voter."""

    def __init__(self, session: Session, membership: Membership, activity: Activity, *, abstains: bool) -> None:
        self._session, self._membership, self._activity, self._abstains = session, membership, activity, abstains
        self._complained: dict[str, None] = {}
        self._proposed = -1

    def waiting(self, machine: RoundMachine, view: View, min_members: int) -> None:
        """We are ready: show the peers that are missing."""
        waiting, ready = machine.waiting_for(view), len(machine.readys)
        if ready < min_members and not waiting:
            self._activity.show(
                Phase.READY,
                WhyIdle.WAITING_FOR_PEERS,
                f"waiting for more peers ({ready} of {min_members})",
            )
        else:
            names = ", ".join(self._membership.name(peer) for peer in waiting[:4]) or (
                "the others' votes; this peer does not vote yet (see --only-copy)" if self._abstains else "the proposal"
            )
            self._activity.show(Phase.READY, WhyIdle.WAITING_FOR_MEMBERS, f"{ready} ready, waiting for {names}")

    def exchanging(self, plan: Plan) -> None:
        """An exchange begins."""
        others = len(plan.members) - 1
        whom = f"with {others} {'other' if others == 1 else 'others'}" if others else "with nobody, alone in this round"
        self._activity.show(Phase.EXCHANGING, WhyIdle.EXCHANGING, whom)

    def ready(self, ready: Ready) -> None:
        """We have contributed."""
        self._session.emit(ReadySent(ready.round, ready.tokens, ready.steps, ready.loss))

    def sent(self, body: Body) -> None:
        """A statement of ours goes out: votes and new proposals are shown."""
        if isinstance(body, Vote) and body.step is Step.FIRST:
            self._activity.show(Phase.VOTING, WhyIdle.COMMITTING, "voted, waiting for the quorum")
            self._session.emit(RoundVoted(body.round, body.attempt, body.record_hash.hex()))
        elif isinstance(body, Proposal) and body.attempt != self._proposed:
            plan, self._proposed = body.plan, body.attempt
            self._session.emit(
                RoundProposed(
                    plan.round, body.attempt, self._session.me, [member.peer for member in plan.members], list(body.absent)
                )
            )

    def rejected(self, effect: Reject) -> None:
        """A statement is not acted on."""
        self._session.emit(Dropped(effect.sender, effect.what, effect.reason))

    def unaccountable(self, round: int, problem: Unaccountable) -> None:
        """We do not vote for a record; each reason is told once."""
        if str(problem) not in self._complained:
            self._complained[str(problem)] = None
            level = "info" if problem.is_doubt else "warning"
            self._session.emit(Notice(level, f"round {round}: no vote for {problem}"))
