"""Deliveries that a leaver waits for."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from protocol.node.round_runner import PendingDeliveries


@pytest.mark.parametrize("durations", [[], [1.0], [1.0, 3.0, 2.0]])
def test_it_is_over_when_the_last_delivery_is(durations: list[float]) -> None:
    async def deliver(deliveries: PendingDeliveries, seconds: float) -> None:
        with deliveries.delivery():
            await trio.sleep(seconds)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            deliveries, began = PendingDeliveries(nursery), trio.current_time()
            for seconds in durations:
                nursery.start_soon(deliver, deliveries, seconds)
            await trio.testing.wait_all_tasks_blocked()
            await deliveries.delivered()
            assert trio.current_time() - began == max(durations, default=0.0)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
