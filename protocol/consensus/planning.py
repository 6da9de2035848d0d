"""With whom a round is made: the members of its plan, and who averages which chunk.

Pure.  Nothing here is needed for safety: what a plan must have is said by `protocol.consensus.justification`.

* All live peers that are ready on our state are members, as far as there is room: first those that the rolls demand, then
  electors, members of the last record, and newcomers in an order that the tip draws.
* Newcomers average nothing for others in their first round: a chunk that goes from one mute owner to the next would hold
  the exchange up again each time.  Nor does who kept an exchange waiting, until its probation is over.
* Who does not count is left out.
* While strangers are on probation, only so many of them are tried at a time as are a quarter of the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from protocol.consensus.patience import STRANGERS, Stalls, judged_as
from protocol.exchange.assignment import assign_owners
from protocol.state.base import Base, RoundSettings
from protocol.wire.canonical import Malformed
from protocol.wire.identity import PeerId
from protocol.wire.messages import Member, Plan

TRIED = 4
"""One newcomer is tried for so many others, while strangers are on probation."""


def choose_members(
    base: Base, stalls: Stalls, ready: Collection[PeerId], held: Collection[PeerId], least: int
) -> list[PeerId]:
    """Those of the ready peers to make the round with, the most important first.

    held: who must be in it.  least: members that a round needs; where too few count, all are taken.
    """

    def share(peer: PeerId) -> float:
        return stalls.share(judged_as(base, peer), base.round)

    ranked = base.ranked({*ready, *held})
    ranked.sort(key=lambda peer: (peer not in held, peer not in base.electors, peer not in base.contributors))
    tenured = [peer for peer in ranked if judged_as(base, peer) == peer]
    newcomers = [peer for peer in ranked if judged_as(base, peer) == STRANGERS]
    counting = [peer for peer in tenured if peer in held or share(peer) > 0]
    tried = len(newcomers) if share(STRANGERS) == 1 else max(1, len(counting) // TRIED) if share(STRANGERS) else 0
    chosen = [*counting, *newcomers[:tried]]
    return chosen if len(chosen) >= least else ranked


def within_uses(base: Base, places: Mapping[PeerId, Member]) -> list[Member]:
    """These places in their order, without newcomers whose token has admitted as many as it may."""
    uses, admitted = base.uses, list[Member]()
    for peer, place in places.items():
        if peer not in base.known:
            try:
                uses = uses.after([(peer, place.admission)])
            except Malformed:
                continue
        admitted.append(place)
    return admitted


def plan_with(
    settings: RoundSettings,
    base: Base,
    stalls: Stalls,
    members: Sequence[Member],
    bandwidths: Mapping[PeerId, float],
    digest: bytes,
) -> Plan:
    """The plan of these members.  bandwidths: bytes a second of each, 0 where it is not known.  digest: of our state."""
    members = sorted(members, key=lambda member: member.peer)
    peers = [PeerId(member.peer) for member in members]
    tenured = [peer for peer in peers if judged_as(base, peer) == peer]
    able = [peer for peer in tenured if stalls.share(peer, base.round) == 1] or tenured or peers
    owners = assign_owners(base.tip, able, settings.chunks, [bandwidths.get(peer, 0.0) for peer in able])
    return Plan(
        round=base.round,
        fragment=base.fragment,
        base=base.tip,
        members=list(members),
        owners=bytes(peers.index(able[owner]) for owner in owners),
        state_digest=digest,
    )
