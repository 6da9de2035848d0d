"""How peers look to a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.wire.identity import PeerId


@dataclass(frozen=True)
class PeerView:
    """How a peer looks now.  `on_tip`: a live trainer at work on our tip; `near`: on its way to it, a round or two behind.

    left: it said goodbye.  silent_s: seconds since it was heard, 0 while it is live.  bytes_per_s: 0: not known.
    """

    live: bool
    on_tip: bool
    left: bool
    silent_s: float
    bytes_per_s: float = 0.0
    near: bool = False


View = Mapping[PeerId, PeerView]
"""Everybody we know or who is an elector, ourselves included."""
