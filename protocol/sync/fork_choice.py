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
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
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
    """The peers that count at a tip: its electors, and the members with recent work.

    is_open: True if keys are free.  has_founders: True if founders are named; otherwise anyone may begin the run.
    """

    electors: tuple[PeerId, ...]
    work: RecentWork
    is_open: bool
    has_founders: bool = True

    @classmethod
    def of(cls, roster: Roster) -> Constituency:
        """Return the constituency at a tip with this roster."""
        settings = roster.electorate.settings
        return cls(roster.electorate.electors, roster.work, settings.is_open, settings.founders is not None)

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

    def least(self, weights: Mapping[PeerId, int], me: PeerId, heard: Mapping[PeerId, Standpoint]) -> int:
        """Return the smallest weight on a record of others with which `me` follows it.  heard: positions, that of `me` too.

        With named founders and free keys, an elector follows a record without any elector's vote only if members with more
        than half of the others' recent work are on it; elsewhere so does one who has others to rely on.  A peer that hears
        nobody with a weight who has stayed follows those who go on: at genesis, and in a young run whose only members left.
        """
        others = sum(weight for peer, weight in weights.items() if peer != me)
        is_guarded = me in self.electors and self.is_open and weights is self._bounded.tokens
        if is_guarded and (others or self.has_founders):
            return others // 2 + 1
        return int(any(peer in weights and not at.was_away for peer, at in heard.items()))


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
# Fork choice, with the positions of the peers according to their last heartbeats.


LATEST = 64
"""Most provisional records that are searched for a lock of ours."""
LATEST_ROUNDS = 200
"""Number of newest rounds in which the positions of all peers count, at most `protocol.chain.history.ROSTERS_KEPT`."""
MAX_SIDES = 1024
"""Most peers whose `Side` is remembered."""
STUCK_S = 60.0
"""Seconds after which electors without a quorum return to a tip to which another elector holds on."""
YOUNG_ROUNDS = 100
"""Number of rounds after which a run that any peer may begin is not given up for another beginning of the run."""
MAX_ALARMS = 256
STAYING = (
    "the invitation's history differs from this peer's from round {round} on, and {final} rounds here are final; join with "
    "the run's ID to keep this history, or use another --data-dir to follow the invitation's history"
)


