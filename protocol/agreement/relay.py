"""Relay of a proposer's statements to peers that it did not tell.

A proposer can tell only some of the peers.  The rest would wait in vain, be given up in the exchange, and look as if they
had stalled it.  A voter for which nothing moves sends its roll to all voters; a member that knows of no plan refuses the
parts that are pushed to it.  Some peers next to it in the order of the tip, one of them honest, then pass on the newest
statements of the attempt, each once.  These carry the proposer's signature, so it does not matter who brings them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from protocol.agreement.events import Arrived, Forward, Send
from protocol.agreement.round_state import RoundState
from protocol.allreduce.assignment import plan_hash
from protocol.chain.base import Base
from protocol.chain.electorate import tolerated
from protocol.wire.envelope import Body, rebuild
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Plan, PrevoteCertificate, Proposal, RecordProposal, Report

RELAYED = (Proposal, RecordProposal, PrevoteCertificate)


class Relay:
    """Statements of the newest attempt, and the peers to which we have passed them on."""

    def __init__(self, state: RoundState) -> None:
        self._state = state
        self._attempt = -1
        self._said: dict[type[Body], bytes] = {}
        self._told: dict[tuple[PeerId, type[Body]], None] = {}
        self._asking: dict[PeerId, int] = {}
        """Voters for which nothing moved, and the attempt of each."""

    def keep(self, arrived: Arrived) -> list[Forward]:
        """Keep a proposer's statement that was taken up, and pass it on to the peers that have asked for it."""
        body = arrived.body
        assert isinstance(body, RELAYED)
        attempt = body.certificate.attempt if isinstance(body, PrevoteCertificate) else body.attempt
        if attempt < self._attempt:
            return []
        if attempt > self._attempt:
            self._attempt = attempt
            self._said.clear()
            self._told.clear()
        self._said[type(body)] = rebuild(
            self._state.settings.run, body.KIND, arrived.sender, body.encode(), arrived.signature
        ).raw
        return [effect for peer, asked in [*self._asking.items()] for effect in self.help_voter(peer, asked)]

    def help_voter(self, peer: PeerId, attempt: int) -> list[Forward]:
        """Pass statements on to a voter in this attempt that sees nothing move."""
        if peer in self._state.base.electors:
            self._asking[peer] = attempt
        if attempt > self._attempt:
            return []
        return self._pass_on(peer, self._state.ballot(self._attempt, ()).voters, RELAYED)

    def help_member(self, peer: PeerId) -> list[Forward]:
        """Pass the proposal on to a member of the plan that does not know of it."""
        plan = self._state.plan
        members = [PeerId(member.peer) for member in plan.members] if plan is not None else []
        return self._pass_on(peer, members, (Proposal,)) if peer in members else []

    def farewell(self) -> list[Forward]:
        """Return the motion and its proof of lock for all voters, which may need them when we are gone."""
        plan, voters = self._state.plan, self._state.ballot(self._attempt, ()).voters
        members = [PeerId(member.peer) for member in plan.members] if plan is not None else []
        return [
            effect
            for peer in voters or members
            if peer != self._state.me
            for effect in self._tell(peer, (RecordProposal, PrevoteCertificate))
        ]

    def _pass_on(self, peer: PeerId, circle: Sequence[PeerId], kinds: Sequence[type[Body]]) -> list[Forward]:
        """Pass on the statements of these kinds that this peer lacks from us, if we are among the helpers of its circle."""
        return self._tell(peer, kinds) if self._state.me in helpers(self._state.base, peer, circle) else []

    def _tell(self, peer: PeerId, kinds: Sequence[type[Body]]) -> list[Forward]:
        effects = []
        for kind in kinds:
            raw = self._said.get(kind)
            if raw is not None and (peer, kind) not in self._told:
                self._told[peer, kind] = None
                effects.append(Forward(peer, kind.KIND, raw))
        return effects


def helpers(base: Base, peer: PeerId, circle: Iterable[PeerId]) -> list[PeerId]:
    """Return the peers of a circle that follow this one in the order of the tip, so many that one of them is honest."""
    ranked = base.ranked({*circle, peer})
    place = ranked.index(peer)
    return [*ranked[place + 1 :], *ranked[:place]][: 1 + tolerated(len(ranked))]


# ------------------------------------------------------------------------------------------------------------------------
# Reports of our exchange to the proposer of its plan, if it has no result of its own.


def result_for_planner(state: RoundState, plan: Hash) -> list[Send]:
    """Return the result of the exchange of this plan, if it is over, for a proposer that takes no part in it."""
    if state.plan is None or plan_hash(state.plan) != plan or state.planner in _members(state.plan):
        return []
    return _send(state, plan)


def reminder(state: RoundState) -> list[Send]:
    """Return the result for a proposer that should have put it to the vote by now, if we are among its helpers."""
    if state.plan is None or state.me == state.planner:
        return []
    is_helper = state.me in helpers(state.base, state.planner, _members(state.plan))
    return _send(state, plan_hash(state.plan)) if is_helper else []


def _send(state: RoundState, plan: Hash) -> list[Send]:
    result = state.results.get(plan)
    if result is None:
        return []
    index, provenance = list(result[0]), result[1]
    body = Report(round=state.base.round, base=state.base.tip, plan=plan, index=index, provenance=provenance)
    return [Send((state.planner,), body)]


def _members(plan: Plan) -> list[PeerId]:
    return [PeerId(member.peer) for member in plan.members]
