"""The version stands in pyproject.toml alone."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from protocol.transport.library import agent_version
from protocol.version import NOT_INSTALLED, version

ROOT = Path(__file__).parents[2]


def test_the_version_is_the_projects() -> None:
    assert version() == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert agent_version() == f"manyhands/{version()}"


def test_a_tree_that_is_not_installed_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert version() == NOT_INSTALLED