@dataclass(frozen=True)
class _TipsAfter:
    """The tips of a chain after more than `rounds` rounds.  places: number of rounds before each tip."""

    places: Mapping[bytes, int]
    rounds: int

    def __contains__(self, tip: object) -> bool:
        return isinstance(tip, bytes) and self.places.get(tip, -1) > self.rounds


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
    """Judge of branches that are rooted in our chain, and of our own provisional records.

    anchor: the record that our chain must contain.  `judge` blocks: it reads records, in a thread that must not emit events.
    """

    def __init__(self, replica: Replica, membership: Membership, activity: Activity, anchor: Anchor | None = None) -> None:
        self._replica, self._history, self._me = replica, replica.history, membership.me
        self._membership, self._activity, self.anchor = membership, activity, anchor
        self._sides: dict[PeerId, Side] = {}
        """Point where each peer's chain left ours when the peer last showed it; used only for that peer."""
        self._ranks: dict[int, Rank] = {}
        """Ranks of our contested records that have known siblings, by round."""
        self._locked: dict[tuple[Hash, Hash], bool] = {}
        """Our provisional records, by the tip before and the record: True if we are locked on the record by all electors."""
        self._leaving: dict[tuple[bytes, bool], float] = {}
        """Tips before our provisional records to which we should return, each with the time since when; True: if stuck."""
        self._news: list[Event] = []
        self._alarms = BoundedDict[Hash, None](MAX_ALARMS)
        self._told = False

    # -- positions of the peers ---------------------------------------------------------------------------------------

    def showed(self, peer: PeerId, side: Side) -> None:
        """Note the point where the verified chain that `peer` showed leaves ours.  Thread-safe."""
        kept = list(self._sides.items())[-MAX_SIDES + 1 :]
        self._sides = dict(kept) | {peer: side}  # a new dict, because another thread may be iterating over the old one

    def _is_parting(self, tip: bytes) -> bool:
        """Return True if a chain was seen to leave our chain at this tip."""
        return any(side.fork == tip for side in self._sides.values())

    def _heard(self, peers: Iterable[PeerId]) -> dict[PeerId, Standpoint]:
        heard = {self._me: Standpoint(self._history.tip, self._activity.was_away)}
        for peer in peers:
            known = self._membership.get(peer)
            if peer != self._me and known is not None and self._membership.is_live(peer):
                beat = known.heartbeat
                is_ours = self._history.tips(beat.round, 1) == [beat.tip]
                heard[peer] = Standpoint(beat.tip, beat.was_away, None if is_ours else self._sides.get(peer), beat.bound)
        return heard

    # -- branches -----------------------------------------------------------------------------------------------------

    def judge(self, branch: Branch, shown_by: PeerId, *, is_whole: bool = True) -> Choice:
        """Return the part of a branch that we adopt.  is_whole: False while more records of the peer's chain may follow."""
        choice, news = self._judge(branch, shown_by, is_whole), tuple(self._news)
        self._news.clear()
        return replace(choice, news=news)

    def _judge(self, branch: Branch, shown_by: PeerId, is_whole: bool) -> Choice:
        common, history = branch.common, self._history
        if common == branch.length:
            return Choice(common)
        part = took_part(branch, common)
        theirs = Constituency.of(history.roster_at(common)).rank(branch.commit_at(common), part)
        self.showed(shown_by, Side(branch.tip_at(common), theirs, common))
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
        history = self._history
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
        return self.anchor.rounds if self.anchor is not None and self.anchor.holds(chain) else 0

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
        start, rounds = max(start, self._chosen(branch), branch.final), self._replica.rounds
        own = branch.tips(start, branch.length - start + 1)
        places: dict[bytes, int] = {tip: round for round, tip in enumerate(own, start)}
        for round, mark in branch.provisional.items():
            if round < start:
                continue
            who = Constituency(mark.electors, mark.work, rounds.is_open, rounds.founders is not None)
            weights, fork = who.weights(mark.absent), branch.tip_at(round)
            ranked = who.rank(branch.commit_at(round), part) if self._is_parting(fork) else None
            candidate = Candidate(fork, _TipsAfter(places, round), ranked, part)
            is_bound = self._me in who.electors and self._is_bound_elsewhere(branch, round)
            heard = self._heard(weights)
            if is_bound or not follows(count(weights, heard, candidate), who.least(weights, self._me, heard)):
                return round
        return branch.length

    def _is_bound_elsewhere(self, branch: Branch, round: int) -> bool:
        """Return True if our votes bind us to another record than the branch's record of this round."""
        return self._replica.store.votes.is_bound_elsewhere(round, branch.tip_at(round), branch.tip_at(round + 1))

    # -- our own records ----------------------------------------------------------------------------------------------

    def back_to(self) -> int | None:
        """Return the round of the first provisional record to give up, with all records after it; None if all records hold.

        Call this often.  A record is given up once more weight has been before it than on it for `listen_s`: just after a
        record was made, most peers have not yet announced that they are on it.  We never return to a tip on which we have
        confirmed our record, because we could say nothing there, or before the record that our invitation names.
        """
        history, now, votes = self._history, trio.current_time(), self._replica.store.votes
        chosen = self._chosen(history)
        provisional = history.provisional  # a vote confirms all of them at once, so the confirmed ones come first
        first = bisect_left(provisional, True, key=lambda at: votes.confirmed_on(at, history.tip_at(at)) is None)
        confirmed = provisional[first - 1] + 1 if first else 0
        self._note_bound(provisional[-LATEST:], confirmed)
        heard = self._heard(peer for peer, _ in self._membership) if provisional else {}
        contested = [round for round in self._contested(heard, provisional) if round >= max(chosen, confirmed)]
        self._ranks = {round: self._rank(round) for round in contested if self._is_ranked(round)}
        leaving: dict[tuple[bytes, bool], float] = {}
        for round in contested:
            for entry in ((history.tip_at(round), is_stuck) for is_stuck in self._reasons(round, heard)):
                leaving[entry] = self._leaving.get(entry, now)
        self._leaving = leaving
        waits = {False: self._replica.rounds.listen_s, True: STUCK_S}
        lost = {fork for (fork, is_stuck), since in leaving.items() if now - since >= waits[is_stuck]}
        return next((round for round in contested if history.tip_at(round) in lost), None)

    def _contested(self, heard: Mapping[PeerId, Standpoint], provisional: Sequence[int]) -> list[int]:
        """Return those of our provisional records, in order, that a heard peer contradicts: only these can be given up.

        The peer is on the tip before the record and was not away, or it is bound to another record of that tip.
        """
        places: dict[bytes, int] = {self._history.tip_at(round): round for round in provisional}
        forks = {at.tip for at in heard.values() if not at.was_away}
        forks |= {at.side.fork for at in heard.values() if at.side is not None and at.is_bound}
        return sorted(places[fork] for fork in forks if fork in places)

    def _reasons(self, round: int, heard: Mapping[PeerId, Standpoint]) -> Iterator[bool]:
        """Yield the reasons to give up our provisional record of `round`: False if it does not hold, True if we are stuck.

        For a record before `LATEST_ROUNDS` only the second one counts, and only the votes of its electors.
        """
        history = self._history
        fork, electors, absent = history.tip_at(round), history.electors_at(round), history.certificate_at(round).absent
        by_electors = not set(electors) <= set(absent)  # otherwise members made the record, and electors may come over to it
        tips = frozenset(history.tips(round + 1, history.length - round))
        if round < history.length - LATEST_ROUNDS:
            counted = count(dict.fromkeys(electors, 1), heard, Candidate(fork, tips, None))
            if by_electors and is_stuck(electors, counted):
                yield True
            return
        branch = Candidate(fork, tips, self._ranks.get(round), self._part(round))
        counted = count(Constituency.of(history.roster_at(round)).weights(absent), heard, branch)
        if returns(counted):
            yield False
        ahead = history.electors_at(history.length)  # in a young run, the members of the last record alone
        then = count(dict.fromkeys(ahead, 1), heard, branch)
        if by_electors and (is_stuck(electors, counted) or is_stuck(ahead, then)):
            yield True

    def _is_ranked(self, round: int) -> bool:
        """Return True if the rank of our record of `round` matters, and can be computed from memory."""
        return round >= self._history.length - LATEST_ROUNDS and self._is_parting(self._history.tip_at(round))

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
