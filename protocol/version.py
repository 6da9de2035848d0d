"""The version of this software: pyproject.toml says it, the installed distribution carries it."""

from __future__ import annotations

NOT_INSTALLED = "0 (not installed)"


def version() -> str:
    """The version of the installed distribution; `NOT_INSTALLED` for a source tree that is not installed."""
    from importlib import metadata  # only when it is asked for: `peer --help` must be quick

    try:
        return metadata.version("manyhands")
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED
