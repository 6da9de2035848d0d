"""Tables for `peer ledger` and `peer rollouts`: the contributions of all peers, and the fate of this peer's rollouts.

`protocol.chain.credit` counts, so that all peers count in the same way; this module adds the table and the shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peer.control.client import logged_events
from peer.control.event_log import LOG_NAMES
from protocol.chain import credit
from protocol.events import events as ev
from protocol.events.rollout_tally import VERDICTS, RolloutTally
from protocol.events.status import SwarmPeer
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# Fate of a peer's rollouts, from the event log of a run: the log covers earlier processes, and no peer has to run.
#
# The log is bounded (`peer.control.event_log`), and only the last batches in it are listed.


MOST_NAMES = 4096


def told_rollouts(folder: Path, most: int) -> dict[str, Any] | None:
    """Summarise the rollouts in the event log of `folder`, with at most `most` batches; None if the log has no rollouts.

    `{peer, role, counts, reward, accepted_tokens, set_aside, batches, untold, names}`, newest batch first.  A rollout peer
    lists the batches that it made, a validator the batches that it judged, and a trainer the batches meant for it.
    """
    tally, names, role = RolloutTally(), dict[str, str](), ""
    for stamped in logged_events(folder / name for name in reversed(LOG_NAMES)):
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
    by_verdict = {verdict: sum(batch.verdict == verdict for batch in batches) for verdict in VERDICTS}
    peers = {tally.me, *(each.peer for each in tally.aside)}
    peers |= {peer for batch in told for peer in (batch.author, *batch.judges)}
    return {
        "peer": tally.me,
        "role": role or "trainer",
        "counts": {**by_verdict, "generated": tally.generated, "judged": tally.judged, "used": tally.used},
        "reward": tally.rewards[-1][1] if tally.rewards else None,
        "accepted_tokens": tally.accepted_tokens,
        "set_aside": [asdict(each) for each in tally.aside],
        "batches": [asdict(batch) for batch in told],
        "untold": len(batches) - len(told),
        "names": {peer: names[peer] for peer in sorted(peers & set(names))},
    }


# ------------------------------------------------------------------------------------------------------------------------


MAX_MEMBERS_TOLD = 10_000
"""Most members in an answer on the control socket: with 150 bytes each, far below the largest frame."""


def ledger_of(credits: Mapping[PeerId, credit.Credit], length: int, most: int | None = None) -> dict[str, Any]:
    """Return the contributions in `length` rounds: `{rounds, tokens, accepted_tokens, members, untold}`.

    Each member is `{peer, rounds, tokens, share, batches, accepted_tokens}`.  Members are ordered by their
    shares.  A share is the fraction of all tokens that members trained on, or of all tokens in the rollouts from which the
    run learned.

    most: number of members to list; `untold` counts the other members.
    """
    total, made = (sum(getattr(each, name) for each in credits.values()) for name in ("tokens", "accepted_tokens"))
    work = {peer: each.tokens + each.accepted_tokens for peer, each in credits.items()}
    ranked = sorted(credits.items(), key=lambda item: (-work[item[0]], -item[1].tokens, item[0]))
    members = [{"peer": peer, "share": work[peer] / max(total + made, 1), **vars(each)} for peer, each in ranked]
    told = members[:most]
    return {
        "rounds": length,
        "tokens": total,
        "accepted_tokens": made,
        "members": told,
        "untold": len(members) - len(told),
    }


def with_audits(members: Iterable[Mapping[str, Any]], swarm: Iterable[SwarmPeer]) -> list[dict[str, Any]]:
    """Return members with `audited_tokens` and `credited_tokens`: what this peer's audits say of the tokens they claimed.

    A member that this peer has set aside has no credit: nobody knows since when its claims are false.
    """
    audits, found = {each.peer: each for each in swarm}, []
    for member in members:
        known = audits.get(member["peer"])
        credited = 0 if known is not None and known.set_aside else member["tokens"]
        audited = known.audited_tokens if known is not None else 0
        found.append({**member, "audited_tokens": audited, "credited_tokens": credited})
    return found


def team_credits(told: Mapping[str, Any], teams: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the credit of each team, in the order in which members are listed.

    Each is `{team, peers, tokens, share, accepted_tokens}`: the number of the team's members, and the sums of their credit.
    told: the ledger.  teams: the team of each member.  The whole credit of a member counts for the team that it names now,
    also the credit from before it joined that team.
    """
    credits: dict[str, dict[str, Any]] = {}
    for member in told["members"]:
        if team := teams.get(member["peer"], ""):
            sums = credits.setdefault(team, {"team": team, "peers": 0, "tokens": 0, "share": 0.0, "accepted_tokens": 0})
            sums["peers"] += 1
            for name in ("tokens", "share", "accepted_tokens"):
                sums[name] += member[name]
    return sorted(
        credits.values(), key=lambda each: (-each["tokens"] - each["accepted_tokens"], -each["tokens"], each["team"])
    )
