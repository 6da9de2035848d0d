"""The policy for closing a round: the time, the absent electors, and the members of the plan.

Pure.  Safety does not depend on this module: two peers may judge differently, and the ballots decide.

* A round needs a quorum of the electors that is ready; if the missing ones are not near, as many ready trainers as a record
  needs suffice (`ClosingPolicy.has_quorum`).  It may then be closed when every live trainer on this tip is ready, or when
  the grace time has passed; late trainers are then asked to finish and get `FINISH_S` more.
* No trainer may cost a round much more time than its work is worth.  The fair time for one more trainer is the time
  that the ready electors took, times `LATE`, divided by their number.  Late trainers are asked to finish after half of the
  fair time.  A trainer that is not ready `ANSWER_S` after the fair time has stalled the round.  It gets less time in the
  next rounds, or none (`protocol.allreduce.lateness`).
* The grace time is `grace_s`, or the fair time if that is longer, because a long round may wait for a long step.
* A trainer that is one or two rounds behind will soon arrive, and gets the grace time to do so.  Otherwise, if rounds are
  short, it would never catch up with the swarm.
* Electors are absent if they said goodbye, or were silent for `eviction_s`.  Only as many electors are left out as necessary
  to bring a quorum within reach.
* If no elector is heard, the members vote, and any of them may certify a record.  So that two parts do not fork the run, the
  round then waits up to `eviction_s` until the members that did most of the recent work of all present members are ready.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from protocol.agreement.ballot import most_chunks
from protocol.agreement.events import RoundEffect, Send, View
from protocol.allreduce.assignment import assign_owners
from protocol.allreduce.lateness import (
    STRANGERS,
    ExclusionBackoff,
    LatenessMemory,
    deputised,
    fair_time,
    is_tenured,
    judge,
    share_of,
)
from protocol.chain.base import Base, RoundSettings
from protocol.chain.electorate import quorum_size
from protocol.chain.records import check_claims
from protocol.run.admission import verify_admission
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_ELECTORS, MAX_MEMBERS
from protocol.wire.identity import PeerId
from protocol.wire.messages import Finish, Member, Plan, Ready, digest_in, member_of, weights_in

# ------------------------------------------------------------------------------------------------------------------------
# Members of a round's plan, and the owners of its chunks.
#
# Pure.  Safety does not depend on this part: `protocol.agreement.ballot` checks the members that a plan must have.
#
# * All live peers that are ready on our state are members, as far as there are places.  First come the peers that the view
#   changes demand, then electors, then members of the last record, then newcomers in an order drawn by the tip.  The round
#   does not wait for a ready peer under suspicion, but the peer keeps its place, and its vote.
# * Of newcomers that drew the same lease of rows, only the first in this order is a member (`protocol.chain.leases`).
# * While strangers are on probation, one newcomer is tried for every `TRIED` other members.  Peers that were members before
#   come first, and peers that stalled when they were tried come last.
# * Members that we have set aside, because their receipts were not right, have a place only if view changes demand it, or if
#   the record would otherwise have too few members.
# * Newcomers own no chunks in their first round: a chunk that passes from one unresponsive owner to the next would delay the
#   exchange each time.  A peer that kept an exchange waiting owns no chunks either until its probation is over, as long as
#   other members can average.
# * No member averages much more than its equal share (`most_chunks`), whatever bandwidth it claims.  An owner can leave
#   members out of its averages unnoticed, so the liars that the electors tolerate must not own half of a record.


TRIED = 4
"""Number of other members required for each newcomer that is tried while strangers are on probation."""


def choose_members(
    base: Base, stalls: ExclusionBackoff, ready: Collection[PeerId], held: Collection[PeerId]
) -> list[PeerId]:
    """Return the members chosen from the ready peers, the most important first.  held: peers that must be members."""
    ranked = base.ranked({*ready, *held})
    ranked.sort(key=lambda peer: (peer not in held, peer not in base.electors, peer not in base.contributors))
    tenured = [peer for peer in ranked if peer in held or is_tenured(base, peer)]
    newcomers = [peer for peer in ranked if peer not in tenured]
    newcomers.sort(key=lambda peer: (stalls.share(peer, base.round) < 1, peer not in base.known))
    strangers = stalls.share(STRANGERS, base.round)
    tried = len(newcomers) if strangers == 1 or not tenured else max(1, len(tenured) // TRIED) if strangers else 0
    return [*tenured, *newcomers[:tried]]


def within_uses(base: Base, places: Mapping[PeerId, Member]) -> list[Member]:
    """Return these places in the same order, without newcomers whose token has no uses left."""
    uses, admitted = base.uses, list[Member]()
    for peer, place in places.items():
        if peer not in base.known:
            try:
                uses = uses.after([(peer, place.admission)])
            except Malformed:
                continue
        admitted.append(place)
    return admitted


def reading_apart(settings: RoundSettings, base: Base, peers: Sequence[PeerId]) -> list[PeerId]:
    """Return these peers in the same order, leaving out peers that would read the same rows as an earlier peer.

    If fewer than `min_members` are left, the first of the peers left out come last.
    """
    if not base.shares_slots(settings.manifest, peers):
        return [*peers]
    first = dict[int, PeerId]()
    for peer in peers:
        first.setdefault(base.slot(settings.manifest, peer), peer)
    apart = [*first.values()]
    others = [peer for peer in peers if peer not in apart]
    return [*apart, *others[: max(0, settings.min_members - len(apart))]]


def plan_with(
    settings: RoundSettings,
    base: Base,
    stalls: ExclusionBackoff,
    members: Sequence[Member],
    bandwidths: Mapping[PeerId, float],
    state: bytes,
    amendment: bytes | None = None,
) -> Plan:
    """Return the plan of these members.

    bandwidths: bytes per second of each member, 0 if unknown.  state: the name of our state.  amendment: the new amendment
    of the task sets, if there is one.
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


