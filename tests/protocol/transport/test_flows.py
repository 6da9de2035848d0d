"""How many sockets a peer gets, and which share of our line."""

from __future__ import annotations

from collections.abc import Hashable
from math import inf

import pytest

from protocol.transport.bulk_flows import (
    GAIN,
    LEAST_BYTES_PER_S,
    MARGIN,
    MAX_FLOWS,
    OPENING_S,
    REST_S,
    SLOW_TIMES,
    TRIAL_S,
    Flows,
    fair_shares,
    first_guess,
)
from protocol.transport.bulk_link import SocketState

FAR_S = 0.080


class Line:
    """Sockets to one peer, of which each carries `each` bytes a second, and all together no more than `most`."""

    def __init__(self, each: float, most: float = inf, rtt_s: float = FAR_S, queue_s: float = 0.0) -> None:
        self.flows, self.each, self.most, self.rtt_s, self.queue_s = Flows(), each, most, rtt_s, queue_s
        self.flows.reached(rtt_s)
        self.acked = [0] * MAX_FLOWS
        self.open = MAX_FLOWS
        self.now = 0.0

    def go_on(self, seconds: int, share: float = inf, busy: bool = True) -> list[int]:
        """The number of sockets after each second."""
        numbers = []
        for _ in range(seconds):
            rate = min(self.each, self.most / self.flows.number)
            for index in range(min(self.flows.number, self.open)):
                self.acked[index] += int(rate)
            states: dict[Hashable, SocketState] = {
                index: SocketState(self.rtt_s + self.queue_s, self.acked[index], 0, least_rtt_s=self.rtt_s)
                for index in range(self.open)
            }
            self.now += 1.0
            self.flows.read(states, share, busy, self.now)
            numbers.append(self.flows.number)
        return numbers


def test_the_first_guess_goes_by_the_round_trip_time() -> None:
    assert [first_guess(rtt) for rtt in (0.0, 0.001, 0.02, 0.045, 0.085, 3.0)] == [1, 1, 2, 3, 4, 4]


def test_sockets_are_added_as_long_as_they_carry_more() -> None:
    line = Line(each=1e6, rtt_s=0.020)
    assert line.flows.number == 2
    assert line.go_on(20)[-1] == MAX_FLOWS


def test_what_carries_no_more_is_taken_back_and_tried_again_much_later() -> None:
    line = Line(each=1e6, most=2e6 * GAIN * 0.99, rtt_s=0.020)
    numbers = line.go_on(20)
    tried = 1 + int(TRIAL_S)
    assert numbers[1] == 4 and numbers[1 + tried :] == [2] * (19 - tried)
    later = line.go_on(int(REST_S))
    assert later.count(4) == tried


def test_sockets_that_are_not_open_yet_are_not_judged() -> None:
    line = Line(each=1e6, rtt_s=0.020)
    line.open = 2
    assert line.go_on(2 + int(OPENING_S) - 1)[1:] == [4] * int(OPENING_S)
    assert line.go_on(int(REST_S)) == [2] * int(REST_S), "nor waited for for ever"
    line.go_on(1)
    line.open = MAX_FLOWS
    assert line.go_on(10)[-1] == MAX_FLOWS


@pytest.mark.parametrize(
    ("line", "share"),
    [
        (Line(each=1e6, rtt_s=0.001), inf),
        (Line(each=1e6, queue_s=0.100), inf),
        (Line(each=1e6), 4e6),
    ],
    ids=["near by", "the line is full", "no more is allowed"],
)
def test_no_socket_is_added_where_it_can_gain_nothing(line: Line, share: float) -> None:
    before = line.flows.number
    assert set(line.go_on(20, share)) == {before}


def test_a_trial_that_ends_for_want_of_data_decides_nothing() -> None:
    line = Line(each=1e6, rtt_s=0.020)
    assert line.go_on(3)[-1] == 4
    assert line.go_on(1, busy=False) == [2]
    assert line.go_on(1) == [4], "nor does it have to rest"


def test_a_peer_that_refuses_sockets_is_not_asked_for_more_for_a_while() -> None:
    line = Line(each=1e6, rtt_s=0.020)
    line.go_on(2)
    line.flows.refused(3, line.now)
    assert line.go_on(int(REST_S) - 1) == [3] * (int(REST_S) - 1)
    assert line.go_on(1) == [6], "it, or we, may have had no room for a moment only"
    line.flows.refused(8, line.now)
    assert line.flows.number == 6, "sockets of a trial that is over may still be open"


def test_a_peer_takes_what_it_was_seen_to_take_and_a_little_more() -> None:
    line = Line(each=1e6, most=2e6, rtt_s=0.001)
    line.go_on(SLOW_TIMES, share=4e6)
    assert line.flows.takes == inf, "one slow second tells little"
    line.go_on(1, share=4e6)
    assert line.flows.takes == pytest.approx(1e6 * MARGIN)
    line.go_on(1, share=1e6)
    assert line.flows.takes == inf, "it took all that it was allowed"


def test_a_peer_that_took_next_to_nothing_costs_the_others_nothing_and_is_not_stopped() -> None:
    line = Line(each=0.0, rtt_s=0.001)
    assert line.flows.pace(100.0) == 100.0
    line.go_on(SLOW_TIMES + 1, share=4e6)
    assert line.flows.takes == 1.0
    assert line.flows.pace(1.0) == LEAST_BYTES_PER_S and line.flows.pace(4e6) == 4e6


def test_slow_seconds_count_only_in_a_row() -> None:
    line = Line(each=1e6, rtt_s=0.001)
    for _ in range(SLOW_TIMES + 1):
        line.go_on(2, share=4e6)
        line.go_on(1, busy=False)
    assert line.flows.takes == inf


def test_shares_are_fair() -> None:
    assert fair_shares(12.0, [inf, inf, inf]) == [4, 4, 4]
    assert fair_shares(12.0, [inf, 1.0, inf]) == [5.5, 1, 5.5]
    assert fair_shares(12.0, [5.0, 1.0, inf]) == [5, 1, 6]
    assert fair_shares(12.0, [1.0, 2.0]) == [5.5, 6.5], "what nobody takes is shared out, too"
    assert fair_shares(inf, [1.0, inf]) == [inf, inf] and fair_shares(12.0, []) == []
