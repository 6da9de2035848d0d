"""Who contributed what, as the record chain says it: for `peer ledger` and the control socket.

The counting is `protocol.state.chain.ledger`'s, so that every peer counts alike; here are the table and the shares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from protocol.state import chain
from protocol.state.store import Store
from protocol.wire.messages import Commit


def ledger(store: Store) -> dict[str, Any]:
    """`{rounds, tokens, members: [{peer, rounds, tokens, share}]}`, the greatest share first."""
    length = store.records.length()
    credits = chain.ledger(_commits(store, length))
    total = sum(credit.tokens for credit in credits.values())
    members = [
        {"peer": peer, "rounds": credit.rounds, "tokens": credit.tokens, "share": credit.tokens / max(total, 1)}
        for peer, credit in sorted(credits.items(), key=lambda item: (-item[1].tokens, item[0]))
    ]
    return {"rounds": length, "tokens": total, "members": members}


def _commits(store: Store, length: int) -> Iterator[Commit]:
    for round in range(length):
        commit = store.records.at(round)
        if commit is not None:  # rolled back meanwhile
            yield commit
