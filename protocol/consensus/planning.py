"""With whom a round is made: the members of its plan, and who averages which chunk.

Pure.  Nothing here is needed for safety: what a plan must have is said by `protocol.consensus.justification`.

* All live peers that are ready on our state are members, as far as there is room: first those that the rolls demand, then
  electors, members of the last record, and newcomers in an order that the tip draws.  Nobody that is ready loses its place,
  and with it its vote, for what it is suspected of: it is not waited for.
* While strangers are on probation, only so many newcomers are tried at a time as are a quarter of the others; first who was
  a member before, last who stalled when it was tried.
* Newcomers average nothing for others in their first round: a chunk that goes from one mute owner to the next would hold the
  exchange up again each time.  Nor does who kept an exchange waiting, until its probation is over, while others can.
* No member averages much more than its equal share (`most_chunks`), whatever line it claims to have: an owner can leave
  others out of its averages unseen, and those that the electors bear must not own the half of a record.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import ceil

from protocol.consensus.patience import STRANGERS, Stalls, is_tenured, share_of
from protocol.exchange.assignment import assign_owners
from protocol.state.base import Base, RoundSettings
from protocol.wire.canonical import Malformed
from protocol.wire.identity import PeerId
from protocol.wire.messages import Member, Plan
from protocol.wire.ready import digest_in, weights_in

UNEQUAL = 1.5
"""Times the equal share of the chunks that one member may own, where liars are borne."""
FEWEST = 4
"""Electors below which no liar is borne, and a member may own all chunks."""
TRIED = 4
"""One newcomer is tried for so many others, while strangers are on probation."""


def choose_members(base: Base, stalls: Stalls, ready: Collection[PeerId], held: Collection[PeerId]) -> list[PeerId]:
    """Those of the ready peers to make the round with, the most important first.  held: who must be in it."""
    ranked = base.ranked({*ready, *held})
    ranked.sort(key=lambda peer: (peer not in held, peer not in base.electors, peer not in base.contributors))
    tenured = [peer for peer in ranked if peer in held or is_tenured(base, peer)]
    newcomers = [peer for peer in ranked if peer not in tenured]
    newcomers.sort(key=lambda peer: (stalls.share(peer, base.round) < 1, peer not in base.known))
    strangers = stalls.share(STRANGERS, base.round)
    tried = len(newcomers) if strangers == 1 or not tenured else max(1, len(tenured) // TRIED) if strangers else 0
    return [*tenured, *newcomers[:tried]]


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
    state: bytes,
    amendment: bytes | None = None,
) -> Plan:
    """The plan of these members.  bandwidths: bytes a second of each, 0 where it is not known.  state: the name of ours.

    amendment: of the sets of tasks, if there is a new one.
    """
    members = sorted(members, key=lambda member: member.peer)
    peers = [PeerId(member.peer) for member in members]
    most = most_chunks(settings.chunks, len(base.electors), sum(peer in base.electors for peer in peers))
    able = _able(base, stalls, peers, -(-settings.chunks // most))
    owners = assign_owners(base.tip, able, settings.chunks, [bandwidths.get(peer, 0.0) for peer in able], most)
    return Plan(
        round=base.round,
        fragment=base.fragment,
        base=base.tip,
        members=list(members),
        owners=bytes(peers.index(able[owner]) for owner in owners),
        state_digest=digest_in(state),
        weights=weights_in(state),
        amendment=amendment,
    )


def most_chunks(chunks: int, electors: int, members: int) -> int:
    """How many of the chunks one member may own.  electors: of the tip; members: those of them that are in the plan.

    `UNEQUAL` times the equal share of an elector, so that the liars that four or more electors bear own less than half,
    whoever is missing; more only where the electors in the plan are too few to own all chunks, or where there are no more
    than twice as many chunks as such liars.
    """
    if electors < FEWEST or not members:
        return chunks
    return min(chunks, max(ceil(UNEQUAL * chunks / electors), ceil(chunks / members)))


def _able(base: Base, stalls: Stalls, peers: Sequence[PeerId], needed: int) -> list[PeerId]:
    """The members that own chunks, sorted: those with a good name; if they are too few, others, electors first."""
    ranked = sorted(
        base.ranked(peers),
        key=lambda peer: (not is_tenured(base, peer), -share_of(stalls, base, peer), peer not in base.electors),
    )
    good = sum(is_tenured(base, peer) and share_of(stalls, base, peer) == 1 for peer in ranked)
    tenured = sum(is_tenured(base, peer) for peer in ranked)
    return sorted(ranked[: max(good or tenured or len(ranked), needed)])
