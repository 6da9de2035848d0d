"""What holds for all tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
"""An example may take as long as it takes: on a busy machine any of them exceeds hypothesis's 200 ms now and then."""

os.environ["PEER_CONFIG"] = ""
"""Nobody's own peer.toml, for us and for the processes that tests start."""

for size in ("COLUMNS", "LINES"):  # set by pytest-xdist: a program in a test's terminal would believe them, not its terminal
    os.environ.pop(size, None)
