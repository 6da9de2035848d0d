"""The table of two replicas."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from protocol.run.manifest import SignedManifest
from tests.protocol.sync.table import Table, a_table


@pytest.fixture
def table(tmp_path: Path, signed: SignedManifest, virtual_time: None) -> AbstractAsyncContextManager[Table]:
    return a_table(tmp_path, signed)
