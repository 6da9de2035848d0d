"""A section of the manifest, and how a section grows without changing the runs that there are."""

from __future__ import annotations

from pydantic import ConfigDict

from protocol.wire.body import Growing


class Section(Growing):
    """A part of the manifest.  The docstring below a field is its description in messages and documentation."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)
