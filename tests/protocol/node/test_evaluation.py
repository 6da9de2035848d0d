"""Who is drawn to measure a state, and whose claim counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.node.evaluator import (
    RECENT_ROUNDS,
    CommittedState,
    MeasuredLoss,
    Measurements,
    drawn_order,
    refusal,
)
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import Identity
from protocol.wire.presence import Measurement

PEERS = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(6)]
TIP = hash_bytes("record", b"tip")
STATE = CommittedState(5, TIP, tuple(PEERS[:5]))
ORDER = drawn_order(TIP, STATE.members)
CLAIM = Measurement(rounds=5, tip=TIP, loss=1.5)


def all_able(peer: str) -> bool:
    return True


@given(st.binary(min_size=1, max_size=8), st.permutations(PEERS))
def test_the_order_is_a_function_of_the_tip_and_the_members(seed: bytes, peers: list[str]) -> None:
    tip = hash_bytes("record", seed)
    order = drawn_order(tip, peers)  # type: ignore[arg-type]
    assert order == drawn_order(tip, PEERS) and sorted(order) == sorted(PEERS)
    without_the_first = drawn_order(tip, [peer for peer in PEERS if peer != order[0]])
    assert without_the_first == order[1:], "who falls out changes nothing for the others"


def test_whoever_is_drawn_is_believed() -> None:
    assert refusal(CLAIM, ORDER[0], STATE, ORDER, all_able) == ""
    assert refusal(CLAIM, ORDER[2], STATE, ORDER, lambda peer: peer not in ORDER[:2]) == "", "the others are gone"


def test_claims_of_others_and_of_other_rounds_are_refused() -> None:
    assert "another peer was drawn" in refusal(CLAIM, ORDER[1], STATE, ORDER, all_able)
    assert "not a member" in refusal(CLAIM, PEERS[5], STATE, ORDER, all_able)
    assert "round 4" in refusal(Measurement(rounds=4, tip=TIP, loss=1.5), ORDER[0], STATE, ORDER, all_able)


def test_the_first_word_on_a_state_stands() -> None:
    known = Measurements()
    assert not known.take(STATE, MeasuredLoss(3, 1.0, ORDER[0])), "a state that nobody opened"
    known.open(STATE)
    assert known.take(STATE, MeasuredLoss(3, 1.0, ORDER[0], (0.5, 1.5)))
    assert not known.take(STATE, MeasuredLoss(3, 9.0, ORDER[1]))
    known.open(STATE)
    measured = known.of(TIP)
    assert measured is not None and (measured.loss, measured.by, measured.losses) == (1.0, ORDER[0], (0.5, 1.5))


def test_the_loss_of_a_run_on_the_members_own_data_is_the_mean_over_those_that_announced_one() -> None:
    known = Measurements(by_all=True)
    known.open(STATE)
    assert all(known.needs(TIP, peer) for peer in ORDER)
    assert known.take(STATE, MeasuredLoss(5, 1.0, ORDER[0])) and not known.needs(TIP, ORDER[0])
    assert known.of(TIP) == MeasuredLoss(5, 1.0, ORDER[0])
    assert known.needs(TIP, ORDER[1]) and known.take(STATE, MeasuredLoss(5, 4.0, ORDER[1]))
    assert not known.take(STATE, MeasuredLoss(5, 9.0, ORDER[1])), "a member speaks once"
    assert known.of(TIP) == MeasuredLoss(5, 2.5, ORDER[1], members=2)


def test_only_recent_states_are_kept_and_only_those_of_our_chain_shown() -> None:
    known = Measurements()
    states = [CommittedState(n, hash_bytes("record", bytes([n])), ()) for n in range(RECENT_ROUNDS + 2)]
    for state in states:
        known.open(state)
        known.take(state, MeasuredLoss(state.rounds, float(state.rounds), PEERS[0]))
    assert known.state(states[1].tip) is None and known.of(states[1].tip) is None
    assert known.state(states[2].tip) == states[2]
    newest = known.newest(lambda state: state.rounds < 5)
    assert newest is not None and newest.loss == 4.0
    assert known.newest(lambda state: False) is None
