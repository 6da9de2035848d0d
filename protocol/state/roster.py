"""What the records up to a tip say about peers: who votes, who was ever a member, and how often tokens were used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.run.admission import TokenUses, verify_admission
from protocol.run.manifest import RunManifest
from protocol.state.amendment import extension_of
from protocol.state.base import Base, RoundSettings, fragment_of
from protocol.state.electorate import Electorate, contributors
from protocol.state.progress import RunProgress
from protocol.state.tasks_in_force import TasksInForce
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit, Member


@dataclass(frozen=True)
class Roster:
    """Immutable; what did not change is shared.  members: of any record so far.  uses: of admission tokens.  contributors:
    the members of the last record whose parts are in it, sorted.  tasks: the sets of tasks.  progress: towards the run's
    total."""

    electorate: Electorate
    members: frozenset[PeerId] = frozenset()
    uses: TokenUses = TokenUses()
    contributors: tuple[PeerId, ...] = ()
    tasks: TasksInForce = TasksInForce()
    progress: RunProgress = RunProgress()

    @classmethod
    def start(cls, settings: RoundSettings) -> Roster:
        """The roster of a chain without records."""
        return cls(Electorate.start(settings), progress=RunProgress(settings.manifest.goal))

    def after(self, commit: Commit) -> Roster:
        """What one more record, which has been verified, makes of it."""
        named = [PeerId(member.peer) for member in commit.record.members]
        masks = [entry.mask for entry in commit.index]
        electorate, contributing = self.electorate.after(named, masks), tuple(sorted(contributors(named, masks)))
        tasks = self.tasks.after(commit.record, self.electorate.electors)
        progress = self.progress.after(commit, extension_of(commit.record))
        new = [member for member in commit.record.members if member.peer not in self.members]
        if not new:
            return Roster(electorate, self.members, self.uses, contributing, tasks, progress)
        uses = self.uses.after([(PeerId(member.peer), member.admission) for member in new])
        return Roster(electorate, self.members.union(named), uses, contributing, tasks, progress)


def base_on(settings: RoundSettings, round: int, tip: Hash, roster: Roster) -> Base:
    """What round `round` stands on."""
    return Base(
        round,
        fragment_of(round, settings.fragments),
        tip,
        roster.electorate.electors,
        roster.contributors,
        roster.members,
        roster.uses,
        roster.tasks,
        roster.progress,
    )


def check_admissions(
    manifest: RunManifest, run: Hash, round: int, members: Sequence[Member], known: frozenset[PeerId], uses: TokenUses
) -> None:
    """Whether all these may be members of a record; raises `Malformed` with the reason.

    known: members of earlier records, who were admitted for good.  uses: of tokens, before this record.
    """
    new = [member for member in members if member.peer not in known]
    for member in new:
        verify_admission(manifest, run, PeerId(member.peer), member.admission, round)
    uses.after([(PeerId(member.peer), member.admission) for member in new])
