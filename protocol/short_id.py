"""The one short form of a peer ID: in log lines, tables, the interface and the sentences of events.  Imports nothing."""

from __future__ import annotations

SHORT_CHARS = 6


def short_id(peer: str) -> str:
    """Return "…" and the last six characters of a peer ID; the beginning is the same for all peers."""
    return f"…{peer[-SHORT_CHARS:]}"
