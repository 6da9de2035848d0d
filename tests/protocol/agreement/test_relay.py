"""What a proposer tells some only reaches the others, once from each, and as it was signed."""

from __future__ import annotations

from protocol.agreement.events import Arrived, Forward, PlanUnknown
from protocol.agreement.machine import Relay
from protocol.wire.envelope import Body
from protocol.wire.identity import PeerId
from protocol.wire.messages import Proposal, unpack
from tests.protocol.agreement.parliament import Parliament, first_proposer
from tests.protocol.council import (
    BASE,
    PEERS,
    RUN,
    a_plan,
    a_record_proposal,
    a_view_change,
    signature_of,
    signed,
)

PROPOSER, _, NEEDY, OTHER = BASE.in_turn(PEERS[:4])
PROPOSAL = Proposal(attempt=1, absent=[], plan=a_plan(), view_changes=[signed(PEERS[0], a_view_change(1))])
MOTION = a_record_proposal(1)


def a_relay(*said: Body) -> Relay:
    """Of a peer that has taken up these statements of the proposer."""
    relay = Relay(RUN)
    for body in said:
        relay.keep(Arrived(PROPOSER, body, signature_of(PROPOSER, body)))
    return relay


def bodies(effects: list[Forward]) -> list[Body]:
    """What is passed on, of which each signature was checked."""
    opened = [unpack(effect.raw, RUN) for effect in effects]
    assert all(sender == PROPOSER for sender, _, _ in opened)
    return [body for _, body, _ in opened]


def test_the_newest_attempt_is_passed_on_to_each_once() -> None:
    relay = a_relay(PROPOSAL)
    assert bodies(relay.forward(NEEDY)) == [PROPOSAL]
    sent = relay.keep(Arrived(PROPOSER, MOTION, signature_of(PROPOSER, MOTION)))
    assert bodies(sent) == [MOTION] and sent[0].to == NEEDY, "it lacked the plan"
    assert bodies(relay.forward(OTHER)) == [MOTION], "nobody needs the plan any more"
    assert relay.forward(NEEDY) == relay.forward(PROPOSER) == relay.forward(PEERS[4], 2) == []
    later = PROPOSAL.model_copy(update={"attempt": 2})
    relay.keep(Arrived(PROPOSER, later, signature_of(PROPOSER, later)))
    relay.keep(Arrived(PROPOSER, MOTION, signature_of(PROPOSER, MOTION)))
    assert bodies(relay.forward(NEEDY)) == [later], "the record proposal is of an older attempt"
    assert relay.forward(NEEDY) == []


def test_strangers_and_peers_of_another_round_are_passed_nothing() -> None:
    """Keys are free, and each would be sent all statements of the attempt."""
    parliament = Parliament(4)
    parliament.call()
    parliament.pass_on(Proposal)
    seat = next(seat for seat in parliament.seats.values() if seat.me != first_proposer(parliament))
    here = a_view_change(0)
    elsewhere = here.model_copy(update={"round": 777})
    for sender, view_change, passed in ((PEERS[4], here, 1), (PEERS[3], elsewhere, 0), (PeerId("stranger"), here, 0)):
        said = Arrived(sender, view_change, bytes(64))
        effects = seat.machine.handle(said, parliament.view(seat.me), parliament.now)
        assert sum(isinstance(effect, Forward) for effect in effects) == passed


def test_a_refusal_in_the_exchange_has_the_plan_passed_on() -> None:
    parliament = Parliament(4)
    needy = parliament.base.in_turn(parliament.seats)[1]
    parliament.call()
    parliament.queue = [each for each in parliament.queue if each[1] != needy]
    parliament.pass_on(Proposal)
    for seat in parliament.seats.values():
        parliament.tell(seat, PlanUnknown(needy))
    assert [each[2].KIND for each in parliament.queue if each[1] == needy].count(Proposal.KIND) == 2, (
        "of all that have it but its proposer"
    )


def test_a_leaver_leaves_what_is_put_to_the_vote_with_all_voters() -> None:
    relay = a_relay(PROPOSAL, MOTION)
    farewell = relay.farewell([NEEDY, OTHER])
    assert {effect.to for effect in farewell} == {NEEDY, OTHER}
    assert bodies(farewell) == [MOTION] * 2
    assert a_relay(PROPOSAL).farewell([NEEDY]) == [], "a plan alone is of no use to them"
