"""Which of two chains is ours: how much of a verified branch we take over.

At the first record that differs a full one beats a provisional one; then more signers; then the lower hash
(`protocol.state.chain.prefer`).  A final record yields to nothing, and a settled one only to a full one.  Two full records
on one tip are the work of a third of liars among the electors: we keep ours, and say so.  Provisional records are taken
over as far as the electors, as they are heard now, stand on them.  A branch through the record that our invitation names
wins over one without it, unless final records would be given up: that is how a person chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from protocol.events import Event, Notice, SecondHistory
from protocol.run.anchor import Anchor, Chain
from protocol.state.branch import Branch
from protocol.state.chain import is_full, prefer, rank, record_hash
from protocol.state.replica import Replica
from protocol.sync.branches import Candidate, Side
from protocol.sync.settled import Settled
from protocol.sync.standpoints import Standpoints
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit

YOUNG_ROUNDS = 100
"""A run that anybody may begin may have been begun twice.  After so many rounds a beginning is not given up for another."""
MAX_ALARMS = 256
STAYING = (
    "the history of the invitation differs from ours from round {round} on, and {final} rounds of ours are final; join with "
    "the run's ID to stay with ours, or follow the other one with another --data-dir"
)


@dataclass(frozen=True)
class Choice:
    """rounds: of the branch that we take over, no more than those in common if none.  lost: the branch loses for good.

    news: to be told.
    """

    rounds: int
    lost: bool = False
    news: tuple[Event, ...] = ()


class ForkChoice:
    """Judges branches that are rooted in our chain.  Blocking: it reads a record of each, in a thread that tells nobody."""

    def __init__(
        self,
        replica: Replica,
        standpoints: Standpoints,
        settled: Settled,
        anchor: Anchor | None = None,
    ) -> None:
        self._replica, self._standpoints, self._settled = replica, standpoints, settled
        self._anchor = anchor
        self._news: list[Event] = []
        self._alarms: dict[Hash, None] = {}
        self._told = False

    def judge(self, branch: Branch, shown_by: PeerId) -> Choice:
        """How much of it we take over."""
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
            return Choice(common)  # we have come to the same record meanwhile
        if not self._wins(branch, common, shown_by):
            return Choice(common, lost=True)
        return Choice(self._followed(branch, common + 1))

    def _wins(self, branch: Branch, common: int, shown_by: PeerId) -> bool:
        history = self._replica.history
        ours, theirs = history.commit_at(common), branch.commit_at(common)
        electors = history.roster_at(common).electorate.electors
        is_ours_full, is_theirs_full = is_full(ours.certificate), is_full(theirs.certificate)
        if ours.record.state_digest != theirs.record.state_digest and is_ours_full >= is_theirs_full:
            return False  # both stand on the same state, and ours names it
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
        """Whether two peers began a run that anybody may begin, and ours is young enough to be given up for the other."""
        return common == 0 and self._replica.rounds.founders is None and self._replica.history.length < YOUNG_ROUNDS

    def _chosen(self, chain: Chain) -> int:
        """Rounds up to the record that our invitation names; 0 when the chain lacks it, or none is named."""
        return self._anchor.rounds if self._anchor is not None and self._anchor.holds(chain) else 0

    def _may_come_over(self, common: int) -> bool:
        """To the history that our invitation names: not where final records would be given up, which a person is told."""
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
        """The round of the first provisional record from `start` on that the electors do not stand on; else all."""
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
        """The round whose provisional record, and all after it, we should give up; None when those we have hold."""
        return self._standpoints.back_to(max(self._settled.rounds, self._chosen(self._replica.history)))
