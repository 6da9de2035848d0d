"""How many sockets a peer gets, what a line carries, and who gives way."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from math import inf

import pytest

from protocol.transport.bulk_flows import (
    FAR_SOCKETS,
    GROWTH,
    KEPT,
    LEAST_BYTES_PER_S,
    MARGIN,
    PACED_BELOW,
    SLOW_TIMES,
    Flows,
    Gauge,
    fair_shares,
)
from protocol.transport.bulk_link import FRAME_BYTES, Link, SocketState
from protocol.transport.bulk_sending import TRICKLE_SHARE, WAY_S, BulkSocket, Sending, _OutgoingPush
from protocol.transport.interface import nothing
from protocol.transport.rate_limit import SMALLEST_FRAME_BYTES, RateLimit
from protocol.wire.identity import PeerId


class Line:
    """One socket to a peer, which carries `rate` bytes a second."""

    def __init__(self, rate: float) -> None:
        self.flows, self.rate, self.acked, self.now = Flows(), rate, 0, 0.0

    def go_on(self, seconds: int, share: float) -> None:
        """Some seconds in which the socket always has data to send, and is allowed `share`."""
        for _ in range(seconds):
            self.acked += int(self.rate)
            self.now += 1.0
            self.flows.read({"socket": SocketState(0.001, self.acked, 0)}, share, True, self.now)


@pytest.mark.parametrize(("rtt_s", "sockets"), [(0.0, 1), (0.009, 1), (0.010, FAR_SOCKETS), (0.3, FAR_SOCKETS)])
def test_one_socket_goes_to_a_near_peer_and_several_to_a_far_one(rtt_s: float, sockets: int) -> None:
    flows = Flows()
    assert flows.number == 1, "until the way is known"
    flows.reached(rtt_s)
    assert flows.number == sockets


def test_a_peer_takes_what_it_was_seen_to_take_and_a_little_more() -> None:
    line = Line(rate=1e6)
    line.go_on(SLOW_TIMES, share=4e6)
    assert line.flows.takes == inf, "one slow second tells little"
    line.go_on(1, share=4e6)
    assert line.flows.takes == pytest.approx(1e6 * MARGIN)
    line.go_on(1, share=1e6)
    assert line.flows.takes == inf, "it took all that it was allowed"


def test_a_peer_that_took_next_to_nothing_costs_the_others_nothing_and_is_not_stopped() -> None:
    line = Line(rate=0.0)
    assert line.flows.pace(100.0) == 100.0
    line.go_on(SLOW_TIMES + 1, share=4e6)
    assert line.flows.takes == 1.0
    assert line.flows.pace(1.0) == LEAST_BYTES_PER_S and line.flows.pace(4e6) == 4e6


def test_shares_are_fair() -> None:
    assert fair_shares(12.0, [inf, inf, inf]) == [4, 4, 4]
    assert fair_shares(12.0, [inf, 1.0, inf]) == [5.5, 1, 5.5]
    assert fair_shares(12.0, [5.0, 1.0, inf]) == [5, 1, 6]
    assert fair_shares(12.0, [1.0, 2.0]) == [5.5, 6.5], "what nobody takes is shared out, too"
    assert fair_shares(inf, [1.0, inf]) == [inf, inf] and fair_shares(12.0, []) == []


pytestmark = pytest.mark.usefixtures("virtual_time")


def test_a_gauge_shows_the_best_window_of_all_sockets_together() -> None:
    gauge = Gauge()
    assert gauge.up_bytes_per_s == gauge.down_bytes_per_s == 0.0
    gauge.read({"a": SocketState(0.01, 10**9, 0), "b": SocketState(0.01, 0, 0)}, 10.0, inf)
    assert gauge.up_bytes_per_s == 0.0, "what a socket did before it was first seen has no time"
    gauge.read({"a": SocketState(0.01, 10**9 + 3_000_000, 5), "b": SocketState(0.01, 1_000_000, 0)}, 12.0, inf)
    assert gauge.up_bytes_per_s == 2_000_000.0 and gauge.down_bytes_per_s == 0.0
    gauge.read({"b": SocketState(0.01, 2_000_000, 4_000_000)}, 13.0, inf)
    assert gauge.up_bytes_per_s == KEPT * 2_000_000.0 and gauge.down_bytes_per_s == 4_000_000.0
    gauge.read({"b": SocketState(0.01, 2_000_000, 4_000_000)}, 14.0, inf)
    assert gauge.down_bytes_per_s == 4_000_000.0, "a window in which nothing moved says nothing"


@pytest.mark.parametrize(("rate", "offer"), [(0.1e6, 0.1e6 * GROWTH), (12e6, 12e6 * GROWTH), (PACED_BELOW, inf)])
def test_a_line_is_shared_out_if_it_is_known_and_not_too_fast(rate: float, offer: float) -> None:
    gauge = Gauge()
    assert gauge.offer_bytes_per_s == inf
    for second, acked in enumerate((0, int(rate))):
        state = SocketState(0.0, acked, 0, busy_s=second)
        gauge.read({"a": state}, float(second), inf, {"a": state})
    assert gauge.offer_bytes_per_s == pytest.approx(offer)


@pytest.mark.parametrize(("busy_s", "held_back_s"), [(0.02, 0.0), (1.0, 0.9)])
def test_sockets_that_wait_for_the_other_end_do_not_measure_our_line(busy_s: float, held_back_s: float) -> None:
    """A relay takes 1.25 MB a second, at once and then nothing for a while, or in small pieces all the time."""
    gauge, relayed, direct = Gauge(), SocketState(0.0, 0, 0), SocketState(0.0, 0, 0)
    for second in range(1, 20):
        relayed = replace(
            relayed,
            acked_bytes=relayed.acked_bytes + 1_250_000,
            busy_s=relayed.busy_s + busy_s,
            held_back_s=relayed.held_back_s + held_back_s,
        )
        gauge.read({"relayed": relayed}, float(second), gauge.offer_bytes_per_s, {"relayed": relayed})
        assert gauge.offer_bytes_per_s == inf
    for acked, second in ((0, 20), (12_000_000, 21)):
        direct = replace(direct, acked_bytes=acked, busy_s=direct.busy_s + 1.0)
        both: dict[Hashable, SocketState] = {"relayed": relayed, "direct": direct}
        gauge.read(both, float(second), gauge.offer_bytes_per_s, both)
    assert gauge.line_bytes_per_s == 12_000_000, "a socket that always sends does"


# -- giving way -----------------------------------------------------------------------------------------------------------


async def test_what_gives_way_takes_a_small_part_of_the_line_however_many_sockets_it_has() -> None:
    async def dial(peer: PeerId) -> Link:
        raise AssertionError("nothing is sent")

    urgent = Sending(dial, RateLimit())
    spare = Sending(dial, RateLimit(), first=urgent)
    assert spare.frame(has_waited=False) == FRAME_BYTES
    assert spare.frame(has_waited=True) == SMALLEST_FRAME_BYTES, "while nobody knows how fast the line is"
    spare.measure(inf, 5e6, 0.0)
    for number in (1, 2, 5):
        sockets = [BulkSocket(spare, PeerId("somebody")) for _ in range(number)]
        spare._sockets[PeerId("somebody")] = sockets
        for socket in sockets:
            socket._waiting.append(_OutgoingPush(b"", memoryview(b"spare"), nothing))
        taken = number * spare.frame(has_waited=True) / WAY_S
        assert taken == pytest.approx(TRICKLE_SHARE * 5e6, rel=0.01)
    spare.measure(inf, 1e9, 0.0)
    assert spare.frame(has_waited=True) == FRAME_BYTES
    spare.measure(inf, 1e5, 0.0)
    assert spare.frame(has_waited=True) == SMALLEST_FRAME_BYTES, "so that nobody takes it for dead"
