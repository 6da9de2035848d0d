"""Who contributed what, as the record chain says it: for `peer ledger` and the control socket.

The counting is `protocol.state.chain.ledger`'s, so that every peer counts alike; here are the table and the shares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from protocol.state import chain
from protocol.state.store import Store
from protocol.wire.messages import Commit

MAX_MEMBERS_TOLD = 10_000
"""Members in an answer on the control socket: with 150 bytes each far below its largest frame."""


def ledger(store: Store, most: int | None = None) -> dict[str, Any]:
    """`{rounds, tokens, members: [{peer, rounds, tokens, share}], untold}`, the greatest share first.

    most: members told; `untold` says how many more there are.
    """
    length = store.records.length()
    credits = chain.ledger(_commits(store, length))
    total = sum(credit.tokens for credit in credits.values())
    members = [
        {"peer": peer, "rounds": credit.rounds, "tokens": credit.tokens, "share": credit.tokens / max(total, 1)}
        for peer, credit in sorted(credits.items(), key=lambda item: (-item[1].tokens, item[0]))
    ]
    told = members[:most]
    return {"rounds": length, "tokens": total, "members": told, "untold": len(members) - len(told)}


def _commits(store: Store, length: int) -> Iterator[Commit]:
    for round in range(length):
        commit = store.records.at(round)
        if commit is not None:  # rolled back meanwhile
            yield commit
