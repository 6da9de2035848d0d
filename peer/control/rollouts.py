"""Fate of a peer's rollouts, from the event log of a run: earlier lives count, and no peer has to run.

The log is bounded (`peer.control.event_log`), and only its last batches are listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peer.control.client import Stamped
from peer.control.event_lines import stamped_in
from protocol.events import events as ev
from protocol.events.rollout_tally import VERDICTS, BatchSeen, RolloutTally

LOG_NAMES = ("events.3.jsonl", "events.2.jsonl", "events.1.jsonl", "events.jsonl")
"""Files of the log, oldest first."""
MOST_LINE = 1 << 20
MOST_NAMES = 4096
MOST_ASIDE = 50


def told_rollouts(folder: Path, most: int) -> dict[str, Any] | None:
    """Summarise the rollouts in the event log of `folder`, with at most `most` batches; None if the log has no rollouts.

    `{peer, role, counts, reward, accepted_tokens, set_aside, batches, untold, names}`, newest batch first.  A rollout peer
    lists its own batches, a validator those it judged, a trainer those meant for it.
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
    """Count the batches by verdict, and this peer's generated, judged and used ones."""
    by_verdict = {verdict: sum(batch.verdict == verdict for batch in batches) for verdict in VERDICTS}
    return {**by_verdict, "generated": tally.generated, "judged": tally.judged, "used": tally.used}


def _peers(tally: RolloutTally, batches: list[BatchSeen]) -> set[str]:
    found = {tally.me, *(each.peer for each in tally.aside)}
    for batch in batches:
        found |= {batch.author, *batch.judges}
    return found


def _events(folder: Path) -> Iterator[Stamped]:
    """Yield the events in the log, in order; skip lines that hold no event."""
    for name in LOG_NAMES:
        try:
            with (folder / name).open("rb") as file:
                while line := file.readline(MOST_LINE):
                    if (stamped := stamped_in(line)) is not None:
                        yield stamped
        except FileNotFoundError:
            continue