def _able(base: Base, stalls: ExclusionBackoff, peers: Sequence[PeerId], needed: int) -> list[PeerId]:
    """Return the members that own chunks, sorted: members that are not on probation; if too few, others, electors first."""
    ranked = sorted(
        base.ranked(peers),
        key=lambda peer: (not is_tenured(base, peer), -share_of(stalls, base, peer), peer not in base.electors),
    )
    good = sum(is_tenured(base, peer) and share_of(stalls, base, peer) == 1 for peer in ranked)
    tenured = sum(is_tenured(base, peer) for peer in ranked)
    return sorted(ranked[: max(good or tenured or len(ranked), needed)])


# ------------------------------------------------------------------------------------------------------------------------


LONGEST_FAIR_S = 600.0
"""Longest fair time (s), if `grace_s` is shorter: a swarm that has stood still for hours does not wait for hours again."""
FINISH_S = 5.0
"""Seconds that late trainers get after the grace time, to contribute their work so far."""
VIEW_CHANGE_S = 0.5
"""Seconds without progress after which we send our view change to all voters, which may know more."""
RESEND_S = 2.0
"""Interval (s) for resending an unanswered statement."""
ANSWER_S = 0.5
"""Seconds that a trainer gets to answer a request to finish."""


def round_fair_time(grace_s: float, took_s: float, ready: int) -> float:
    """Return the fair time (s) of a round whose quorum of `ready` electors became ready in `took_s` seconds."""
    if took_s < ANSWER_S:
        return grace_s  # we were late ourselves, and cannot tell
    return min(max(grace_s, LONGEST_FAIR_S), fair_time(took_s, ready))


@dataclass(frozen=True)
class SignedReady:
    """READY, with the signature of its sender."""

    ready: Ready
    signature: bytes


