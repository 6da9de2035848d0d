"""How many files and sockets this process may have open."""

from __future__ import annotations

import resource

WANTED = 4096
"""More than all connections together that a peer allows, and its own files."""


def raise_open_files() -> int:
    """Raise this process's limit to `WANTED`, or as far as the system allows; returns the limit that holds then.

    The usual limit of 1024 is less than strangers may take of a peer, and a peer that can open no file stops.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= WANTED:
        return WANTED if soft == resource.RLIM_INFINITY else soft
    limit = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (ValueError, OSError):
        return soft
    return limit
