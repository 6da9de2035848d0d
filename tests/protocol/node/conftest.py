"""The entrance of a node."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from protocol.run.manifest import SignedManifest
from tests.protocol.node.stage import Stage, a_stage


@pytest.fixture
def stage(tmp_path: Path, signed: SignedManifest, virtual_time: None) -> AbstractAsyncContextManager[Stage]:
    return a_stage(tmp_path, signed)
