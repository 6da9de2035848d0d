"""Electorate of the next record: a pure function of the records up to the tip.

Peer IDs cost nothing, so presence gives no vote.  A vote is earned by contributing to `seasoning_rounds` records in a
row, and kept by being a member of the records that follow.  In an open run, the electors younger than `tenure_rounds`
together hold at most a quarter of the votes: one seat for every three seniors, but always at least one.  So a crowd of keys
gains at most a third of the seniors' number in each `tenure_rounds` records, however many keys it has.

In the beginning the founders vote.  The next electorate depends on the run:

* With named founders and admission by token or list, every seasoned peer has a seat from the second one on.
* With named founders and open admission, the founders vote until four peers hold a seat.  Seasoned founders are senior at
  once; other peers take the seats of the young.  Ages count from the seat, so they count before the seats carry votes.  Two
  or three earned seats never replace the founders, because one unknown key could block them.
* With `founders = "anyone"`, the members of the last record vote until four peers are seasoned; these are senior at once.

The electorate never falls back to the founders: no record takes a seat from an electorate of four or fewer.

A peer that lost its seat has to be seasoned again, but it keeps its age for as many records as it had voted on.  Otherwise,
peers that are often away would return as young electors, with a quarter of the seats, and peers that are never away would
soon hold all other seats.

If there are more candidates than seats, the older one comes first, then the one that began its series of contributions
earlier.  The peer ID decides only between candidates that began with the same record.  Searching for keys with low IDs gains
no more than using more keys would: all such keys come after the candidates of earlier records, and no elector loses its seat
to a candidate.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Self

import numpy as np

from protocol.chain.base import Base, RoundSettings, fragment_of
from protocol.chain.finality import Finality, RecentWork
from protocol.chain.leases import Leases, lease_terms
from protocol.chain.progress import RunProgress, TasksInForce, counted_tokens, extension_of
from protocol.run.admission import TokenUses, verify_admission
from protocol.run.manifest import MAX_ELECTORS, RunManifest
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import MAX_TOTAL, Commit, Member

FEWEST_SEATED = 4
"""Fewest electors that tolerate a liar.  Where keys are free, seasoned peers vote once this many have seats."""
FEWEST_ADMITTED = 2
"""Fewest seats with which seasoned peers vote if founders are named and peers are admitted by token or list."""
NEWCOMERS = tuple(PeerId(f"newcomer {number}") for number in range(FEWEST_SEATED))
"""Peers that a forecast takes to join with the next record: with fewer of them the founders vote for longer."""
MISSES = 3
"""Number of records in a row after which an elector that misses them loses its seat."""


def tolerated(electors: int) -> int:
    """Return the number of liars that an electorate of this size tolerates: less than a third; none below four electors."""
    return (electors - 1) // 3 if electors >= FEWEST_SEATED else 0


def quorum_size(electors: int) -> int:
    """Return the number of votes that decide: two quorums share more than `tolerated` electors; below four, a majority."""
    return (electors + tolerated(electors)) // 2 + 1


@dataclass(frozen=True, slots=True)
class ElectorStanding:
    """State of one peer that votes or is earning a vote.  Records are numbered from 1.

    first: the record that began the unbroken series with which the vote is earned.
    is_seasoned: True once the series was long enough; from then on, membership suffices to keep the vote.
    missed: number of records in a row, up to the last one, that do not name the peer; 0 until it is seasoned.
    since: the record that gave the peer its seat, less the age that it had kept; None without a seat.
    """

    peer: PeerId
    first: int
    is_seasoned: bool = False
    missed: int = 0
    since: int | None = None


@dataclass(frozen=True, slots=True)
class Former:
    """A peer that has lost its seat.  age: number of records on which it had voted.  left: the record that took its seat."""

    peer: PeerId
    age: int
    left: int

    def is_forgotten(self, height: int) -> bool:
        """Return True if, at the record `height`, the peer has been gone for more records than it had voted on."""
        return height - self.left > self.age


@dataclass(frozen=True)
class Electorate:
    """Electors of the record after the first `height` records.  Immutable; unchanged parts are shared.

    electors: sorted; empty only before the first record of a run without named founders; the plan's members vote on that
    record.
    is_founding: True while the founders (or the members of the last record) still vote.
    standings: states of the electors, and of members of the last three records; sorted by peer.
    former: peers whose age is remembered, for as many records as they had voted on; sorted by peer.
    """

    settings: RoundSettings
    height: int
    electors: tuple[PeerId, ...]
    is_founding: bool
    standings: tuple[ElectorStanding, ...]
    former: tuple[Former, ...]

    @classmethod
    def start(cls, settings: RoundSettings) -> Electorate:
        """Return the electorate at genesis."""
        return cls(settings, 0, settings.founders or (), True, (), ())

    @property
    def quorum(self) -> int:
        """Number of votes that decide."""
        return quorum_size(len(self.electors))

    def after(self, members: Sequence[PeerId], masks: Sequence[bytes]) -> Electorate:
        """Return the electorate after one more record, which has been verified.

        members: the record's members, in the order of the masks' bits.  masks: one for each chunk
        (`protocol.wire.messages`).
        """
        height = self.height + 1
        updated = self._updated(height, frozenset(members), contributors(members, masks))
        gone = self._gone(height, updated)
        standings = self._seated(height, [standing for standing in updated if standing.peer not in gone])
        electors = tuple(standing.peer for standing in standings if standing.since is not None)
        former = self._former(height, updated, frozenset(electors))
        has_free_keys = self.settings.is_open or self.settings.founders is None
        is_founding = self.is_founding and len(electors) < (FEWEST_SEATED if has_free_keys else FEWEST_ADMITTED)
        if is_founding and self.settings.founders:
            electors = self.settings.founders
        elif is_founding:  # the members of the last record; if there are too many, those whose series began earliest
            first = {standing.peer: standing.first for standing in standings}
            ranked = sorted(members, key=lambda peer: (first.get(peer, math.inf), peer))
            electors = tuple(sorted(ranked[:MAX_ELECTORS]))
        return Electorate(self.settings, height, electors, is_founding, tuple(standings), former)

    def founders_vote_until(self, training: Collection[PeerId]) -> int | None:
        """Return the earliest round on which peers other than founders vote; None if they vote now, or the run is not open.

        The forecast applies `after` to records of the future.  training: the peers that contribute to these records; they
        are taken to stay, and `NEWCOMERS` to join at once.
        """
        settings, now = self.settings, self
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

    def to_fields(self) -> dict[str, Any]:
        """Return the electorate as values that JSON can hold, without the settings."""
        return {
            "height": self.height,
            "electors": [*self.electors],
            "is_founding": self.is_founding,
            "standings": [[*astuple(each)] for each in self.standings],
            "former": [[*astuple(each)] for each in self.former],
        }

    @classmethod
    def from_fields(cls, settings: RoundSettings, fields: Any) -> Self:
        """Return the electorate in such values.  Raises ValueError, TypeError or KeyError if it is damaged."""
        standings = (
            ElectorStanding(PeerId(peer), _height(first), _flag(seasoned), _height(missed), _height(since, is_optional=True))
            for peer, first, seasoned, missed, since in fields["standings"]
        )
        former = (Former(PeerId(peer), _height(age), _height(left)) for peer, age, left in fields["former"])
        electors = tuple(map(PeerId, fields["electors"]))
        founding = _flag(fields["is_founding"])
        return cls(settings, _height(fields["height"]), electors, founding, tuple(standings), tuple(former))

    def after_commit(self, commit: Commit) -> Electorate:
        """Return the electorate after one more record, which has been verified."""
        return self.after([PeerId(member.peer) for member in commit.record.members], [entry.mask for entry in commit.index])

    def counted_tokens(self, commit: Commit) -> int:
        """Return the tokens of the next record that count towards the run's total (`protocol.chain.progress`)."""
        if not self.settings.is_open:
            return counted_tokens(commit)
        voters = self.electors or tuple(PeerId(member.peer) for member in commit.record.members)
        return counted_tokens(commit, voters, tolerated(len(voters)))

    def _updated(self, height: int, members: frozenset[PeerId], contributing: frozenset[PeerId]) -> list[ElectorStanding]:
        """Return the standings after record `height`, before any seats are lost or given; sorted by peer."""
        new = contributing.difference(standing.peer for standing in self.standings)
        updated = [ElectorStanding(peer, height, self.settings.seasoning_rounds == 1) for peer in new]
        for standing in self.standings:
            if standing.is_seasoned:
                missed = 0 if standing.peer in members else standing.missed + 1
                updated.append(standing if missed == standing.missed else replace(standing, missed=missed))
            elif standing.peer in contributing:
                is_seasoned = height - standing.first + 1 >= self.settings.seasoning_rounds
                updated.append(replace(standing, is_seasoned=True) if is_seasoned else standing)
        return sorted(updated, key=lambda standing: standing.peer)

    def _gone(self, height: int, standings: Sequence[ElectorStanding]) -> frozenset[PeerId]:
        """Return the peers to remove, which missed too many records: of the electors, only as many as may go at once."""
        missing = [standing for standing in standings if standing.missed >= MISSES]
        if self.is_founding:
            return frozenset(standing.peer for standing in missing)
        due = _by_seniority(missing)[::-1]
        due.sort(key=lambda standing: -standing.missed)
        staying = due[self._removable(height, _by_seniority(standings), due) :]
        return frozenset(standing.peer for standing in missing).difference(standing.peer for standing in staying)

    def _removable(self, height: int, seats: Sequence[ElectorStanding], due: Sequence[ElectorStanding]) -> int:
        """Return the number of electors at the head of `due` that may lose their seats.

        The young electors that then lose their seats as well count towards the limit.
        """
        most = min(tolerated(len(seats)), len(seats) - FEWEST_SEATED)
        young = sum(self._is_young(height, standing) for standing in seats)
        seniors = len(seats) - young
        for count, standing in enumerate(due):
            is_young = self._is_young(height, standing)
            young, seniors = young - is_young, seniors - (not is_young)
            if count + 1 + max(0, young - young_seats(seniors)) > most:
                return count
        return len(due)

    def _seated(self, height: int, standings: Sequence[ElectorStanding]) -> list[ElectorStanding]:
        """Return the standings with seats given: to seniors first, then to young peers up to the seats of the young.

        If seniors have left and more young electors have seats than their share allows, the surplus ones wait for the next
        free seat.
        """
        seats = _by_seniority(standings)
        young = [standing for standing in seats if self._is_young(height, standing)]
        waiting = self._waiting(height, standings)
        senior = [each for each in waiting if not self._is_young(height, each)][: MAX_ELECTORS - len(seats)]
        seniors = len(seats) - len(young) + len(senior)
        share = min(young_seats(seniors), MAX_ELECTORS - seniors)
        others = [each for each in waiting if self._is_young(height, each)][: max(0, share - len(young))]
        changed = {standing.peer: standing for standing in (*senior, *others)}
        changed |= {standing.peer: replace(standing, since=None) for standing in young[share:]}
        return [changed.get(standing.peer, standing) for standing in standings]

    def _waiting(self, height: int, standings: Sequence[ElectorStanding]) -> list[ElectorStanding]:
        """Return the seasoned members of record `height` without a seat, by seniority.

        Each has the seniority that a seat would give it.
        """
        ages = {former.peer: former.age for former in self.former if not former.is_forgotten(height)}
        least = self.settings.tenure_rounds if self.is_founding and self.settings.founders is None else 0
        return _by_seniority(
            replace(standing, since=height - max(least, ages.get(standing.peer, 0)))
            for standing in standings
            if standing.is_seasoned and standing.since is None and not standing.missed
        )

    def _former(self, height: int, before: Sequence[ElectorStanding], seated: frozenset[PeerId]) -> tuple[Former, ...]:
        """Return the former electors after record `height`.

        before: the standings before that record takes or gives seats.
        """
        remembered = [each for each in self.former if each.peer not in seated and not each.is_forgotten(height)]
        left = [
            Former(standing.peer, height - standing.since, height)
            for standing in before
            if standing.since is not None and standing.peer not in seated
        ]
        return tuple(sorted([*remembered, *left], key=lambda former: former.peer)) if left else tuple(remembered)

    def _is_young(self, height: int, standing: ElectorStanding) -> bool:
        """Return True for a young elector: open admission, not a named founder, and an age below `tenure_rounds`."""
        if standing.since is None or not self.settings.is_open or standing.peer in (self.settings.founders or ()):
            return False
        return height - standing.since < self.settings.tenure_rounds


