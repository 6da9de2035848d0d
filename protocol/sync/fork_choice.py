"""Fork choice: the part of a verified branch that we adopt, and our own records that we give up.

Members of a run that hear each other make records together.  If some went on without the others, there are two branches.
The first record that differs decides, by the first of these rules that tells the branches apart:

1. A final record never yields, and wins over a record that is not final (`protocol.chain.finality`).
2. A full record beats a provisional one: a quorum of the electors made it.
3. The branch wins in which members with more than half of the recent work took part: they voted for its first record, or
   signed a READY on one of its tips.  In an open run, where keys are free, this rule applies only if no elector voted for
   the record.
4. The record with more votes of electors wins; then the one with the lower hash.

A peer that was away follows what others did meanwhile, before it makes a record itself.  A provisional record is adopted as
far as the electors, as heard now, stand on it.  A branch with the record that our invitation names wins over a branch
without it, unless we would have to give up final records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import trio

from protocol.bounds import BoundedDict
from protocol.chain.electorate import Roster, quorum_size
from protocol.chain.finality import RecentWork
from protocol.chain.history import Branch
from protocol.chain.records import Chain, Rank, is_full, rank, record_hash
from protocol.chain.replica import Replica
from protocol.events.events import Event, Notice, SecondHistory
from protocol.membership.activity import Activity
from protocol.membership.liveness import Membership
from protocol.run.invitation import Anchor, AnchorChain
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit

# ------------------------------------------------------------------------------------------------------------------------
# Members that took part in a branch, and its rank.


MOST_READ = 16
"""Most records at each end of a branch that are read to see which members took part in it."""


def took_part(chain: Chain, fork: int) -> frozenset[PeerId]:
    """Return the peers that took part in the records of `chain` after `fork` rounds.  Blocking.

    A vote for the first record counts, and a READY for a later one: it names a tip of this branch.  (A READY for the first
    record may have been meant for another branch.)
    """
    first = chain.commit_at(fork)
    later = {*range(fork + 1, chain.length)[:MOST_READ], *range(fork + 1, chain.length)[-MOST_READ:]}
    voters = (PeerId(vote.peer) for vote in first.certificate.votes)
    return frozenset([*voters, *(PeerId(each.peer) for round in later for each in chain.commit_at(round).record.members)])


@dataclass(frozen=True)
class Constituency:
    """The peers that count at a tip: its electors, and the members with recent work.  is_open: True if keys are free."""

    electors: tuple[PeerId, ...]
    work: RecentWork
    is_open: bool

    @classmethod
    def of(cls, roster: Roster) -> Constituency:
        """Return the constituency at a tip with this roster."""
        return cls(roster.electorate.electors, roster.work, roster.electorate.settings.is_open)

    def rank(self, first: Commit, part: Collection[PeerId]) -> Rank:
        """Return the rank of a branch.  first: its first record.  part: the peers that took part in it."""
        by_electors = any(vote.peer in self.electors for vote in first.certificate.votes)
        lacks_most = not (self.is_open and by_electors) and not self.work.is_most(part)
        return rank(self.electors, first, lacks_most=lacks_most)

    def weights(self, absent: Collection[str]) -> Mapping[PeerId, int]:
        """Return the weights of the peers that decide if a provisional record holds.  absent: the electors left out.

        Electors have a weight of 1 each.  If all of them were left out, members count with their recent work; in an open
        run, strangers together with at most half of the electors' work.
        """
        return self._bounded.tokens if set(self.electors) <= set(absent) else dict.fromkeys(self.electors, 1)

    @cached_property
    def _bounded(self) -> RecentWork:
        return self.work.bounded_by(self.electors) if self.is_open else self.work

    def least(self, weights: Mapping[PeerId, int], me: PeerId) -> int:
        """Return the smallest weight on a record of others with which `me` follows it.

        An elector of an open run, where keys are free, follows a record without any elector's vote only if members with more
        than half of the others' recent work are on it.  At genesis nobody has a weight yet.
        """
        if me in self.electors and self.is_open and weights is self._bounded.tokens:
            return sum(weight for peer, weight in weights.items() if peer != me) // 2 + 1
        return 1 if weights else 0


# ------------------------------------------------------------------------------------------------------------------------
# Provisional records when peers differ about who is absent: they follow them or return from them.
#
# Pure.  A provisional record was made without some electors.  The peers that count at the tip T before it decide whether the
# record holds: the electors, or if all of them were left out, the members with recent work (`Constituency.weights`).
#
# * A peer at T follows the record if at least as much weight is on it as off it.  A peer that was away (restarted, asleep)
#   and has made no record since is not off the record, whoever it is: it has done nothing that contradicts the record.
# * A peer on the record returns to T if more weight is off it than on it.
#
# A peer on another branch of T counts as on this one if its branch loses to this one (`Rank`), because it will move here.  A
# peer that took part in the branch and is not heard now counts as on it.  So no peer returns from a branch to which enough
# peers are moving, and the moves of peers that hear each other end.  Suppose that the moves form a cycle, and let H be the
# best branch that peers leave in that cycle.  Nobody leaves a better branch, so nobody enters one either, and peers leave H
# for T; from then on they are not away.  At that moment, of the weight c on no better branch, more than c / 2 is at T.  Only
# the rest can count as on H or on a branch that loses to it, so nobody at T follows such a branch.  From then on nobody
# leaves T, so there is no cycle.
#
# Nobody is stuck.  If two branches are heard, the peers on the losing one move to the other.  If one branch and T are heard,
# either the peers at T follow, or the peers on the branch return.  And nobody waits for a branch: if one elector stands on
# the best branch and does not serve its records, the others agree without that branch.
#
# A peer that is *bound* does not follow: an elector that is locked on another record of T, which may be certified, or that
# has confirmed one, which may be final.  At T it says that it was not away.  On the branch with that record it says
# that it is bound, so nobody waits for it on another branch.  If the peers there cannot make a full record without it, they
# return to T, where its lock is carried on, or its branch is followed (`is_stuck`).


@dataclass(frozen=True)
class Side:
    """Point where one chain leaves another.

    fork: the tip at that point.  first: rank of the branch from there on.  rounds: number of rounds before it.
    """

    fork: Hash
    first: Rank
    rounds: int = 0


@dataclass(frozen=True)
class Standpoint:
    """Position that a peer states.  was_away: it was restarted or frozen, and has made no record since.

    side: the point where the peer's chain left ours when we last saw it; None if we never did, or it is on our chain now.
    bound: number of its first rounds that it cannot give up, because its votes bind it to a provisional record.
    """

    tip: bytes
    was_away: bool
    side: Side | None = None
    bound: int = 0

    @property
    def is_bound(self) -> bool:
        """True if the peer stays on its side, even if it loses."""
        return self.side is not None and self.bound > self.side.rounds


@dataclass(frozen=True)
class PeerCount:
    """Weights of the peers that count at a tip: on the branch or moving to it, and on the tip itself without being away.

    unheard: the part of `on` that is not heard now.  bound: the weight on other branches of the tip that their peers cannot
    give up.
    """

    on: int
    off: int
    unheard: int = 0
    bound: int = 0


@dataclass(frozen=True)
class Candidate:
    """A branch that is judged.  fork: the tip before it.  tips: the tips after its records.

    first: its rank; may be None if no `Side` leaves `fork`.  part: the peers that took part in it.
    """

    fork: Hash
    tips: Container[bytes]
    first: Rank | None
    part: Collection[PeerId] = ()

    def gains(self, at: Standpoint) -> bool:
        """Return True if a peer at `at` is on this branch, or will move to it from a branch that loses to it."""
        if at.tip == self.fork:
            return False
        if at.tip in self.tips or at.side is None:
            return at.tip in self.tips
        fork, first = at.side.fork, at.side.first
        moves_here = fork == self.fork and self._wins(first) and not at.is_bound
        return fork in self.tips or first.record in self.tips or moves_here

    def _wins(self, other: Rank) -> bool:
        return self.first is not None and self.first < other


def count(weights: Mapping[PeerId, int], heard: Mapping[PeerId, Standpoint], branch: Candidate) -> PeerCount:
    """Count the peers by their positions.

    Peers at other positions (behind, unknown, or on a branch that wins over this one) are not counted.
    """
    on = off = unheard = bound = 0
    for peer, weight in weights.items():
        at = heard.get(peer)
        if at is None:
            unheard += weight * (peer in branch.part)
        elif branch.gains(at):
            on += weight
        elif at.tip == branch.fork and not at.was_away:
            off += weight
        elif at.is_bound and at.side is not None and at.side.fork == branch.fork:
            bound += weight
    return PeerCount(on + unheard, off, unheard, bound)


def follows(counted: PeerCount, least: int = 1) -> bool:
    """Return True if a peer that is not on a provisional record adopts the record.

    counted: includes the peer itself.  least: see `Constituency.least`.
    """
    return counted.on >= max(counted.off, least)


def returns(counted: PeerCount) -> bool:
    """Return True if a peer on a provisional record goes back to the tip before it.  counted: includes the peer itself."""
    return counted.off > counted.on


def is_stuck(electors: Sequence[PeerId], counted: PeerCount) -> bool:
    """Return True if the electors heard on a provisional record are not a quorum, and others will not come over."""
    return counted.off + counted.bound > 0 and counted.on - counted.unheard < quorum_size(len(electors))


# ------------------------------------------------------------------------------------------------------------------------
# Positions of the peers according to their last heartbeats: the evidence for judging provisional records.


LATEST = 64
"""Most provisional records that are judged again; other peers have long since followed older ones."""
LATEST_ROUNDS = 200
"""Number of newest rounds whose provisional records are judged again, at most `protocol.chain.history.ROSTERS_KEPT`."""
MAX_SIDES = 1024
"""Most peers whose `Side` is remembered."""
STUCK_S = 60.0
"""Seconds after which electors without a quorum return to a tip to which another elector holds on."""


@dataclass(frozen=True)
class _TipsAfter:
    """The tips of a chain after more than `rounds` rounds.  places: number of rounds before each tip."""

    places: Mapping[bytes, int]
    rounds: int

    def __contains__(self, tip: object) -> bool:
        return isinstance(tip, bytes) and self.places.get(tip, -1) > self.rounds


class PeerTips:
    """Positions of the peers: `membership` knows the other peers' positions; we stand on our own tip."""

    def __init__(self, replica: Replica, membership: Membership, activity: Activity) -> None:
        self._me, self._replica, self._history = membership.me, replica, replica.history
        self._membership, self._activity = membership, activity
        self._sides: dict[PeerId, Side] = {}
        """Point where each peer's chain left ours when the peer last showed it; used only for that peer."""
        self._ranks: dict[int, Rank] = {}
        """Ranks of our provisional records that have known siblings, by round."""
        self._locked: dict[tuple[Hash, Hash], bool] = {}
        """Our provisional records, by the tip before and the record: True if we are locked on the record by all electors."""
        self._leaving: dict[tuple[bytes, bool], float] = {}
        """Tips before our provisional records to which we should return, each with the time since when; True: if stuck."""

    def showed(self, peer: PeerId, side: Side) -> None:
        """Note the point where the verified chain that `peer` showed leaves ours.  Thread-safe."""
        kept = list(self._sides.items())[-MAX_SIDES + 1 :]
        self._sides = dict(kept) | {peer: side}  # a new dict, because another thread may be iterating over the old one

    def is_parting(self, tip: bytes) -> bool:
        """Return True if a chain was seen to leave our chain at this tip."""
        return any(side.fork == tip for side in self._sides.values())

    def _heard(self, peers: Collection[PeerId]) -> dict[PeerId, Standpoint]:
        heard = {self._me: Standpoint(self._history.tip, self._activity.was_away)}
        for peer in peers:
            known = self._membership.get(peer)
            if peer != self._me and known is not None and self._membership.is_live(peer):
                beat = known.heartbeat
                is_ours = self._history.tips(beat.round, 1) == [beat.tip]
                heard[peer] = Standpoint(beat.tip, beat.was_away, None if is_ours else self._sides.get(peer), beat.bound)
        return heard

    def follow(self, weights: Mapping[PeerId, int], branch: Candidate, least: int) -> bool:
        """Return True if we adopt a verified provisional record and the records on it.

        weights: the weights of the peers that count at the fork.  least: see `Constituency.least`.
        """
        return follows(count(weights, self._heard(weights), branch), least)

    def back_to(self, kept: int = 0) -> int | None:
        """Return the round of the first provisional record to give up, with all records after it; None if all records hold.

        Call this often.  A record is given up once more weight has been before it than on it for `listen_s`: just after a
        record was made, most peers have not yet announced that they are on it.  We never return to a tip on which we have
        confirmed our record: we could say nothing there.  kept: number of rounds whose records are never given up.
        """
        history, now, votes = self._history, trio.current_time(), self._replica.store.votes
        provisional = history.provisional  # a vote confirms all of them at once, so the confirmed ones come first
        first = bisect_left(provisional, True, key=lambda at: votes.confirmed_on(at, history.tip_at(at)) is None)
        last = provisional[first - 1] if first else -1
        oldest = max(kept, history.length - LATEST_ROUNDS)
        latest = [round for round in provisional[-LATEST:] if round >= oldest]
        self._note_bound(latest, last + 1)
        looked_at = [round for round in latest if round > last]
        self._ranks = {round: self._rank(round) for round in looked_at if self.is_parting(history.tip_at(round))}
        places: dict[bytes, int] = {tip: oldest + at for at, tip in enumerate(history.tips(oldest, LATEST_ROUNDS + 1))}
        leaving: dict[tuple[bytes, bool], float] = {}
        ahead = history.electors_at(history.length)  # in a young run, the members of the last record alone
        for round in looked_at:
            fork, certificate = history.tip_at(round), history.certificate_at(round)
            who = Constituency.of(history.roster_at(round))
            weights = who.weights(certificate.absent)
            branch = Candidate(fork, _TipsAfter(places, round), self._ranks.get(round), self._part(round))
            counted = count(weights, self._heard(weights), branch)
            by_electors = not set(who.electors) <= set(certificate.absent)
            then = count(dict.fromkeys(ahead, 1), self._heard(ahead), branch)
            stuck = by_electors and (is_stuck(who.electors, counted) or is_stuck(ahead, then))
            for reason, gives_up in ((False, returns(counted)), (True, stuck)):
                if gives_up:
                    leaving[fork, reason] = self._leaving.get((fork, reason), now)
        older = [round for round in self._tips_of_present_peers() if max(kept - 1, last) < round < oldest]
        for round in older:
            electors, fork = history.electors_at(round), history.tip_at(round)
            if set(electors) <= set(history.certificate_at(round).absent):
                continue  # members made the record, and the electors may come over to it
            tips = frozenset(history.tips(round + 1, history.length - round))
            if is_stuck(electors, count(dict.fromkeys(electors, 1), self._heard(electors), Candidate(fork, tips, None))):
                leaving[fork, True] = self._leaving.get((fork, True), now)
        self._leaving = leaving
        waits = {False: self._replica.rounds.listen_s, True: STUCK_S}
        lost = {fork for (fork, is_stuck), since in leaving.items() if now - since >= waits[is_stuck]}
        return next((round for round in (*older, *looked_at) if history.tip_at(round) in lost), None)

    def _tips_of_present_peers(self) -> list[int]:
        """Return, ascending, the rounds of our provisional records whose previous tip has a peer that was not away."""
        provisional, found = self._history.provisional, set[int]()
        for peer, known in self._membership:
            beat = known.heartbeat
            is_ours = self._history.tips(beat.round, 1) == [beat.tip]
            if is_ours and not beat.was_away and peer != self._me and self._membership.is_live(peer):
                place = bisect_left(provisional, beat.round)
                found |= {*provisional[place : place + 1]} & {beat.round}
        return sorted(found)

    def _note_bound(self, rounds: Sequence[int], confirmed: int) -> None:
        """Have our heartbeats say how many of our first rounds we cannot give up.

        rounds: the rounds of our newest provisional records.  confirmed: number of rounds up to the last one that we have
        confirmed.
        """
        history, votes = self._history, self._replica.store.votes
        entries = {round: (history.tip_at(round), history.tip_at(round + 1)) for round in rounds}
        known = self._locked
        self._locked = {
            entry: known[entry] if entry in known else votes.is_locked_on(round, *entry) for round, entry in entries.items()
        }
        locked = max((round + 1 for round, entry in entries.items() if self._locked[entry]), default=0)
        self._activity.note_bound(max(confirmed, locked))

    def _part(self, round: int) -> frozenset[PeerId]:
        """Return the peers that took part in our records from `round` on, as far as the newest records show."""
        history = self._history
        newest = history.roster.work.records[-max(1, history.length - round - 1) :] if history.length > round + 1 else ()
        voters = (PeerId(vote.peer) for vote in history.certificate_at(round).votes)
        return frozenset([*voters, *(peer for record in newest for peer, _ in record)])

    def _rank(self, round: int) -> Rank:
        known, history = self._ranks.get(round), self._history
        if known is not None and known.record == history.tip_at(round + 1):
            return known
        return Constituency.of(history.roster_at(round)).rank(history.commit_at(round), self._part(round))


