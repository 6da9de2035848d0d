"""Forecast for open runs: the round from which others than the founders vote, by the rules of `protocol.chain.electorate`.

Pure.  The forecast runs the rules on records of the future, so it cannot differ from them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from protocol.chain.electorate import FEWEST_SEATED, Electorate
from protocol.wire.identity import PeerId

NEWCOMERS = tuple(PeerId(f"newcomer {number}") for number in range(FEWEST_SEATED))
"""Peers that join with the next record: with fewer of them the founders vote for longer."""


def founders_vote_until(electorate: Electorate, training: Collection[PeerId]) -> int | None:
    """Return the earliest round on which others than the founders vote; None if they vote now, or the run is not open.

    training: the peers that contribute to the coming records; the forecast takes them to stay, and others to join at once.
    """
    settings, now = electorate.settings, electorate
    if not (now.is_founding and settings.is_open and settings.founders):
        return None
    members = tuple(sorted({*training, *NEWCOMERS}))
    masks = [b"\xff" * ((len(members) + 7) // 8)]
    while now.is_founding:
        before = now
        for _ in range(settings.seasoning_rounds + 1):
            now = now.after(members, masks)
            if not now.is_founding:
                return now.height
        now = _at_next_senior(now)
        assert now.height > before.height
    return now.height


def _at_next_senior(now: Electorate) -> Electorate:
    """Return the electorate just before the record after which a young elector is senior; until then nothing changes."""
    tenure = now.settings.tenure_rounds
    ends = [each.since + tenure for each in now.standings if each.since is not None and each.since + tenure > now.height]
    return replace(now, height=min(ends) - 1) if ends else now
