"""A record of the run that an invitation names, so that a newcomer cannot be shown another history."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protocol.wire.body import Body, HashField

MAX_ROUNDS = 1 << 53


class Anchor(Body):
    """After so many rounds the tip of the chain is `tip`: a final record, as whoever invites knows it."""

    rounds: Annotated[int, Field(ge=1, le=MAX_ROUNDS)]
    tip: HashField
