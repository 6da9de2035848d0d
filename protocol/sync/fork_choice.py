"""Fork choice: the part of a verified branch that we adopt.

At the first record that differs, a full record beats a provisional one; then more signers win; then the lower hash
(`protocol.chain.records.prefer`).  A final record never yields, and a settled record yields only to a full one.  Two full
records on one tip are possible only if at least a third of the electors lied: we keep ours, and report both.  We adopt
provisional records as far as the electors, as heard now, stand on them.  A branch with the record that our invitation names
wins over a branch without it, unless we would have to give up final records: in this way, a person can choose.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import trio

from protocol.chain.electorate import FEWEST_SEATED
from protocol.chain.history import Branch, History
from protocol.chain.records import Rank, is_full, prefer, rank, record_hash
from protocol.chain.replica import Replica
from protocol.events.events import Event, Notice, SecondHistory
from protocol.membership.activity import Activity
from protocol.membership.liveness import Membership
from protocol.run.invitation import Anchor, AnchorChain
from protocol.sync.remote_chains import Settled
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit

# ------------------------------------------------------------------------------------------------------------------------
# Provisional records when electors differ about who is absent: peers follow them or return from them.
#
# Pure.  A provisional record was made without some electors.  The electors of the tip before it, as heard now, decide
# whether the record holds:
#
# * a peer at the tip before the record follows it if at least as many electors are on it as off it; an elector counts
#   itself;
# * a peer on the record returns to the tip before it if more electors are off it than on it;
# * with fewer than four electors, where a single elector may decide, a peer that was away (restarted, or asleep) follows any
#   elector that was not away, and no peer returns because of electors that were away.
#
# An elector on another branch of the same tip counts as on this one if its branch loses to this one
# (`protocol.chain.records.prefer`), because it will move here.  So no peer returns from a branch to which enough electors
# are moving, and the moves of electors that hear each other end.  The proof is for one tip T with at least four electors.
# Suppose that the moves form a cycle, and let H be the best branch that electors leave in that cycle.  Nobody leaves a
# better branch, so nobody enters one either, and electors leave H for T.  At that moment, of the c electors that are on no
# better branch, more than c / 2 are at T.  Only the other electors can count as on H or on a branch that loses to it, so
# nobody at T follows such a branch.  From then on nobody leaves T, so there is no cycle.
#
# Nobody is stuck.  If two branches are heard, the electors on the losing one move to the other.  If one branch and T are
# heard, either the electors at T follow, or the electors on the branch return.  And nobody waits for a branch: if one
# elector stands on the best branch and does not serve its records, the others agree without that branch.
#
# So a frozen, partitioned or restarted peer recovers without help.  With four or more electors, one elector cannot move any
# peer that hears the other electors, however many keys it adds.


@dataclass(frozen=True)
class Side:
    """Point where one chain leaves another.  fork: the tip at that point.  first: rank of the first record after it."""

    fork: Hash
    first: Rank


@dataclass(frozen=True)
class Standpoint:
    """Position that an elector states.  was_away: it was restarted or frozen, and has made no record since.

    side: the point where the elector's chain left ours when we last saw it; None if we never did, or it is on our chain now.
    """

    tip: bytes
    was_away: bool
    side: Side | None = None


@dataclass(frozen=True)
class ElectorCount:
    """Numbers of electors of one tip that are heard now.

    on: electors on the branch, or moving to it.  off: electors on the tip itself.  present_on, present_off: electors among
    these that were not away.
    """

    on: int
    off: int
    present_on: int
    present_off: int


@dataclass(frozen=True)
class Candidate:
    """A branch that is judged.  fork: the tip before it.  tips: the tips after its records.

    first: the rank of its first record, which is provisional; may be None if no `Side` leaves `fork`.
    """

    fork: Hash
    tips: Collection[bytes]
    first: Rank | None

    def gains(self, at: Standpoint) -> bool:
        """Return True if an elector at `at` is on this branch, or will move to it from a branch that loses to it."""
        if at.tip == self.fork:
            return False
        if at.tip in self.tips or at.side is None:
            return at.tip in self.tips
        fork, first = at.side.fork, at.side.first
        return fork in self.tips or first.record in self.tips or (fork == self.fork and self._wins(first))

    def _wins(self, other: Rank) -> bool:
        return self.first is not None and self.first < other


def count(electors: Collection[PeerId], heard: Mapping[PeerId, Standpoint], branch: Candidate) -> ElectorCount:
    """Count the electors by their positions.

    Electors at other positions (behind, unknown, or on a branch that wins over this one) are not counted.
    """
    there = [heard[peer] for peer in electors if peer in heard]
    on = [each for each in there if branch.gains(each)]
    off = [each for each in there if each.tip == branch.fork]
    return ElectorCount(len(on), len(off), sum(not each.was_away for each in on), sum(not each.was_away for each in off))


def follows(electors: Sequence[PeerId], counted: ElectorCount, *, was_away: bool) -> bool:
    """Return True if a peer that is not on a provisional record adopts the record.

    counted: includes the peer itself if it is an elector.  was_away: True if the peer was away.
    """
    if len(electors) < FEWEST_SEATED and was_away and counted.present_on:
        return True
    return counted.on >= counted.off


def returns(electors: Sequence[PeerId], counted: ElectorCount) -> bool:
    """Return True if a peer on a provisional record goes back to the tip before it.  counted: includes the peer itself."""
    if len(electors) < FEWEST_SEATED:
        return counted.present_off > counted.on
    return counted.off > counted.on


# ------------------------------------------------------------------------------------------------------------------------
# Positions of the electors according to their last heartbeats: the evidence for judging provisional records.


LATEST = 64
"""Number of newest provisional records that are judged again; other peers have long since followed older ones."""
MAX_SIDES = 1024
"""Most electors whose `Side` is remembered."""


class ElectorTips:
    """Positions of the electors: `membership` knows the other electors' positions; we stand on our own tip."""

    def __init__(self, me: PeerId, history: History, membership: Membership, activity: Activity, listen_s: float) -> None:
        self._me, self._history, self._membership, self._activity = me, history, membership, activity
        self._listen_s = listen_s
        self._sides: dict[PeerId, Side] = {}
        """Point where each peer's chain left ours when the peer last showed it; used only for that peer."""
        self._ranks: dict[int, Rank] = {}
        """Ranks of our provisional records that have known siblings, by round."""
        self._leaving: dict[bytes, float] = {}
        """Tips before our provisional records at which most of the electors stand, each with the time since when."""

    def showed(self, peer: PeerId, side: Side) -> None:
        """Note the point where the verified chain that `peer` showed leaves ours.  Thread-safe."""
        kept = list(self._sides.items())[-MAX_SIDES + 1 :]
        self._sides = dict(kept) | {peer: side}  # a new dict, because another thread may be iterating over the old one

    def is_parting(self, tip: bytes) -> bool:
        """Return True if a chain was seen to leave our chain at this tip."""
        return any(side.fork == tip for side in self._sides.values())

    def _heard(self, electors: Collection[PeerId]) -> dict[PeerId, Standpoint]:
        heard = {self._me: Standpoint(self._history.tip, self._activity.was_away)}
        for peer in electors:
            known = self._membership.get(peer)
            if peer != self._me and known is not None and self._membership.is_live(peer):
                beat = known.heartbeat
                is_ours = self._history.tips(beat.round, 1) == [beat.tip]
                heard[peer] = Standpoint(beat.tip, beat.was_away, None if is_ours else self._sides.get(peer))
        return heard

    def follow(self, electors: Sequence[PeerId], branch: Candidate) -> bool:
        """Return True if we adopt a verified provisional record and the records on it.

        electors: the electors at the fork.
        """
        return follows(electors, count(electors, self._heard(electors), branch), was_away=self._activity.was_away)

    def back_to(self, settled: int = 0) -> int | None:
        """Return the round of the first provisional record to give up, with all records after it; None if all records hold.

        Call this often.  A record is given up once its electors have stood before it for `listen_s`: just after a record was
        made, most of its electors have not yet announced that they are on it.  settled: number of rounds whose records are
        never given up.
        """
        history, now = self._history, trio.current_time()
        leaving: dict[bytes, float] = {}
        looked_at = [round for round in history.provisional[-LATEST:] if round >= settled]
        self._ranks = {round: self._rank(round) for round in looked_at if self.is_parting(history.tip_at(round))}
        for round in looked_at:
            electors, fork = history.roster_at(round).electorate.electors, history.tip_at(round)
            tips = frozenset(history.tips(round + 1, history.length - round))
            branch = Candidate(fork, tips, self._ranks.get(round))
            if returns(electors, count(electors, self._heard(electors), branch)):
                leaving[fork] = self._leaving.get(fork, now)
        self._leaving = leaving
        given_up = [round for round in looked_at if self._has_lost(history.tip_at(round), now)]
        return given_up[0] if given_up else None

    def _rank(self, round: int) -> Rank:
        known, history = self._ranks.get(round), self._history
        if known is not None and known.record == history.tip_at(round + 1):
            return known
        return rank(history.roster_at(round).electorate.electors, history.commit_at(round))

    def _has_lost(self, fork: bytes, now: float) -> bool:
        return fork in self._leaving and now - self._leaving[fork] >= self._listen_s