# ------------------------------------------------------------------------------------------------------------------------


YOUNG_ROUNDS = 100
"""Number of rounds after which a run that any peer may begin is not given up for another beginning of the run."""
MAX_ALARMS = 256
STAYING = (
    "the invitation's history differs from this peer's from round {round} on, and {final} rounds here are final; join with "
    "the run's ID to keep this history, or use another --data-dir to follow the invitation's history"
)


@dataclass(frozen=True)
class Choice:
    """Outcome of judging a branch.

    rounds: number of rounds up to which we adopt the branch; at most the rounds in common if we adopt none.  lost: True if
    the branch loses for good.  news: events to emit.
    """

    rounds: int
    lost: bool = False
    news: tuple[Event, ...] = ()


class ForkChoice:
    """Judge of branches that are rooted in our chain.  Blocking: reads records, in a thread that must not emit events."""

    def __init__(self, replica: Replica, me: PeerId, tips: PeerTips, anchor: Anchor | None = None) -> None:
        self._replica, self._me, self._tips, self._anchor = replica, me, tips, anchor
        self._news: list[Event] = []
        self._alarms = BoundedDict[Hash, None](MAX_ALARMS)
        self._told = False

    def judge(self, branch: Branch, shown_by: PeerId, *, is_whole: bool = True) -> Choice:
        """Return the part of a branch that we adopt.  is_whole: False while more records of the peer's chain may follow."""
        choice, news = self._judge(branch, shown_by, is_whole), tuple(self._news)
        self._news.clear()
        return replace(choice, news=news)

    def _judge(self, branch: Branch, shown_by: PeerId, is_whole: bool) -> Choice:
        common, history = branch.common, self._replica.history
        if common == branch.length:
            return Choice(common)
        part = took_part(branch, common)
        theirs = Constituency.of(history.roster_at(common)).rank(branch.commit_at(common), part)
        self._tips.showed(shown_by, Side(branch.tip_at(common), theirs, common))
        if common == history.length:
            return Choice(self._followed(branch, common, part))
        if record_hash(history.commit_at(common).record) == branch.tip_at(common + 1):
            return Choice(common)  # we have meanwhile committed the same record
        wins = self._wins(branch, common, shown_by, theirs, is_whole)
        if not wins:
            return Choice(common, lost=wins is False)
        return Choice(self._followed(branch, common + 1, part))

    def _wins(self, branch: Branch, common: int, shown_by: PeerId, theirs: Rank, is_whole: bool) -> bool | None:
        """Return True if the branch wins, False if it loses; None if that depends on further records of the branch."""
        history = self._replica.history
        ours, other = history.commit_at(common), branch.commit_at(common)
        is_ours_full, is_theirs_full = is_full(ours.certificate), is_full(other.certificate)
        if ours.record.state_digest != other.record.state_digest and is_ours_full >= is_theirs_full:
            return False  # both stand on the same state, and our record names it
        if common < self._chosen(history):
            return False
        own = Constituency.of(history.roster_at(common)).rank(ours, took_part(history, common))
        began_twice = common == 0 and self._replica.rounds.founders is None and history.length < YOUNG_ROUNDS
        if began_twice:  # two peers began the same open run, and our history is young enough to yield
            if branch.length >= YOUNG_ROUNDS:
                return True
            return theirs < own if is_whole else None
        if is_theirs_full and is_ours_full:
            self._alarm(ours, other, shown_by)
        if self._chosen(branch) and not self._chosen(history):
            if common < history.final and not self._told:
                self._told = True
                self._news.append(Notice("warning", STAYING.format(round=common, final=history.final)))
            return common >= history.final
        if is_theirs_full and is_ours_full:
            return False
        if common < history.final:
            return False
        if branch.final > common:
            return True
        if not is_theirs_full and self._is_bound_elsewhere(branch, common):
            return False if is_whole else None
        if is_whole or is_theirs_full != is_ours_full:
            return theirs < own
        return None

    def _chosen(self, chain: AnchorChain) -> int:
        """Return the number of rounds up to the record that our invitation names; 0 if there is none in the chain."""
        return self._anchor.rounds if self._anchor is not None and self._anchor.holds(chain) else 0

    def _alarm(self, ours: Commit, theirs: Commit, shown_by: PeerId) -> None:
        tip = record_hash(theirs.record)
        if tip in self._alarms:
            return
        self._alarms[tip] = None
        both = {vote.peer for vote in ours.certificate.votes} & {vote.peer for vote in theirs.certificate.votes}
        if not both:
            return  # peers that did not know of each other began the run twice; nobody has lied
        round, mine = ours.record.round, record_hash(ours.record).hex()
        self._news.append(SecondHistory(round, mine, tip.hex(), shown_by, sorted(both)))

    def _followed(self, branch: Branch, start: int, part: frozenset[PeerId]) -> int:
        """Return the first round from `start` on whose provisional record we do not follow; the branch's length if none.

        part: the peers that took part in the branch.
        """
        start = max(start, self._chosen(branch), branch.final)
        own = branch.tips(start, branch.length - start + 1)
        places: dict[bytes, int] = {tip: round for round, tip in enumerate(own, start)}
        for round, mark in branch.provisional.items():
            if round < start:
                continue
            who = Constituency(mark.electors, mark.work, self._replica.rounds.is_open)
            weights, fork = who.weights(mark.absent), branch.tip_at(round)
            ranked = who.rank(branch.commit_at(round), part) if self._tips.is_parting(fork) else None
            candidate = Candidate(fork, _TipsAfter(places, round), ranked, part)
            is_bound = self._me in who.electors and self._is_bound_elsewhere(branch, round)
            if is_bound or not self._tips.follow(weights, candidate, who.least(weights, self._me)):
                return round
        return branch.length

    def _is_bound_elsewhere(self, branch: Branch, round: int) -> bool:
        """Return True if our votes bind us to another record than the branch's record of this round."""
        return self._replica.store.votes.is_bound_elsewhere(round, branch.tip_at(round), branch.tip_at(round + 1))

    def back_to(self) -> int | None:
        """Return the round of the first provisional record to give up, with all records after it.

        None if all records hold.
        """
        return self._tips.back_to(self._chosen(self._replica.history))
