"""What a proposer tells some only reaches the others, from few, once, and as it was signed."""

from __future__ import annotations

from protocol.agreement.events import Arrived, Forward, PlanUnknown
from protocol.agreement.machine import Relay
from protocol.agreement.round_state import RoundState
from protocol.agreement.voter import helpers
from protocol.allreduce.lateness import Patience
from protocol.chain.electorate import tolerated
from protocol.wire.envelope import Body
from protocol.wire.identity import PeerId
from protocol.wire.messages import Proposal, unpack
from tests.protocol.agreement.parliament import Parliament, first_proposer
from tests.protocol.council import (
    BASE,
    PEERS,
    RUN,
    SETTINGS,
    a_motion,
    a_plan,
    a_roll,
    signature_of,
    signed,
)

PROPOSER, NEEDY = BASE.in_turn(PEERS[:4])[0], BASE.in_turn(PEERS[:4])[2]
HELPER, OTHER = helpers(BASE, NEEDY, PEERS[:4])[0], BASE.in_turn(PEERS[:4])[1]
PROPOSAL = Proposal(attempt=1, absent=[], plan=a_plan(), rolls=[signed(PEERS[0], a_roll(1))])
MOTION = a_motion(1)


def a_relay(me: PeerId, *said: Body) -> Relay:
    """Of a peer that has taken up these statements of the proposer."""
    state = RoundState(me, SETTINGS, BASE, 0.0, None, Patience(), abstains=False)
    state.plan = a_plan()
    relay = Relay(state)
    for body in said:
        relay.keep(Arrived(PROPOSER, body, signature_of(PROPOSER, body)))
    return relay


def bodies(effects: list[Forward]) -> list[Body]:
    """What is passed on, of which each signature was checked."""
    opened = [unpack(effect.raw, RUN) for effect in effects]
    assert all(sender == PROPOSER for sender, _, _ in opened)
    return [body for _, body, _ in opened]


def test_a_helper_passes_on_the_newest_attempt_once() -> None:
    relay = a_relay(HELPER, PROPOSAL, MOTION)
    assert bodies(relay.help_voter(NEEDY, 1)) == [PROPOSAL, MOTION]
    assert relay.help_voter(NEEDY, 1) == []
    later = PROPOSAL.model_copy(update={"attempt": 2})
    assert bodies(relay.keep(Arrived(PROPOSER, later, signature_of(PROPOSER, later)))) == [later], "it had asked"
    assert relay.keep(Arrived(PROPOSER, MOTION, signature_of(PROPOSER, MOTION))) == [], "it is of an older attempt"
    assert relay.help_voter(NEEDY, 1) == [], "each once"


def test_as_many_help_as_have_an_honest_one_among_them() -> None:
    circle = PEERS[:4]
    for peer in circle:
        those = helpers(BASE, peer, circle)
        assert len(those) == len(set(those)) == tolerated(4) + 1 and peer not in those
    idle = next(peer for peer in circle if peer not in helpers(BASE, NEEDY, circle) and peer != NEEDY)
    assert a_relay(idle, PROPOSAL).help_voter(NEEDY, 1) == []


def test_a_member_that_knows_of_no_plan_is_told_of_it_and_nobody_else() -> None:
    plan_members = [PeerId(member.peer) for member in a_plan().members]
    needy = plan_members[0]
    relay = a_relay(helpers(BASE, needy, plan_members)[0], PROPOSAL, MOTION)
    assert bodies(relay.help_member(needy)) == [PROPOSAL]
    assert relay.help_member(PEERS[4]) == []


def test_a_proposal_told_to_one_voter_reaches_all() -> None:
    parliament = Parliament(4)
    liar = first_proposer(parliament)
    favoured = next(peer for peer in parliament.seats if peer != liar)
    parliament.call()
    parliament.queue = [each for each in parliament.queue if each[1] == favoured]
    parliament.make_puppet(liar)
    parliament.pass_on(Proposal)
    assert [seat.me for seat in parliament.seats.values() if seat.exchanged] == [favoured]
    parliament.run(1.5)
    assert all(seat.exchanged for seat in parliament.seats.values() if seat.me != liar)
    parliament.run(20)
    assert len(parliament.commits()) == 3 and len(parliament.records()) == 1


def test_a_refusal_in_the_exchange_has_the_plan_passed_on() -> None:
    parliament = Parliament(4)
    needy = parliament.base.in_turn(parliament.seats)[1]
    parliament.call()
    parliament.queue = [each for each in parliament.queue if each[1] != needy]
    parliament.pass_on(Proposal)
    for seat in parliament.seats.values():
        parliament.tell(seat, PlanUnknown(needy))
    assert [each[2].KIND for each in parliament.queue if each[1] == needy].count(Proposal.KIND) == 2


def test_a_leaver_leaves_what_is_put_to_the_vote_with_all_voters() -> None:
    relay = a_relay(HELPER, PROPOSAL, MOTION)
    farewell = relay.farewell()
    assert {effect.to for effect in farewell} == {*PEERS[:4]} - {HELPER}
    assert bodies(farewell) == [MOTION] * 3, "a plan alone is of no use to them"
    assert a_relay(HELPER, PROPOSAL).farewell() == []
