"""The table of a swarm, whose tasks take their turns in one order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tests.protocol.blobs.swarm_table import SwarmTable, a_swarm_table
from tests.simulation.determinism import deterministic_trio


@pytest.fixture
def how() -> dict[str, Any]:
    """Of most tables; `set_up` names another one."""
    return {}


@pytest.fixture
def table(how: dict[str, Any], virtual_time: None) -> Iterator[AbstractAsyncContextManager[SwarmTable]]:
    with deterministic_trio(1):
        yield a_swarm_table(**how)
