"""The clock that runs while the computer sleeps."""

from __future__ import annotations

import sys
import time

from peer.resources.computer import CLOCK, seconds_since_boot


def test_it_runs_and_on_linux_it_is_the_one_that_counts_suspended_seconds() -> None:
    before = time.monotonic()
    assert seconds_since_boot() <= seconds_since_boot()
    if sys.platform == "linux":
        assert CLOCK == time.CLOCK_BOOTTIME and seconds_since_boot() >= before
