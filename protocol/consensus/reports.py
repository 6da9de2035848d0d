"""Telling the proposer of a plan what came of our exchange, when it has no result of its own."""

from __future__ import annotations

from protocol.consensus.effects import Send
from protocol.consensus.relay import helpers
from protocol.consensus.round_state import RoundState
from protocol.exchange.assignment import plan_hash
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Plan, Report


def result_for_planner(state: RoundState, plan: Hash) -> list[Send]:
    """What came of the exchange of this plan, if it is over, for a proposer that takes no part in it."""
    if state.plan is None or plan_hash(state.plan) != plan or state.planner in _members(state.plan):
        return []
    return _send(state, plan)


def reminder(state: RoundState) -> list[Send]:
    """The result for a proposer that should have put it to the vote by now, if we are among its helpers."""
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
