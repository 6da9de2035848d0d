"""The version of this software, set in pyproject.toml and carried by the installed distribution."""

from __future__ import annotations

NOT_INSTALLED = "0 (not installed)"


def version() -> str:
    """Return the version of the installed distribution; `NOT_INSTALLED` for a source tree that is not installed."""
    from importlib import metadata  # imported only on use, because `peer --help` must be quick

    try:
        return metadata.version("manyhands")
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED
