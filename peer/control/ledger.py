"""Table of all contributions in the record chain, for `peer ledger` and the control socket.

`protocol.chain.credit.ledger` counts, so that all peers count in the same way; this module adds the table and the shares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peer.control.client import Stamped, logged_events
from peer.control.event_log import LOG_NAMES
from protocol.chain import credit
from protocol.chain.store import Store
from protocol.events import events as ev
from protocol.events.events import PeerJoined, Started
from protocol.events.rollout_tally import VERDICTS, BatchSeen, RolloutTally
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit

# ------------------------------------------------------------------------------------------------------------------------
# Fate of a peer's rollouts, from the event log of a run: the log covers earlier processes, and no peer has to run.
#
# The log is bounded (`peer.control.event_log`), and only the last batches in it are listed.


MOST_NAMES = 4096
MOST_ASIDE = 50


def told_rollouts(folder: Path, most: int) -> dict[str, Any] | None:
    """Summarise the rollouts in the event log of `folder`, with at most `most` batches; None if the log has no rollouts.

    `{peer, role, counts, reward, accepted_tokens, set_aside, batches, untold, names}`, newest batch first.  A rollout peer
    lists the batches that it made, a validator the batches that it judged, and a trainer the batches meant for it.
    """
    tally, names, role = RolloutTally(), dict[str, str](), ""
    for stamped in _events(folder):
        event = stamped.event
        tally.apply(event, stamped.at)
        match event:
            case ev.Started(peer, name):
                tally.me = peer
                names[peer] = name
            case ev.PeerJoined(peer, name) if len(names) < MOST_NAMES:
                names[peer] = name
            case ev.RolloutsGenerated():
                role = "rollout"
            case ev.RolloutsUsed():
                role = "trainer"
            case ev.BatchDecided(author) if author != tally.me:
                role = "trainer"
            case ev.BatchJudged(validator=judge) if judge == tally.me and role != "trainer":
                role = "validator"
    if not tally.seen:
        return None
    batches = {"rollout": tally.last(author=tally.me), "validator": tally.last(judge=tally.me)}.get(role, tally.last())
    told = batches[:most]
    return {
        "peer": tally.me,
        "role": role or "trainer",
        "counts": _counts(tally, batches),
        "reward": tally.rewards[-1][1] if tally.rewards else None,
        "accepted_tokens": tally.accepted_tokens,
        "set_aside": [asdict(each) for each in tally.aside],
        "batches": [asdict(batch) for batch in told],
        "untold": len(batches) - len(told),
        "names": {peer: names[peer] for peer in sorted(_peers(tally, told) & set(names))},
    }


def _counts(tally: RolloutTally, batches: list[BatchSeen]) -> dict[str, int]:
    """Count the batches by verdict, and the batches that this peer generated, judged and used."""
    by_verdict = {verdict: sum(batch.verdict == verdict for batch in batches) for verdict in VERDICTS}
    return {**by_verdict, "generated": tally.generated, "judged": tally.judged, "used": tally.used}


def _peers(tally: RolloutTally, batches: list[BatchSeen]) -> set[str]:
    found = {tally.me, *(each.peer for each in tally.aside)}
    for batch in batches:
        found |= {batch.author, *batch.judges}
    return found


def _events(folder: Path) -> Iterator[Stamped]:
    """Yield the events in the log, in order."""
    return logged_events(folder / name for name in reversed(LOG_NAMES))


# ------------------------------------------------------------------------------------------------------------------------


MAX_MEMBERS_TOLD = 10_000
"""Most members in an answer on the control socket: with 150 bytes each, far below the largest frame."""


def ledger(store: Store, most: int | None = None) -> dict[str, Any]:
    """Return all contributions: `{rounds, tokens, accepted_tokens, members, untold}`.

    Each member is `{peer, rounds, tokens, share, batches, accepted_tokens}`.  Members are ordered by the tokens they
    trained, then by the tokens of their rollouts that were learned from.  A share is a share of the tokens trained.

    most: number of members to list; `untold` counts the other members.
    """
    length = store.records.length()
    return ledger_of(credit.ledger(_commits(store, length)), length, most)


def ledger_of(credits: Mapping[PeerId, credit.Credit], length: int, most: int | None = None) -> dict[str, Any]:
    """Return the same for credits over `length` rounds that were counted already."""
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
    """Return the members' names for themselves, the latest in the event log of the run in `folder`.  Blocking."""
    members, names = {member["peer"] for member in told["members"]}, dict[str, str]()
    with suppress(OSError):
        for stamped in logged_events((folder / name for name in reversed(LOG_NAMES)), PeerJoined, Started):
            if isinstance(stamped.event, PeerJoined | Started) and stamped.event.peer in members:
                names[stamped.event.peer] = stamped.event.name
    return names


def _commits(store: Store, length: int) -> Iterator[Commit]:
    for round in range(length):
        commit = store.records.at(round)
        if commit is not None:  # None if just rolled back
            yield commit
