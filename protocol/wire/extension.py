"""The organiser's statement that a run goes on for longer than its manifest says."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from protocol.wire.body import Body

MAX_TOTAL = 1 << 53
"""Tokens or rounds of a run at most."""
Total = Annotated[int, Field(ge=1, le=MAX_TOTAL)]


class Extension(Body):
    """The run's total from the record on that carries it, in the unit of the manifest's total.

    It is its own number: a chain takes none that does not raise the total, so an older one, or the same one again, is
    refused.
    """

    KIND: ClassVar[str] = "extension"
    total: Total
