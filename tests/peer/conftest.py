"""The commands are described to the parser once, and not for each of the many command lines that tests run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from peer.cli import build_parser


@pytest.fixture(scope="session", autouse=True)
def one_parser() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("peer.cli.build_parser", cache(build_parser))
        yield