# ------------------------------------------------------------------------------------------------------------------------


YOUNG_ROUNDS = 100
"""Number of rounds after which a run that any peer may begin is not given up for another beginning of the run."""
MAX_ALARMS = 256
STAYING = (
    "the history of the invitation differs from ours from round {round} on, and {final} rounds of ours are final; join with "
    "the run's ID to stay with ours, or follow the other one with another --data-dir"
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

    def __init__(
        self,
        replica: Replica,
        standpoints: ElectorTips,
        settled: Settled,
        anchor: Anchor | None = None,
    ) -> None:
        self._replica, self._standpoints, self._settled = replica, standpoints, settled
        self._anchor = anchor
        self._news: list[Event] = []
        self._alarms: dict[Hash, None] = {}
        self._told = False

    def judge(self, branch: Branch, shown_by: PeerId) -> Choice:
        """Return the part of a branch that we adopt."""
        choice, news = self._judge(branch, shown_by), tuple(self._news)
        self._news.clear()
        return replace(choice, news=news)

    def _judge(self, branch: Branch, shown_by: PeerId) -> Choice:
        common = branch.common
        if common == branch.length:
            return Choice(common)
        electors = self._replica.history.roster_at(common).electorate.electors
        if shown_by in electors:
            self._standpoints.showed(shown_by, Side(branch.tip_at(common), rank(electors, branch.commit_at(common))))
        if common == self._replica.history.length:
            return Choice(self._followed(branch, common))
        if record_hash(self._replica.history.commit_at(common).record) == branch.tip_at(common + 1):
            return Choice(common)  # we have meanwhile committed the same record
        if not self._wins(branch, common, shown_by):
            return Choice(common, lost=True)
        return Choice(self._followed(branch, common + 1))

    def _wins(self, branch: Branch, common: int, shown_by: PeerId) -> bool:
        history = self._replica.history
        ours, theirs = history.commit_at(common), branch.commit_at(common)
        electors = history.roster_at(common).electorate.electors
        is_ours_full, is_theirs_full = is_full(ours.certificate), is_full(theirs.certificate)
        if ours.record.state_digest != theirs.record.state_digest and is_ours_full >= is_theirs_full:
            return False  # both stand on the same state, and our record names it
        if common < self._chosen(history):
            return False
        if self._is_second_beginning(common):
            return prefer(electors, ours, theirs)
        if is_theirs_full and is_ours_full:
            self._alarm(ours, theirs, shown_by)
        if self._chosen(branch) and not self._chosen(history):
            return self._may_come_over(common)
        if is_theirs_full and is_ours_full:
            return False
        if common < history.final or (common < self._settled.rounds and not is_theirs_full):
            return False
        return prefer(electors, ours, theirs)

    def _is_second_beginning(self, common: int) -> bool:
        """Return True if two peers began the same open run, and our history is young enough to yield to the other one."""
        return common == 0 and self._replica.rounds.founders is None and self._replica.history.length < YOUNG_ROUNDS

    def _chosen(self, chain: AnchorChain) -> int:
        """Return the number of rounds up to the record that our invitation names.

        0 if it names none or the chain lacks it.
        """
        return self._anchor.rounds if self._anchor is not None and self._anchor.holds(chain) else 0

    def _may_come_over(self, common: int) -> bool:
        """Return True if switching to our invitation's history gives up no final record; otherwise report it once."""
        final = self._replica.history.final
        if common < final and not self._told:
            self._told = True
            self._news.append(Notice("warning", STAYING.format(round=common, final=final)))
        return common >= final

    def _alarm(self, ours: Commit, theirs: Commit, shown_by: PeerId) -> None:
        tip = record_hash(theirs.record)
        if tip in self._alarms:
            return
        if len(self._alarms) >= MAX_ALARMS:
            self._alarms.pop(next(iter(self._alarms)))
        self._alarms[tip] = None
        both = {vote.peer for vote in ours.certificate.votes} & {vote.peer for vote in theirs.certificate.votes}
        round, mine = ours.record.round, record_hash(ours.record).hex()
        self._news.append(SecondHistory(round, mine, tip.hex(), shown_by, sorted(both)))

    def _followed(self, branch: Branch, start: int) -> int:
        """Return the first round from `start` on whose provisional record we do not follow; the branch's length if none."""
        start = max(start, self._chosen(branch))
        for round, electors in branch.provisional.items():
            if round < start:
                continue
            if not self._standpoints.follow(electors, self._candidate(branch, round, electors)):
                return round
        return branch.length

    def _candidate(self, branch: Branch, round: int, electors: Sequence[PeerId]) -> Candidate:
        fork, tips = branch.tip_at(round), frozenset(branch.tips(round + 1, branch.length - round))
        is_parting = self._standpoints.is_parting(fork)
        return Candidate(fork, tips, rank(electors, branch.commit_at(round)) if is_parting else None)

    def back_to(self) -> int | None:
        """Return the round of the first provisional record to give up, with all records after it.

        None if all records hold.
        """
        return self._standpoints.back_to(max(self._settled.rounds, self._chosen(self._replica.history)))