class ClosingPolicy:
    """Policy for closing the round on `base`, with the READYs on which it decides.  `now` is trio time."""

    def __init__(self, me: PeerId, settings: RoundSettings, base: Base, lateness: LatenessMemory, now: float = 0.0) -> None:
        self.me, self.settings, self.base, self.lateness = me, settings, base, lateness
        self._aside = frozenset[PeerId]()
        self._judging, self._deputised = base, deputised(base, ())
        self.readys: dict[PeerId, SignedReady] = {}
        self.amendment: bytes | None = None
        """Amendment of the task sets, for inclusion in our plans."""
        self._states: Counter[bytes] = Counter()
        """Number of electors that are ready on each state; the number of all peers if there are no electors."""
        self._begun, self._fair_s = now, 0.0
        self._quorum_since: float | None = None
        self._late: dict[PeerId, None] = {}
        self._asked: dict[PeerId, float] = {}
        self._awaited: list[PeerId] = []
        """Trainers at work for which the round waited at the last `gather`."""
        self._planned: tuple[list[PeerId], tuple[PeerId, ...]] | None = None
        """Ready peers, if they are more than may vote, and the peers among them that a plan would name."""

    def add(self, peer: PeerId, ready: Ready, signature: bytes) -> bool:
        """Add a READY and return True, also if we have it already.

        Return False if it is not for this round, has flawed claims, is older than the READY that we have from this peer, or
        has no proof that the peer was admitted.
        """
        if ready.round != self.base.round or ready.base != self.base.tip:
            return False
        if ready.fragment != self.base.fragment:
            return False
        if (ready.against or 0).bit_length() > len(self.base.tasks.sets):
            return False  # no plan with this READY would be valid
        try:
            check_claims(self.settings.manifest, self.base, peer, ready)
        except Malformed:
            return False  # otherwise no peer would accept a plan with it
        known = self.ready_of(peer)
        if known is not None and (ready.incarnation, ready.serial) <= (known.incarnation, known.serial):
            return ready == known
        if not self._is_admitted(peer, ready):
            return False
        self.readys[peer] = SignedReady(ready, signature)
        if peer in self.base.electors or not self.base.electors:
            self._states[ready.state] += 1
            if known is not None:
                self._states[known.state] -= 1
                self._states = +self._states
        return True

    def _is_admitted(self, peer: PeerId, ready: Ready) -> bool:
        if peer in self.base.known:
            return True
        try:
            verify_admission(self.settings.manifest, self.settings.run, peer, ready.admission, self.base.round)
        except Malformed:
            return False
        # If the token has no uses left, view changes must not demand a peer that no plan can include.
        return self.base.uses.may_admit(peer, ready.admission)

    def ready_of(self, peer: PeerId) -> Ready | None:
        """Return the newest READY of this peer."""
        signed = self.readys.get(peer)
        return signed.ready if signed is not None else None

    # -- closing ------------------------------------------------------------------------------------------------------

    def awaited(self, view: View) -> tuple[list[PeerId], list[PeerId]]:
        """Return the trainers for which the round waits: trainers at work on this tip, and trainers that soon will be."""
        at_work, coming = list[PeerId](), list[PeerId]()
        self._judging = self._deputised if self.hears_no_elector(view) else self.base
        for peer in view:
            if peer not in self.readys and peer not in self._aside:
                seen = view[peer]
                if (seen.on_tip or seen.near) and self._share(peer) > 0:
                    (at_work if seen.on_tip else coming).append(peer)
        return sorted(at_work), sorted(coming)

    def note_training(self, ahead_s: float) -> None:
        """Note the seconds for which members trained for this round before it began, which are part of their work."""
        self._begun -= ahead_s

    def note_aside(self, peers: Collection[PeerId]) -> None:
        """Note the members that we have set aside: the round does not wait for them, and our plans leave them out."""
        self._aside = frozenset(peers) - {self.me}

    def can_wait(self, peer: PeerId) -> bool:
        """Return True if the READY of `peer` may wait for the next `gather`, because it alone cannot close the round.

        Until a quorum is ready only electors matter, and later only the last trainer for which the round waited.  So a
        thousand READYs do not lead to a thousand looks at a thousand peers.
        """
        if self._quorum_since is None:
            return bool(self.base.electors) and peer not in self.base.electors
        while self._awaited and self._awaited[-1] in self.readys:
            self._awaited.pop()
        return bool(self._awaited)

    def _share(self, peer: PeerId) -> float:
        """Return the fraction of the time that this trainer gets to become ready."""
        return share_of(self.lateness.trainers, self._judging, peer)

    def hears_no_elector(self, view: View) -> bool:
        """Return True if no elector is alive: once all of them are gone, the members of the record vote."""
        return not any(self.lives(peer, view) for peer in self.base.electors)

    def has_quorum(self, view: View) -> bool:
        """Return True if enough peers are READY to set the others a deadline.

        They are a quorum of the electors, or, if no missing elector is near, as many trainers as a record needs.
        """
        electors = self.base.electors
        ready = {peer for peer in electors if peer in self.readys and self.lives(peer, view)}
        if len(ready) < quorum_size(len(electors)):
            others = (view.get(peer) for peer in electors if peer not in ready)
            if any(seen is not None and seen.near for seen in others):
                return False
        strangers = (peer for peer in self.readys if peer not in ready and self.lives(peer, view))
        return len(ready) + sum(1 for _ in islice(strangers, self.settings.min_members)) >= self.settings.min_members

    def gather(self, view: View, now: float) -> tuple[list[RoundEffect], bool]:
        """Return requests to finish for late trainers, and True if the round may be closed now."""
        if not self.has_quorum(view):
            self._quorum_since = None
            return [], False
        if self._quorum_since is None:
            self._quorum_since, self._fair_s = now, self._fair(now - self._begun)
        late_s, grace_s = now - self._quorum_since, max(self.settings.grace_s, self._fair_s)
        at_work, coming = self.awaited(view)
        self._awaited = [*at_work]
        if late_s > self._fair_s + ANSWER_S:
            self._late |= dict.fromkeys([*at_work, *coming])
        waiting = [peer for peer in at_work if late_s < self._share(peer) * (grace_s + FINISH_S)]
        waiting += [peer for peer in coming if late_s < self._share(peer) * grace_s]
        if late_s < self.settings.eviction_s:
            waiting += self.decisive(view)
        out = [peer for peer in self.base.electors if peer in view and view[peer].on_tip and peer not in self.readys]
        ask = {*out, *at_work} if not waiting else at_work
        asks = self._hurry(
            [peer for peer in sorted(ask) if late_s >= min(self._share(peer) * grace_s, self._fair_s / 2)], now
        )
        if not waiting:
            judge(self.lateness.trainers, self._judging, [*self._late, *at_work, *coming])
        return asks, not waiting

    def decisive(self, view: View) -> list[PeerId]:
        """Return the members that must become ready for the ready ones to have done most of the recent work of all present.

        The list is empty while an elector is heard.  Once all of them are gone, any members may certify a record, so two
        parts that do not wait for each other would fork the run, and only the part with most of the recent work wins
        (`protocol.sync.fork_choice`).  Earlier stalls of a peer do not matter here: otherwise one busy computer could split
        the run.
        """
        if not self.hears_no_elector(view):
            return []
        work, here = self.base.work, self._workers(view)
        out = [peer for peer in here if peer not in self.readys]
        return out if 2 * work.of(out) >= work.of(here) else []

    def are_outweighed(self, peers: Collection[PeerId], view: View) -> bool:
        """Return True if these peers did less than half of the recent work of all present peers."""
        return 2 * self.base.work.of(peers) < self.base.work.of({*peers, *self._workers(view)})

    def _workers(self, view: View) -> list[PeerId]:
        """Return the present peers with recent work."""
        return [peer for peer in self.base.work.tokens if self._may_come(peer, view)]

    def _may_come(self, peer: PeerId, view: View) -> bool:
        """Return True if a peer trains on this tip, arrives at it, or is silent for too short a time to be gone."""
        seen = view.get(peer)
        if peer == self.me or seen is None:
            return peer == self.me
        return seen.on_tip or seen.near or not (seen.live or self.is_gone(peer, view))

    def _fair(self, took_s: float) -> float:
        """Return the fair time: the seconds for which the round waits for one more trainer.

        took_s: seconds until a quorum was ready.  Strangers and peers that are gone do not make the result shorter.
        """
        ready = sum(peer in self.readys for peer in self.base.electors) or len(self.readys)
        return round_fair_time(self.settings.grace_s, took_s, ready)

    def _hurry(self, late: Collection[PeerId], now: float) -> list[RoundEffect]:
        """Ask these trainers to finish."""
        ask = tuple(peer for peer in late if now - self._asked.get(peer, -1e9) >= RESEND_S)
        self._asked |= dict.fromkeys(ask, now)
        return [Send(ask, Finish(round=self.base.round, base=self.base.tip))] if ask else []

    # -- the plan -----------------------------------------------------------------------------------------------------

    def agreed(self, view: View, digest: bytes | None) -> list[PeerId]:
        """Return the live peers that are ready on this state, sorted.  digest: its digest; None if ours is not known yet."""
        return [
            peer
            for peer in sorted(self.readys)
            if self.lives(peer, view) and digest in (None, self.readys[peer].ready.state)
        ]

    def held(self, view: View, digest: bytes | None) -> list[PeerId]:
        """Return the electors from which we hold a READY for our state, and which we have not set aside."""
        agreed = self.agreed(view, digest)
        return [peer for peer in agreed if peer in self.base.electors and peer not in self._aside]

    def make_plan(self, view: View, digest: bytes, held: Collection[PeerId], most: int = MAX_MEMBERS) -> Plan | None:
        """Return the plan of the ready peers; None if they are too few, or if a peer in `held` is not ready on our state.

        held: the electors that must be members.  most: the most members that this ballot permits.
        """
        if any(peer not in self.readys or self.readys[peer].ready.state != digest for peer in held):
            return None
        places = self._choose(self.agreed(view, digest), held, most)
        if len(places) < self.settings.min_members:
            return None
        bandwidths = {peer: seen.bytes_per_s for peer, seen in view.items()}
        return plan_with(self.settings, self.base, self.lateness.members, places, bandwidths, digest, self.amendment)

    def planned(self, view: View, digest: bytes | None) -> tuple[PeerId, ...]:
        """Return the voters for the case that no elector is left: the members of a plan made now, sorted.

        They are all ready peers that read different rows, or if these are too many, the choice of `make_plan`: a proposer
        needs the view changes of a quorum of its plan.
        """
        ready = self.agreed(view, digest)
        if len(ready) <= min(MAX_ELECTORS, self.settings.max_members):
            return tuple(sorted(reading_apart(self.settings, self.base, self.base.ranked(ready))))
        if self._planned is None or self._planned[0] != ready:
            named = (PeerId(member.peer) for member in self._choose(ready, (), MAX_ELECTORS))
            self._planned = ready, tuple(sorted(named))
        return self._planned[1]

    def _choose(self, ready: Collection[PeerId], held: Collection[PeerId], most: int) -> list[Member]:
        """Return the places of the ready peers, the most important first, as many as a plan may have.

        A member that is set aside has a place if view changes demand it, or if the others are too few for a record.
        """
        others = [peer for peer in ready if peer not in self._aside or peer in held]
        places = self._places(others, held, most)
        return places if len(places) >= self.settings.min_members else self._places(ready, held, most)

    def _places(self, ready: Collection[PeerId], held: Collection[PeerId], most: int) -> list[Member]:
        peers = choose_members(self._judging, self.lateness.members, ready, held)
        places = {PeerId(each.peer): each for each in within_uses(self.base, {peer: self.member(peer) for peer in peers})}
        apart = reading_apart(self.settings, self.base, [*places])
        return [places[peer] for peer in apart[: min(most, self.settings.max_members)]]

    def member(self, peer: PeerId) -> Member:
        """Return a ready peer's place in a plan."""
        signed = self.readys[peer]
        return member_of(peer, signed.ready, signed.signature)

    def state_against(self, digest: bytes) -> bytes | None:
        """Return a state with enough electors to show that ours, with this digest, is wrong; None if there is none.

        With fewer than four electors any other digest makes us recheck our state from our own disk, so no peer has to be
        believed.
        """
        electors = len(self.base.electors)
        needed = quorum_size(electors) if electors >= 4 else 1
        return min((other for other, count in self._states.items() if other != digest and count >= needed), default=None)

    # -- absent electors ----------------------------------------------------------------------------------------------

    def absent(self, view: View) -> tuple[PeerId, ...]:
        """Return the absent electors, sorted: the fewest that must be left out for a quorum to be within reach.

        The result is empty if a quorum is within reach already, or if leaving out all electors known to be gone is not
        enough.
        """
        electors = self.base.electors
        gone = self.base.ranked(peer for peer in electors if self.is_gone(peer, view))
        gone.sort(key=lambda peer: not view[peer].left)
        here = sum(self.lives(peer, view) for peer in electors)
        for count in range(len(gone) + 1):
            if here >= quorum_size(len(electors) - count) or count == len(electors):
                return tuple(sorted(gone[:count]))
        return ()

    def can_decide(self, view: View) -> bool:
        """Return True if a quorum of the electors that are not absent is alive, or if all electors are absent."""
        absent = self.absent(view)
        here = sum(self.lives(peer, view) for peer in self.base.electors)
        staying = len(self.base.electors) - len(absent)
        return staying == 0 or here >= quorum_size(staying)

    def may_be_absent(self, absent: Collection[str], view: View) -> bool:
        """Return True if in our view all these electors are gone: they said goodbye, or were silent for `eviction_s`."""
        return all(peer in self.base.electors and self.is_gone(PeerId(peer), view) for peer in absent)

    def is_gone(self, peer: PeerId, view: View) -> bool:
        """Return True if a peer said goodbye, or has been silent for `eviction_s`."""
        seen = view.get(peer)
        if peer == self.me or seen is None:
            return False
        return seen.left or (not seen.live and seen.silent_s >= self.settings.eviction_s)

    def lives(self, peer: PeerId, view: View) -> bool:
        """Return True if a peer is alive; this peer always is."""
        return peer == self.me or ((seen := view.get(peer)) is not None and seen.live)
