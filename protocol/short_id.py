"""The short form of a peer ID for log lines, tables, the interface and the sentences of events.  Imports nothing."""

from __future__ import annotations

SHORT_CHARS = 6


def short_id(peer: str) -> str:
    """Return "…" and the last six characters of a peer ID, because all peer IDs begin with the same characters."""
    return f"…{peer[-SHORT_CHARS:]}"
