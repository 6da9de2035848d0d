"""Table of all contributions in the record chain, for `peer ledger` and the control socket.

`protocol.chain.credit.ledger` counts, so that every peer counts alike; this module adds the table and the shares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from peer.control.event_lines import stamped_in
from peer.control.event_log import LOG_NAMES
from protocol.chain import credit
from protocol.chain.store import Store
from protocol.events.events import PeerJoined, Started
from protocol.wire.messages import Commit

MAX_MEMBERS_TOLD = 10_000
"""Limit of members in an answer on the control socket: with 150 bytes each, far below the largest frame."""
MAX_LINE = 1 << 16
NAMED_IN = (b"PeerJoined", b"Started")
"""Words in the lines of the event log that tell a peer's name for itself."""


def ledger(store: Store, most: int | None = None) -> dict[str, Any]:
    """Return `{rounds, tokens, accepted_tokens, members: [{peer, rounds, tokens, share, batches, accepted_tokens}],
    untold}`.

    Members come in order of the tokens they trained, then of the tokens of their rollouts that were learned from.  A share
    is a share of the tokens trained.

    most: members told; `untold` counts the others.
    """
    length = store.records.length()
    credits = credit.ledger(_commits(store, length))
    total = sum(each.tokens for each in credits.values())
    ranked = sorted(credits.items(), key=lambda item: (-item[1].tokens, -item[1].accepted_tokens, item[0]))
    members = [{"peer": peer, "share": each.tokens / max(total, 1), **vars(each)} for peer, each in ranked]
    told = members[:most]
    return {
        "rounds": length,
        "tokens": total,
        "accepted_tokens": sum(each.accepted_tokens for each in credits.values()),
        "members": told,
        "untold": len(members) - len(told),
    }


def names_in(folder: Path, told: Mapping[str, Any]) -> dict[str, str]:
    """Return the members' names for themselves, as the event log of the run in `folder` heard them last.  Blocking."""
    members, names = {member["peer"] for member in told["members"]}, dict[str, str]()
    for name in reversed(LOG_NAMES):
        with suppress(OSError), (folder / name).open("rb") as file:
            while line := file.readline(MAX_LINE):
                stamped = stamped_in(line) if any(kind in line for kind in NAMED_IN) else None
                if stamped is not None and isinstance(stamped.event, PeerJoined | Started) and stamped.event.peer in members:
                    names[stamped.event.peer] = stamped.event.name
    return names


def _commits(store: Store, length: int) -> Iterator[Commit]:
    for round in range(length):
        commit = store.records.at(round)
        if commit is not None:  # rolled back meanwhile
            yield commit
