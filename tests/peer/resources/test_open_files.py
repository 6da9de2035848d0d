"""The limit of open files is raised, and inbound connections keep below it."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from peer.resources.computer import WANTED
from protocol.transport.inbound_policy import InboundLimits

HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
PROGRAM = """
import resource, sys
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from peer.resources.computer import raise_open_files
print(raise_open_files(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(("soft", "hard", "then"), [(256, WANTED, WANTED), (256, 1024, 1024), (700, 700, 700)])
def test_the_limit_is_raised_as_far_as_it_goes(soft: int, hard: int, then: int) -> None:
    assert HARD == resource.RLIM_INFINITY or hard <= HARD, "this computer allows fewer files than the test sets"
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(soft), str(hard)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(then), str(then)]


@pytest.mark.parametrize("files", [256, 1024, 2048, WANTED])
def test_inbound_connections_leave_room_for_everything_else(files: int) -> None:
    limits = InboundLimits.within(files)
    taken = limits.queue + limits.strangers + limits.greeted
    assert taken <= max(files - 256, 3 * 16) and limits.greeted >= 16
    assert limits == InboundLimits() or files < 2048