def _height(value: Any, *, is_optional: bool = False) -> Any:
    """Return a number of records that was read from a file; seats may date from before the first record."""
    if value is None and is_optional:
        return None
    if type(value) is not int or abs(value) > MAX_TOTAL:
        raise ValueError(f"{value} is not a number of records")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{value} is neither true nor false")
    return value


def _by_seniority(standings: Iterable[ElectorStanding]) -> list[ElectorStanding]:
    """Return the standings with a seat, oldest first: by age, then by the first record of their series, then by peer ID."""
    seats = [
        (standing.since, standing.first, standing.peer, standing) for standing in standings if standing.since is not None
    ]
    return [standing for *_, standing in sorted(seats, key=lambda seat: seat[:3])]


def young_seats(seniors: int) -> int:
    """Return the number of seats of the young beside `seniors` seniors: at most a quarter of all seats, but at least one."""
    return max(1, seniors // 3)


def contributors(members: Sequence[PeerId], masks: Sequence[bytes]) -> frozenset[PeerId]:
    """Return the members whose parts are in the masks of more than half of the chunks."""
    width = (len(members) + 7) // 8
    rows = np.frombuffer(b"".join(masks), dtype=np.uint8).reshape(len(masks), width)
    counts = np.unpackbits(rows, axis=1, count=len(members), bitorder="little").sum(axis=0, dtype=np.uint16)
    return frozenset(members[index] for index in np.flatnonzero(counts > len(masks) // 2).tolist())


# ------------------------------------------------------------------------------------------------------------------------
# Rosters: the electors at a tip, the members of all records up to it, and the uses of tokens.


@dataclass(frozen=True)
class Roster:
    """Facts about peers from the records up to a tip.  Immutable; unchanged parts are shared.

    members: members of any record so far.  uses: uses of admission tokens.  contributors: members of the last record whose
    parts it contains, sorted.  tasks: the task sets.  progress: progress towards the run's total.  leases: state of the
    leases of rows.  finality: the final records.  work: the recent work of the members.
    """

    electorate: Electorate
    members: frozenset[PeerId] = frozenset()
    uses: TokenUses = TokenUses()
    contributors: tuple[PeerId, ...] = ()
    tasks: TasksInForce = TasksInForce()
    progress: RunProgress = RunProgress()
    leases: Leases = Leases()
    finality: Finality = Finality()
    work: RecentWork = RecentWork()

    @classmethod
    def start(cls, settings: RoundSettings) -> Roster:
        """Return the roster of a chain without records."""
        return cls(Electorate.start(settings), progress=RunProgress(settings.manifest.goal))

    def after(self, commit: Commit) -> Roster:
        """Return the roster after one more record, which has been verified."""
        named = [PeerId(member.peer) for member in commit.record.members]
        masks = [entry.mask for entry in commit.index]
        electorate, contributing = self.electorate.after(named, masks), tuple(sorted(contributors(named, masks)))
        tasks = self.tasks.after(commit.record, self.electorate.electors)
        settings, next_round = self.electorate.settings, commit.record.round + 1
        base = base_on(settings, commit.record.round, Hash(commit.record.previous), self)
        leases = base.leases_after(settings.manifest, commit.record.members, contributing)
        progress = self.progress.after(self.electorate.counted_tokens(commit), extension_of(commit.record))
        reads_rows = not settings.manifest.learns_from_rollouts(next_round)
        if reads_rows and leases.is_exhausted(lease_terms(settings.manifest).limit):
            progress = replace(progress, is_out_of_rows=True)
        finality = self.finality.after(self.electorate.electors, self.electorate.quorum, commit.certificate, named)
        members, uses = self.members, self.uses
        new = [member for member in commit.record.members if member.peer not in members]
        if new:
            uses = uses.after([(PeerId(member.peer), member.admission) for member in new])
            members = members.union(named)
        work = self.work.after(commit)
        return Roster(electorate, members, uses, contributing, tasks, progress, leases, finality, work)


def base_on(settings: RoundSettings, round: int, tip: Hash, roster: Roster) -> Base:
    """Return the base of round `round`."""
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
        roster.leases.on(round, tip),
        roster.work,
    )


def check_admissions(
    manifest: RunManifest, run: Hash, round: int, members: Sequence[Member], known: frozenset[PeerId], uses: TokenUses
) -> None:
    """Check that all these peers may be members of a record; raises `Malformed` with the reason.

    known: members of earlier records, which stay admitted.  uses: uses of admission tokens before this record.
    """
    new = [member for member in members if member.peer not in known]
    for member in new:
        verify_admission(manifest, run, PeerId(member.peer), member.admission, round)
    uses.after([(PeerId(member.peer), member.admission) for member in new])
