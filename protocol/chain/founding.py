"""Forecast for open runs: the round from which other peers than founders vote, by the rules of `protocol.chain.electorate`.

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
    """Return the earliest round on which peers other than founders vote; None if they vote now, or the run is not open.

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
        # nothing changes until the record after which the next young elector is senior
        ends = [each.since + settings.tenure_rounds for each in now.standings if each.since is not None]
        ends = [end for end in ends if end > now.height]
        now = replace(now, height=min(ends) - 1) if ends else now
        assert now.height > before.height
    return now.height
